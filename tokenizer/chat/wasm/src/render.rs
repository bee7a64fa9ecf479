//! One template and its rendering.
use crate::strftime::strftime;
use crate::text::{strip, strip_end};
use crate::{filters, methods};
use minijinja::value::{track, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::Value as Json;
use std::cell::RefCell;

const NAME: &str = "template";
/// What transformers appends to the message to be continued, blank included.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

thread_local! {
    static RAISED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Why there is no rendering.
#[derive(Debug)]
pub enum Failure {
    Syntax(String),
    Raised(String),
    Render(String),
    Fuel(String),
    Recursion(String),
    Output(String),
    Request(String),
    Continue(String),
}

impl Failure {
    /// The first byte of a reply; the host has the same list.
    pub fn outcome(&self) -> u8 {
        match self {
            Failure::Syntax(_) => 1,
            Failure::Raised(_) => 2,
            Failure::Render(_) => 3,
            Failure::Fuel(_) => 4,
            Failure::Recursion(_) => 5,
            Failure::Output(_) => 6,
            Failure::Request(_) => 7,
            Failure::Continue(_) => 8,
        }
    }

    pub fn message(&self) -> &str {
        match self {
            Failure::Syntax(s) | Failure::Raised(s) | Failure::Render(s) | Failure::Fuel(s) => s,
            Failure::Recursion(s) | Failure::Output(s) | Failure::Request(s) => s,
            Failure::Continue(s) => s,
        }
    }

    fn from(error: &Error, parsing: bool) -> Failure {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(error);
        let mut fuel = error.kind() == ErrorKind::OutOfFuel;
        while let Some(e) = cause {
            message.push_str(": ");
            message.push_str(&e.to_string());
            fuel |= e.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel);
            cause = e.source();
        }
        message = message.replace(&format!(" (in {NAME}:"), " (line ");
        if let Some(raised) = RAISED.with(|x| x.borrow_mut().take()) {
            Failure::Raised(raised)
        } else if fuel {
            Failure::Fuel(message)
        } else if message.contains("recursion limit exceeded") || message.contains("exceeds maximum recursion") {
            Failure::Recursion(message)
        } else if parsing {
            Failure::Syntax(message)
        } else {
            Failure::Render(message)
        }
    }
}

/// Local time as Python's `datetime.now()` has it.
#[derive(Clone, Default, Debug)]
pub struct Clock {
    pub year: i64,
    pub month: i64,
    pub day: i64,
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
    pub microsecond: i64,
    /// 0 is Monday.
    pub weekday: i64,
    pub year_day: i64,
}

/// Rendered text; the ranges are in bytes.
#[derive(Debug)]
pub struct Rendering {
    pub text: String,
    pub template: Vec<(u32, u32)>,
    pub generation: Vec<(u32, u32)>,
}

pub struct Template {
    env: Environment<'static>,
}

fn value(j: &Json) -> Result<Value, Failure> {
    Ok(match j {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => {
            let s = n.to_string();
            let float = || s.parse::<f64>().map(Value::from);
            let whole = !s.contains(['.', 'e', 'E']);
            match s.parse::<i64>() {
                Ok(i) => Ok(Value::from(i)),
                Err(_) if whole => s.parse::<i128>().map(Value::from).or_else(|_| float()),
                Err(_) => float(),
            }
            .map_err(|_| Failure::Request(format!("number {s} is not finite")))?
        }
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(a) => Value::from(a.iter().map(value).collect::<Result<Vec<_>, _>>()?),
        Json::Object(m) => {
            let pairs: Result<Vec<_>, Failure> =
                m.iter().map(|(k, v)| Ok((Value::from(k.as_str()), value(v)?))).collect();
            Value::from_pairs(pairs?)
        }
    })
}

fn parse(request: &[u8]) -> Result<Json, Failure> {
    serde_json::from_slice(request).map_err(|e| Failure::Request(e.to_string()))
}

/// Compiles the template of the request `{"source", "fuel"}`.
pub fn compile(request: &[u8]) -> Result<Template, Failure> {
    let request = parse(request)?;
    let source = request["source"].as_str().unwrap_or_default();
    let mut env = Environment::new();
    let syntax = minijinja::syntax::SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|e| Failure::from(&e, true))?;
    env.set_syntax(syntax);
    env.set_debug(false);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(request["fuel"].as_u64());
    filters::register(&mut env);
    env.set_unknown_method_callback(methods::call);
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let message = message.to_string();
        RAISED.with(|x| *x.borrow_mut() = Some(message.clone()));
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    RAISED.with(|x| x.borrow_mut().take());
    // Python reads line ends of all kinds as one
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    env.add_template_owned(NAME, source).map_err(|e| Failure::from(&e, true))?;
    Ok(Template { env })
}

