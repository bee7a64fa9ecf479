//! Chat templates, rendered as the reference does: the module's interface.
//!
//! A caller writes a JSON request into memory from `alloc`, calls `compile`
//! once and then `render` as often as it likes. Both answer with the address
//! (high half) and length (low half) of a reply, to be freed with `dealloc`:
//! one byte for the outcome, then the payload.
mod filters;
mod methods;
mod render;
mod strftime;
mod text;
mod tojson;

pub use render::{compile, Clock, Failure, Rendering, Template};

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// The system's allocator, which also remembers that memory ran out: the trap
/// that follows does not say so.
struct Watched;

static EXHAUSTED: AtomicBool = AtomicBool::new(false);

fn watch(p: *mut u8) -> *mut u8 {
    if p.is_null() {
        EXHAUSTED.store(true, Ordering::Relaxed);
    }
    p
}

unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        watch(System.alloc(layout))
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        watch(System.alloc_zeroed(layout))
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        watch(System.realloc(p, layout, size))
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        System.dealloc(p, layout)
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

thread_local! {
    static TEMPLATE: RefCell<Option<Template>> = const { RefCell::new(None) };
}

/// Memory for a request.
#[no_mangle]
pub extern "C" fn alloc(n: usize) -> *mut u8 {
    Box::into_raw(vec![0u8; n].into_boxed_slice()) as *mut u8
}

/// Frees a request or a reply.
///
/// # Safety
/// `p` and `n` are those of `alloc` or of a reply.
#[no_mangle]
pub unsafe extern "C" fn dealloc(p: *mut u8, n: usize) {
    drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(p, n)));
}

/// 1 after an allocation failed.
#[no_mangle]
pub extern "C" fn exhausted() -> u32 {
    EXHAUSTED.load(Ordering::Relaxed) as u32
}

fn reply(outcome: u8, payload: &[&[u8]]) -> u64 {
    let mut v = Vec::with_capacity(1 + payload.iter().map(|x| x.len()).sum::<usize>());
    v.push(outcome);
    payload.iter().for_each(|x| v.extend_from_slice(x));
    let b = v.into_boxed_slice();
    let n = b.len() as u64;
    ((Box::into_raw(b) as *mut u8 as usize as u64) << 32) | n
}

fn ranges(list: &[(u32, u32)]) -> Vec<u8> {
    let mut v = Vec::with_capacity(4 + 8 * list.len());
    v.extend((list.len() as u32).to_le_bytes());
    for (a, b) in list {
        v.extend(a.to_le_bytes());
        v.extend(b.to_le_bytes());
    }
    v
}

fn answer(r: Result<Rendering, Failure>) -> u64 {
    match r {
        Ok(r) => reply(
            0,
            &[&ranges(&r.template), &ranges(&r.generation), r.text.as_bytes()],
        ),
        Err(f) => reply(f.outcome(), &[f.message().as_bytes()]),
    }
}

/// Compiles the template of the request `{"source", "fuel"}`.
///
/// # Safety
/// `p` and `n` are those of an `alloc`.
#[no_mangle]
pub unsafe extern "C" fn load(p: *const u8, n: usize) -> u64 {
    match compile(std::slice::from_raw_parts(p, n)) {
        Ok(t) => {
            TEMPLATE.with(|x| *x.borrow_mut() = Some(t));
            reply(0, &[])
        }
        Err(f) => reply(f.outcome(), &[f.message().as_bytes()]),
    }
}

/// Renders the template with the request of [`Template::render`].
///
/// # Safety
/// `p` and `n` are those of an `alloc`.
#[no_mangle]
pub unsafe extern "C" fn run(p: *const u8, n: usize) -> u64 {
    let request = std::slice::from_raw_parts(p, n);
    TEMPLATE.with(|x| match *x.borrow() {
        Some(ref t) => answer(t.render(request)),
        None => reply(Failure::Request(String::new()).outcome(), &[b"no template"]),
    })
}
