//! Filters and tests where the engine differs from Jinja2, or would lose the
//! marks of what the template wrote.
use crate::text::{self, charge, fail, soft_str, Args};
use crate::tojson::tojson;
use minijinja::value::{track, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

/// Widest padding that a template gets.
pub const WIDEST: usize = 100_000;

pub fn register(env: &mut Environment<'static>) {
    minijinja_contrib::add_to_environment(env);
    env.add_filter("__generation", |v: &Value| track::generation(v));
    env.add_filter("tojson", |state: &State, v: &Value, a: Rest<ValueOrKwargs>| {
        tojson(state, v, &a.into_values())
    });
    env.add_filter("string", |state: &State, v: &Value| -> Result<Value, Error> {
        let rv = soft_str(v);
        charge(state, rv.as_str().map_or(0, |x| x.len()))?;
        Ok(rv)
    });
    env.add_filter("trim", trim);
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("safe", |v: &Value| match v.as_str() {
        Some(s) if !has_marks(v) => Value::from_safe_string(s.into()),
        Some(_) => v.clone(),
        None => Value::from_safe_string(v.to_string()),
    });
    env.add_filter("indent", indent);
    env.add_filter("truncate", truncate);
    env.add_filter("center", |v: &Value, width: Option<usize>| {
        text_pad(&v.to_string(), width.unwrap_or(80), " ", Pad::Both)
    });
    for name in ["e", "escape", "forceescape"] {
        env.add_filter(name, move |v: &Value| match v.is_safe() && name != "forceescape" {
            true => v.clone(),
            false => Value::from_safe_string(escape(&v.to_string())),
        });
    }
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_test("sequence", |v: &Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_test("iterable", |v: &Value| !v.is_none() && v.try_iter().is_ok());
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
}

fn has_marks(v: &Value) -> bool {
    !track::marks(v).template.is_empty()
}

fn escape(s: &str) -> String {
    let mut rv = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => rv.push_str("&amp;"),
            '<' => rv.push_str("&lt;"),
            '>' => rv.push_str("&gt;"),
            '"' => rv.push_str("&#34;"),
            '\'' => rv.push_str("&#39;"),
            c => rv.push(c),
        }
    }
    rv
}

fn trim(v: &Value, chars: Option<&str>) -> Value {
    let v = soft_str(v);
    let s = v.as_str().unwrap_or("");
    let part = match chars {
        Some(chars) => s.trim_matches(|c| chars.contains(c)),
        None => text::strip(s),
    };
    match v.is_safe() {
        true => Value::from_safe_string(part.into()),
        false => text::part_of(&v, part),
    }
}

fn replace(state: &State, v: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let args = Args::new(&args);
    let (old, new, count) = (args.get(0, "old"), args.get(1, "new"), args.get(2, "count"));
    args.done(3)?;
    let (Some(old), Some(new)) = (old, new) else {
        return fail("replace needs what to replace and what with");
    };
    let count = match count {
        Some(n) if !n.is_none() => i64::try_from(n)?,
        _ => -1,
    };
    let v = soft_str(v);
    text::replace(state, &v, &old.to_string(), &soft_str(&new), count)
}

fn join(state: &State, v: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let args = Args::new(&args);
    let (joiner, attribute) = (args.get(0, "d"), args.get(1, "attribute"));
    args.done(2)?;
    let joiner = joiner.map_or_else(|| track::literal(""), |x| soft_str(&x));
    let Some(attribute) = attribute.filter(|x| !x.is_none()) else {
        if v.is_none() {
            return fail("none is not iterable");
        }
        return text::join(state, v, &joiner);
    };
    let mut parts = Vec::new();
    for item in v.try_iter()? {
        state.consume_fuel(1)?;
        let mut at = item;
        match attribute.as_str() {
            Some(path) => {
                for name in path.split('.') {
                    at = match name.parse::<usize>() {
                        Ok(i) => at.get_item_by_index(i)?,
                        Err(_) => at.get_attr(name)?,
                    };
                }
            }
            None => at = at.get_item(&attribute)?,
        }
        parts.push(at);
    }
    text::join(state, &Value::from(parts), &joiner)
}

