//! Methods of Python's values that the engine's own set lacks, or that would
//! lose the marks of what the template wrote.
use crate::filters::{text_pad, Pad};
use crate::text::{self, fail, part_of, Args};
use minijinja::value::{track, Tuple, Value, ValueKind};
use minijinja::{Error, State};

/// Calls a method that the value itself does not have.
pub fn call(state: &mut State, v: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match v.kind() {
        ValueKind::String => string(state, v, name, args)?,
        ValueKind::Map | ValueKind::Seq if name == "copy" && args.is_empty() => Some(v.clone()),
        ValueKind::Seq if name == "index" => Some(list_index(state, v, args)?),
        _ => None,
    };
    match own {
        Some(rv) => Ok(rv),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, v, name, args),
    }
}

fn list_index(state: &State, v: &Value, args: &[Value]) -> Result<Value, Error> {
    for (i, item) in v.try_iter()?.enumerate() {
        state.consume_fuel(1)?;
        if args.first() == Some(&item) {
            return Ok(Value::from(i));
        }
    }
    fail("value is not in list")
}

fn parts(v: &Value, list: Vec<&str>) -> Value {
    Value::from(list.into_iter().map(|x| part_of(v, x)).collect::<Vec<_>>())
}

/// A string argument; None counts as absent.
fn text_arg(args: &Args, index: usize, name: &str) -> Result<Option<Value>, Error> {
    match args.get(index, name).filter(|x| !x.is_none()) {
        Some(x) if x.as_str().is_some() => Ok(Some(x)),
        Some(x) => fail(format!("a string is required, not {}", x.kind())),
        None => Ok(None),
    }
}

fn int_arg(args: &Args, index: usize, name: &str, default: i64) -> Result<i64, Error> {
    args.get(index, name).map_or(Ok(default), i64::try_from)
}

fn string(state: &State, v: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let s = v.as_str().unwrap_or("");
    let args = Args::new(args);
    let rv = match name {
        "strip" | "lstrip" | "rstrip" => {
            let chars = text_arg(&args, 0, "chars")?;
            let chars = chars.as_ref().and_then(|x| x.as_str());
            let drop = |c: char| chars.map_or_else(|| text::is_space(c), |x| x.contains(c));
            args.done(1)?;
            part_of(v, match name {
                "strip" => s.trim_matches(drop),
                "lstrip" => s.trim_start_matches(drop),
                _ => s.trim_end_matches(drop),
            })
        }
        "split" | "rsplit" => {
            let sep = text_arg(&args, 0, "sep")?;
            let sep = sep.as_ref().and_then(|x| x.as_str());
            let limit = int_arg(&args, 1, "maxsplit", -1)?;
            args.done(2)?;
            if sep == Some("") {
                return fail("empty separator");
            }
            let list = if name == "split" { text::split(s, sep, limit) } else { text::rsplit(s, sep, limit) };
            text::charge(state, 64 * list.len())?;
            parts(v, list)
        }
        "splitlines" => {
            let keep = args.get(0, "keepends").is_some_and(|x| x.is_true());
            args.done(1)?;
            let list = text::split_lines(s, keep);
            text::charge(state, 64 * list.len())?;
            parts(v, list)
        }
        "replace" => {
            let (old, new) = (text_arg(&args, 0, "old")?, text_arg(&args, 1, "new")?);
            let count = int_arg(&args, 2, "count", -1)?;
            args.done(3)?;
            let (Some(old), Some(new)) = (old, new) else {
                return fail("replace needs two strings");
            };
            text::replace(state, v, old.as_str().unwrap_or(""), &new, count)?
        }
        "join" => {
            let Some(list) = args.get(0, "iterable") else {
                return fail("join needs one argument");
            };
            args.done(1)?;
            join(state, v, &list)?
        }
        "partition" | "rpartition" => {
            let Some(sep) = text_arg(&args, 0, "sep")? else {
                return fail("partition needs a separator");
            };
            args.done(1)?;
            partition(v, sep.as_str().unwrap_or(""), name == "partition")?
        }
        _ => return more(v, name, &args),
    };
    Ok(Some(rv))
}

