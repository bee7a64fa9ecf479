//! Strings as Python has them.
use minijinja::value::track::{self, Builder};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// `str.isspace` of one character.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `s.strip()`.
pub fn strip(s: &str) -> &str {
    s.trim_matches(is_space)
}

/// `s.rstrip()`.
pub fn strip_end(s: &str) -> &str {
    s.trim_end_matches(is_space)
}

pub fn fail<T>(message: impl Into<std::borrow::Cow<'static, str>>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Pays for `n` bytes before they are made, at the engine's rate.
pub fn charge(state: &State, n: usize) -> Result<(), Error> {
    state.consume_fuel((n / 64) as u64)
}

/// The byte offset of `part`, which is a slice of `s`.
pub fn offset(s: &str, part: &str) -> usize {
    part.as_ptr() as usize - s.as_ptr() as usize
}

/// `part`, a slice of the string `value`, with the marks it has there.
pub fn part_of(value: &Value, part: &str) -> Value {
    let start = offset(value.as_str().unwrap_or(""), part);
    track::slice(value, start, start + part.len())
}

/// The value as the string it prints as; strings stay what they are.
pub fn soft_str(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => value.clone(),
        _ => Value::from(value.to_string()),
    }
}

/// Positional and keyword arguments by name.
pub struct Args<'a> {
    pos: &'a [Value],
    kw: Option<Kwargs>,
}

impl<'a> Args<'a> {
    pub fn new(args: &'a [Value]) -> Args<'a> {
        match args.last().filter(|x| x.is_kwargs()) {
            Some(last) => Args {
                pos: &args[..args.len() - 1],
                kw: Kwargs::try_from(last.clone()).ok(),
            },
            None => Args { pos: args, kw: None },
        }
    }

    /// The argument at `index` or called `name`.
    pub fn get(&self, index: usize, name: &str) -> Option<Value> {
        let named = self.kw.as_ref().and_then(|x| x.get::<Option<Value>>(name).ok());
        named.flatten().or_else(|| self.pos.get(index).cloned())
    }

    /// Fails where Python has no such argument.
    pub fn done(&self, most: usize) -> Result<(), Error> {
        if self.pos.len() > most {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.kw.as_ref().map_or(Ok(()), |x| x.assert_all_used())
    }
}

/// `value.replace(old, new, count)`; a negative count means all.
pub fn replace(
    state: &State,
    value: &Value,
    old: &str,
    new: &Value,
    count: i64,
) -> Result<Value, Error> {
    let s = value.as_str().unwrap_or("");
    let new_len = new.as_str().map_or(0, |x| x.len());
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    if new_len > old.len() {
        let matches = (s.len() / old.len().max(1) + 1).min(most);
        charge(state, matches.saturating_mul(new_len - old.len()))?;
    }
    let (mut rv, mut at) = (Builder::default(), 0);
    for (i, _) in s.match_indices(old).take(most) {
        rv.push_slice(value, at, i);
        rv.push_value(new);
        at = i + old.len();
    }
    rv.push_slice(value, at, s.len());
    Ok(rv.finish())
}

/// `joiner.join(values)`, where values print as they do.
pub fn join(state: &State, values: &Value, joiner: &Value) -> Result<Value, Error> {
    let width = joiner.as_str().map_or(0, |x| x.len());
    let mut rv = Builder::default();
    for (i, value) in values.try_iter()?.enumerate() {
        if let Some(error) = value.as_str().is_none().then(|| value.kind()) {
            if error == ValueKind::Invalid {
                return fail("cannot join an invalid value");
            }
        }
        charge(state, 64 + width)?;
        if i > 0 {
            rv.push_value(joiner);
        }
        rv.push_value(&value);
    }
    charge(state, rv.len())?;
    Ok(rv.finish())
}

/// `s.split(sep, limit)` from the left; no separator means runs of blanks.
pub fn split<'a>(s: &'a str, sep: Option<&'a str>, limit: i64) -> Vec<&'a str> {
    let limit = usize::try_from(limit).ok();
    match (sep, limit) {
        (Some(sep), None) => s.split(sep).collect(),
        (Some(sep), Some(n)) => s.splitn(n.saturating_add(1), sep).collect(),
        (None, limit) => {
            let (mut parts, mut rest) = (Vec::new(), s.trim_start_matches(is_space));
            while !rest.is_empty() {
                if limit == Some(parts.len()) {
                    parts.push(strip_end(rest));
                    break;
                }
                let end = rest.find(is_space).unwrap_or(rest.len());
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            parts
        }
    }
}

/// `s.rsplit(sep, limit)`.
pub fn rsplit<'a>(s: &'a str, sep: Option<&'a str>, limit: i64) -> Vec<&'a str> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match sep {
        Some(sep) => s.rsplitn(limit.saturating_add(1), sep).collect(),
        None => {
            let (mut parts, mut rest) = (Vec::new(), strip_end(s));
            while !rest.is_empty() {
                if limit == parts.len() {
                    parts.push(rest.trim_start_matches(is_space));
                    break;
                }
                let cut = rest.char_indices().rev().find(|x| is_space(x.1));
                let start = cut.map_or(0, |(i, c)| i + c.len_utf8());
                parts.push(&rest[start..]);
                rest = strip_end(&rest[..start]);
            }
            parts
        }
    };
    parts.reverse();
    parts
}

/// `s.splitlines(keep)`.
pub fn split_lines(s: &str, keep: bool) -> Vec<&str> {
    let breaks = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}')
            || matches!(c, '\u{2028}' | '\u{2029}')
    };
    let (mut parts, mut rest) = (Vec::new(), s);
    while let Some(i) = rest.find(breaks) {
        let mark = rest[i..].chars().next().map_or(0, |c| c.len_utf8());
        let end = if rest[i..].starts_with("\r\n") { i + 2 } else { i + mark };
        parts.push(&rest[..if keep { end } else { i }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}
