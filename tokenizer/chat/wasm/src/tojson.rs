//! The `tojson` filter of transformers: Python's `json.dumps` without HTML escapes.
use crate::text::{fail, Args};
use minijinja::value::{python_float_repr, Value, ValueKind};
use minijinja::{Error, State};

const DEEPEST: usize = 200;
const WIDEST_INDENT: i64 = 64;

struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
}

fn quote(s: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 32 || (ascii && c as u32 >= 127) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn float(f: f64) -> String {
    match python_float_repr(f).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        s => s.into(),
    }
}

impl Style {
    fn line(&self, depth: usize, out: &mut String) {
        if let Some(ref indent) = self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn scalar(&self, v: &Value, out: &mut String) -> Result<bool, Error> {
        match v.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if v.is_true() { "true" } else { "false" }),
            ValueKind::Number if v.is_integer() => out.push_str(&v.to_string()),
            ValueKind::Number => out.push_str(&float(f64::try_from(v.clone())?)),
            ValueKind::String => quote(v.as_str().unwrap_or(""), self.ascii, out),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn dump(&self, state: &State, v: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEEPEST {
            return fail("value is nested too deep for tojson");
        }
        let before = out.len();
        if self.scalar(v, out)? {
            return state.consume_fuel(1 + ((out.len() - before) / 64) as u64);
        }
        let map = v.kind() == ValueKind::Map;
        if !map && v.kind() != ValueKind::Seq {
            let name = if v.is_undefined() { "Undefined".into() } else { v.kind().to_string() };
            return fail(format!("Object of type {name} is not JSON serializable"));
        }
        let mut items: Vec<Value> = v.try_iter()?.collect();
        if map && self.sort {
            items.sort();
        }
        out.push(if map { '{' } else { '[' });
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            self.line(depth + 1, out);
            if !map {
                self.dump(state, item, depth + 1, out)?;
                continue;
            }
            if item.as_str().is_some() {
                self.scalar(item, out)?;
            } else {
                out.push('"');
                if !self.scalar(item, out)? {
                    return fail("keys must be str, int, float, bool or None");
                }
                out.push('"');
            }
            out.push_str(&self.key);
            self.dump(state, &v.get_item(item)?, depth + 1, out)?;
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push(if map { '}' } else { ']' });
        state.consume_fuel(1)
    }
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(state: &State, v: &Value, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new(args);
    let ascii = args.get(0, "ensure_ascii");
    let indent = args.get(1, "indent").filter(|x| !x.is_none());
    let separators = args.get(2, "separators").filter(|x| !x.is_none());
    let sort = args.get(3, "sort_keys");
    args.done(4)?;
    let indent = match indent {
        None => None,
        Some(x) => Some(match x.as_str() {
            Some(s) if s.len() <= WIDEST_INDENT as usize => s.to_string(),
            Some(_) => return fail("indent of tojson is too wide"),
            None => match i64::try_from(x)? {
                n if n > WIDEST_INDENT => return fail("indent of tojson is too wide"),
                n => " ".repeat(n.max(0) as usize),
            },
        }),
    };
    let mut item = if indent.is_some() { "," } else { ", " }.to_string();
    let mut key = ": ".to_string();
    if let Some(x) = separators {
        item = x.get_item_by_index(0)?.to_string();
        key = x.get_item_by_index(1)?.to_string();
    }
    let yes = |x: Option<Value>| x.is_some_and(|x| x.is_true());
    let style = Style { ascii: yes(ascii), indent, item, key, sort: yes(sort) };
    let mut out = String::new();
    style.dump(state, v, 0, &mut out)?;
    Ok(Value::from(out))
}