/// Appends the tag to the text that is to be continued, and returns that text.
fn tag_last_message(messages: Option<&mut Json>) -> Result<String, Failure> {
    let none = || Failure::Continue("no message to continue".into());
    let last = messages.and_then(|x| x.as_array_mut()).and_then(|x| x.last_mut()).ok_or_else(none)?;
    let mut content = last.get_mut("content").ok_or_else(none)?;
    if let Json::Array(parts) = content {
        content = parts
            .iter_mut()
            .rev()
            .find_map(|part| part.as_object_mut().and_then(|x| x.get_mut("text")))
            .ok_or_else(|| Failure::Continue("the last message has no text to continue".into()))?;
    }
    match content {
        Json::String(s) => {
            let text = s.clone();
            s.push_str(CONTINUE_TAG);
            Ok(text)
        }
        _ => Err(Failure::Continue("the last message's content is not text".into())),
    }
}

impl Rendering {
    /// Cuts the text where the message to be continued ends.
    fn cut(&mut self, continued: &str) -> Result<(), Failure> {
        let at = self.text.rfind(strip(CONTINUE_TAG));
        let Some(at) = at.filter(|_| self.text.contains(strip(continued))) else {
            let message = "the final message does not appear in the rendered chat, so it cannot be continued";
            return Err(Failure::Continue(message.into()));
        };
        let end = match self.text[at..].starts_with(CONTINUE_TAG) {
            true => at,
            false => strip_end(&self.text[..at]).len(),
        };
        self.text.truncate(end);
        let end = end as u32;
        self.template.retain_mut(|x| {
            x.1 = x.1.min(end);
            x.0 < x.1
        });
        self.generation.clear();
        Ok(())
    }
}

impl Template {
    /// Renders with a request of these fields: `vars` (by name), `special`
    /// (names of those variables that are text of the template), `now` (the
    /// fields of [`Clock`] in order), `continue`, `output` (most bytes of text).
    pub fn render(&self, request: &[u8]) -> Result<Rendering, Failure> {
        let mut request = parse(request)?;
        let mut continued = None;
        if request["continue"] == Json::Bool(true) {
            continued = Some(tag_last_message(request["vars"].get_mut("messages"))?);
        }
        let special: Vec<&str> =
            request["special"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
        let mut vars: Vec<(Value, Value)> = Vec::new();
        for (name, v) in request["vars"].as_object().into_iter().flatten() {
            let v = match v {
                Json::String(s) if special.contains(&name.as_str()) => track::literal(s),
                v => value(v)?,
            };
            vars.push((Value::from(name.as_str()), v));
        }
        let now = |i: usize| request["now"][i].as_i64().unwrap_or_default();
        let clock = Clock {
            year: now(0),
            month: now(1),
            day: now(2),
            hour: now(3),
            minute: now(4),
            second: now(5),
            microsecond: now(6),
            weekday: now(7),
            year_day: now(8),
        };
        let strftime_now = move |format: &str| track::literal(&strftime(format, &clock));
        vars.push((Value::from("strftime_now"), Value::from_function(strftime_now)));
        let most = request["output"].as_u64().unwrap_or(u64::MAX);
        RAISED.with(|x| x.borrow_mut().take());
        let template = self.env.get_template(NAME).map_err(|e| Failure::from(&e, true))?;
        let (text, marks) =
            template.render_tracked(Value::from_pairs(vars)).map_err(|e| Failure::from(&e, false))?;
        let mut rv = Rendering { text, template: marks.template, generation: marks.generation };
        if let Some(continued) = continued {
            rv.cut(&continued)?;
        }
        if rv.text.len() as u64 > most {
            return Err(Failure::Output(format!("{} bytes of text", rv.text.len())));
        }
        Ok(rv)
    }
}