fn indent(state: &State, v: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let args = Args::new(&args);
    let width = args.get(0, "width").unwrap_or_else(|| Value::from(4));
    let first = args.get(1, "first").is_some_and(|x| x.is_true());
    let blank = args.get(2, "blank").is_some_and(|x| x.is_true());
    args.done(3)?;
    let width = match width.as_str() {
        Some(_) => width,
        None => match usize::try_from(width)? {
            n if n > WIDEST => return fail(format!("width {n} is more than {WIDEST}")),
            n => Value::from(" ".repeat(n)),
        },
    };
    let v = soft_str(v);
    let s = v.as_str().unwrap_or("");
    // a final line break makes a last, empty line
    let mut lines = text::split_lines(s, false);
    if s.is_empty() || text::split_lines(&s[s.len() - last_width(s)..], false) == [""] {
        lines.push(&s[s.len()..]);
    }
    charge(state, lines.len().saturating_mul(64 + width.as_str().map_or(0, |x| x.len())))?;
    let mut rv = track::Builder::default();
    for (i, line) in lines.into_iter().enumerate() {
        if i > 0 {
            rv.push_str("\n");
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            rv.push_value(&width);
        }
        let start = text::offset(s, line);
        rv.push_slice(&v, start, start + line.len());
    }
    Ok(rv.finish())
}

/// Bytes of the last character.
fn last_width(s: &str) -> usize {
    s.chars().next_back().map_or(0, |c| c.len_utf8())
}

fn truncate(v: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let args = Args::new(&args);
    let length = args.get(0, "length").map_or(Ok(255), usize::try_from)?;
    let kill = args.get(1, "killwords").is_some_and(|x| x.is_true());
    let end = args.get(2, "end").map_or_else(|| "...".into(), |x| x.to_string());
    let leeway = args.get(3, "leeway").map_or(Ok(5), usize::try_from)?;
    args.done(4)?;
    let v = soft_str(v);
    let s = v.as_str().unwrap_or("");
    if s.chars().count() <= length.saturating_add(leeway) {
        return Ok(v);
    }
    let Some(keep) = length.checked_sub(end.chars().count()) else {
        return fail("truncate: length is shorter than the end");
    };
    let cut = s.char_indices().nth(keep).map_or(s, |(i, _)| &s[..i]);
    let cut = if kill { cut } else { cut.rsplit_once(' ').map_or(cut, |x| x.0) };
    Ok(Value::from(format!("{cut}{end}")))
}

/// Which sides of a string are padded.
#[derive(PartialEq)]
pub enum Pad {
    Left,
    Right,
    Both,
}

/// The string padded to `width` characters as `ljust`, `rjust`, `center` do.
pub fn text_pad(s: &str, width: usize, fill: &str, pad: Pad) -> Result<Value, Error> {
    let n = s.chars().count();
    if fill.chars().count() != 1 {
        return fail("the fill character must be exactly one character long");
    }
    if width > WIDEST {
        return fail(format!("width {width} is more than {WIDEST}"));
    }
    let room = width.saturating_sub(n);
    let left = match pad {
        Pad::Left => room,
        Pad::Right => 0,
        Pad::Both => room / 2 + (room & width & 1),
    };
    Ok(Value::from(fill.repeat(left) + s + &fill.repeat(room - left)))
}

fn whole(f: f64) -> Option<Value> {
    (f.is_finite() && f.abs() < 1e38).then(|| Value::from(f.trunc() as i128))
}

fn int(v: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let args = Args::new(&args);
    let default = args.get(0, "default").unwrap_or_else(|| Value::from(0));
    let base = args.get(1, "base").map_or(Ok(10), u32::try_from)?;
    args.done(2)?;
    if !(2..=36).contains(&base) {
        return Ok(default);
    }
    let rv = match v.kind() {
        ValueKind::Bool => Some(Value::from(v.is_true() as i64)),
        ValueKind::Number if v.is_integer() => Some(v.clone()),
        ValueKind::Number => f64::try_from(v.clone()).ok().and_then(whole),
        ValueKind::String => {
            let s = text::strip(v.as_str().unwrap_or("")).replace('_', "").to_lowercase();
            let prefix = match base {
                16 => "0x",
                8 => "0o",
                2 => "0b",
                _ => "",
            };
            let digits = s.strip_prefix(prefix).unwrap_or(&s);
            let parsed = i128::from_str_radix(digits, base).ok().map(Value::from);
            parsed.or_else(|| s.parse::<f64>().ok().and_then(whole))
        }
        _ => None,
    };
    Ok(rv.unwrap_or(default))
}

fn float(v: &Value, default: Option<Value>) -> Value {
    let rv = match v.kind() {
        ValueKind::Bool => Some(f64::from(v.is_true())),
        ValueKind::Number => f64::try_from(v.clone()).ok(),
        ValueKind::String => text::strip(v.as_str().unwrap_or("")).parse::<f64>().ok(),
        _ => None,
    };
    rv.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0))
}
