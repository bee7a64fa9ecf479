//! `strftime` in the C locale.
use crate::render::Clock;

const MONTHS: [&str; 12] = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
];
const DAYS: [&str; 7] = [
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
];

/// ISO year and week.
fn iso_week(t: &Clock) -> (i64, i64) {
    let leap = |y: i64| (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    let long = |y: i64| {
        // a year has 53 weeks if it starts on a Thursday, or a leap year on a Wednesday
        let first = (y + (y - 1).div_euclid(4) - (y - 1).div_euclid(100) + (y - 1).div_euclid(400))
            .rem_euclid(7);
        first == 4 || (first == 3 && leap(y))
    };
    let week = (t.year_day - (t.weekday + 1) + 10) / 7;
    match week {
        0 => (t.year - 1, if long(t.year - 1) { 53 } else { 52 }),
        53 if !long(t.year) => (t.year + 1, 1),
        w => (t.year, w),
    }
}

fn number(v: i64, width: usize, flag: char) -> String {
    match flag {
        '-' => v.to_string(),
        '_' => format!("{v:width$}"),
        _ => format!("{v:0width$}"),
    }
}

fn field(c: char, flag: char, t: &Clock) -> Option<String> {
    let hour = if t.hour % 12 == 0 { 12 } else { t.hour % 12 };
    let blank = if flag == ' ' { '_' } else { flag };
    let month = MONTHS[(t.month - 1).clamp(0, 11) as usize];
    let day = DAYS[t.weekday.clamp(0, 6) as usize];
    Some(match c {
        'Y' => t.year.to_string(),
        'C' => number(t.year.div_euclid(100), 2, flag),
        'y' => number(t.year.rem_euclid(100), 2, flag),
        'm' => number(t.month, 2, flag),
        'd' => number(t.day, 2, flag),
        'e' => number(t.day, 2, blank),
        'H' => number(t.hour, 2, flag),
        'I' => number(hour, 2, flag),
        'k' => number(t.hour, 2, blank),
        'l' => number(hour, 2, blank),
        'M' => number(t.minute, 2, flag),
        'S' => number(t.second, 2, flag),
        'f' => format!("{:06}", t.microsecond),
        'j' => number(t.year_day, 3, flag),
        'B' => month.into(),
        'b' | 'h' => month[..3].into(),
        'A' => day.into(),
        'a' => day[..3].into(),
        'p' => if t.hour < 12 { "AM" } else { "PM" }.into(),
        'P' => if t.hour < 12 { "am" } else { "pm" }.into(),
        'w' => ((t.weekday + 1) % 7).to_string(),
        'u' => (t.weekday + 1).to_string(),
        'U' => number((t.year_day + 6 - (t.weekday + 1) % 7) / 7, 2, flag),
        'W' => number((t.year_day + 6 - t.weekday) / 7, 2, flag),
        'G' => iso_week(t).0.to_string(),
        'g' => number(iso_week(t).0.rem_euclid(100), 2, flag),
        'V' => number(iso_week(t).1, 2, flag),
        'n' => "\n".into(),
        't' => "\t".into(),
        '%' => "%".into(),
        // the reference's clock has no time zone
        'Z' | 'z' => String::new(),
        'F' => strftime("%Y-%m-%d", t),
        'T' | 'X' => strftime("%H:%M:%S", t),
        'D' | 'x' => strftime("%m/%d/%y", t),
        'R' => strftime("%H:%M", t),
        'r' => strftime("%I:%M:%S %p", t),
        'c' => strftime("%a %b %e %H:%M:%S %Y", t),
        _ => return None,
    })
}

/// Formats the time; a directive that is not known stays as it is.
pub fn strftime(format: &str, t: &Clock) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(i) = rest.find('%') {
        out.push_str(&rest[..i]);
        let directive = &rest[i..];
        let mut chars = directive[1..].chars();
        let mut c = chars.next();
        let mut flag = ' ';
        if let Some(f) = c.filter(|x| matches!(x, '-' | '_' | '0' | '^' | '#')) {
            flag = f;
            c = chars.next();
        }
        rest = chars.as_str();
        match c.and_then(|c| field(c, flag, t)) {
            Some(s) if flag == '^' => out.push_str(&s.to_uppercase()),
            Some(s) => out.push_str(&s),
            None => out.push_str(&directive[..directive.len() - rest.len()]),
        }
    }
    out.push_str(rest);
    out
}