fn more(v: &Value, name: &str, args: &Args) -> Result<Option<Value>, Error> {
    let s = v.as_str().unwrap_or("");
    let rv = match name {
        "removeprefix" | "removesuffix" => {
            let Some(fix) = text_arg(args, 0, "fix")? else {
                return fail("a string is required");
            };
            args.done(1)?;
            let fix = fix.as_str().unwrap_or("");
            let part = if name == "removeprefix" { s.strip_prefix(fix) } else { s.strip_suffix(fix) };
            part_of(v, part.unwrap_or(s))
        }
        "index" | "rindex" => {
            let Some(what) = text_arg(args, 0, "sub")? else {
                return fail("a string is required");
            };
            args.done(1)?;
            let what = what.as_str().unwrap_or("");
            match if name == "index" { s.find(what) } else { s.rfind(what) } {
                Some(i) => Value::from(s[..i].chars().count()),
                None => return fail("substring not found"),
            }
        }
        "title" => Value::from(title(s)),
        "istitle" => Value::from(s.chars().any(char::is_alphabetic) && title(s) == s),
        "casefold" => Value::from(s.to_lowercase().replace('ß', "ss")),
        "swapcase" => Value::from(swap_case(s)),
        "zfill" => {
            let width = usize::try_from(int_arg(args, 0, "width", 0)?).unwrap_or(0);
            let sign = s.len() - s.strip_prefix(['-', '+']).unwrap_or(s).len();
            let padded = text_pad(&s[sign..], width.saturating_sub(sign), "0", Pad::Left)?;
            Value::from(format!("{}{padded}", &s[..sign]))
        }
        "center" | "ljust" | "rjust" => {
            let width = usize::try_from(int_arg(args, 0, "width", 0)?).unwrap_or(0);
            let fill = text_arg(args, 1, "fillchar")?;
            let fill = fill.as_ref().and_then(|x| x.as_str()).unwrap_or(" ");
            args.done(2)?;
            text_pad(s, width, fill, match name {
                "center" => Pad::Both,
                "ljust" => Pad::Right,
                _ => Pad::Left,
            })?
        }
        _ => return Ok(None),
    };
    Ok(Some(rv))
}

fn join(state: &State, joiner: &Value, list: &Value) -> Result<Value, Error> {
    let text = list.as_str().is_some();
    if !text && list.as_object().is_none() {
        return fail("can only join an iterable");
    }
    let list: Vec<Value> = list.try_iter()?.collect();
    if let Some(other) = list.iter().find(|x| x.as_str().is_none()) {
        return fail(format!("sequence item: expected a string, {} found", other.kind()));
    }
    text::join(state, &Value::from(list), joiner)
}

fn partition(v: &Value, sep: &str, first: bool) -> Result<Value, Error> {
    let s = v.as_str().unwrap_or("");
    if sep.is_empty() {
        return fail("empty separator");
    }
    let empty = || Value::from("");
    Ok(Value::from(match if first { s.find(sep) } else { s.rfind(sep) } {
        Some(i) => Tuple::from([
            part_of(v, &s[..i]),
            part_of(v, &s[i..i + sep.len()]),
            track::slice(v, i + sep.len(), s.len()),
        ]),
        None if first => Tuple::from([v.clone(), empty(), empty()]),
        None => Tuple::from([empty(), empty(), v.clone()]),
    }))
}

fn swap_case(s: &str) -> String {
    s.chars()
        .map(|c| match c.is_uppercase() {
            true => c.to_lowercase().to_string(),
            false => c.to_uppercase().to_string(),
        })
        .collect()
}

/// Upper case where a word begins, lower case inside; any letter after a
/// character that is none begins a word.
fn title(s: &str) -> String {
    let mut rv = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        match inside {
            true => rv.extend(c.to_lowercase()),
            false => rv.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    rv
}
