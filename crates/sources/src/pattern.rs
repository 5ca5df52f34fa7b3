// SPDX-License-Identifier: Apache-2.0
//! Dates and times in text, by patterns as Java's `DateTimeFormatter` and Spark write them.

/// A pattern, ready to read text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Number { field: Field, least: usize, most: usize },
    Month,
    Day,
    Half,
    Zone,
    Optional(Vec<Part>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Year,
    ShortYear,
    Month,
    Day,
    Hour,
    HalfHour,
    Minute,
    Second,
    Fraction,
}

/// A time as text says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) year: i32,
    pub(crate) month: u32,
    pub(crate) day: u32,
    pub(crate) hour: u32,
    pub(crate) minute: u32,
    pub(crate) second: u32,
    pub(crate) micros: u32,
    afternoon: Option<bool>,
    /// Seconds east of Greenwich, where the text says them.
    pub(crate) offset: Option<i32>,
}

impl Default for Moment {
    fn default() -> Self {
        Moment { year: 1970, month: 1, day: 1, hour: 0, minute: 0, second: 0, micros: 0, afternoon: None, offset: None }
    }
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const DAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

impl Pattern {
    /// Compiles a pattern; answers what is wrong with it.
    pub(crate) fn new(pattern: &str) -> Result<Self, String> {
        let chars: Vec<char> = pattern.chars().collect();
        let mut at = 0;
        let parts = compile(pattern, &chars, &mut at, false)?;
        Ok(Pattern { parts })
    }

    /// Reads a time that the whole text is.
    pub(crate) fn read(&self, text: &[u8]) -> Option<Moment> {
        let (moment, rest) = self.read_prefix(text)?;
        rest.is_empty().then_some(moment)
    }

    /// Reads a time that the text begins with; the rest of the text beside it.
    pub(crate) fn read_prefix<'t>(&self, text: &'t [u8]) -> Option<(Moment, &'t [u8])> {
        let mut moment = Moment::default();
        let rest = read_parts(&self.parts, text, &mut moment)?;
        moment.is_valid().then_some((moment, rest))
    }
}

fn compile(pattern: &str, chars: &[char], at: &mut usize, inner: bool) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    while let Some(&c) = chars.get(*at) {
        match c {
            '[' => {
                *at += 1;
                parts.push(Part::Optional(compile(pattern, chars, at, true)?));
            }
            ']' if inner => {
                *at += 1;
                return Ok(parts);
            }
            ']' => return Err(format!("date pattern `{pattern}`: a `]` without `[`")),
            '\'' => parts.push(Part::Text(quoted(pattern, chars, at)?.into_bytes())),
            c if c.is_ascii_alphabetic() => {
                let count = chars[*at..].iter().take_while(|other| **other == c).count();
                *at += count;
                parts.push(letter(pattern, c, count)?);
            }
            c => {
                *at += 1;
                parts.push(Part::Text(c.to_string().into_bytes()));
            }
        }
    }
    if inner { Err(format!("date pattern `{pattern}`: a `[` is not closed")) } else { Ok(parts) }
}

/// Text in single quotes; two of them are one.
fn quoted(pattern: &str, chars: &[char], at: &mut usize) -> Result<String, String> {
    *at += 1;
    let mut text = String::new();
    loop {
        match chars.get(*at) {
            Some('\'') if chars.get(*at + 1) == Some(&'\'') => {
                text.push('\'');
                *at += 2;
            }
            Some('\'') => {
                *at += 1;
                return Ok(if text.is_empty() { "'".to_string() } else { text });
            }
            Some(c) => {
                text.push(*c);
                *at += 1;
            }
            None => return Err(format!("date pattern `{pattern}`: a quote is not closed")),
        }
    }
}

fn letter(pattern: &str, letter: char, count: usize) -> Result<Part, String> {
    // Once is as many digits as there are; more often is exactly as many.
    let number = |field, most| match count {
        1 => Part::Number { field, least: 1, most },
        n => Part::Number { field, least: n, most: n },
    };
    Ok(match letter {
        'y' | 'u' if count == 2 => number(Field::ShortYear, 2),
        'y' | 'u' => number(Field::Year, 4),
        'M' | 'L' if count > 2 => Part::Month,
        'M' | 'L' => number(Field::Month, 2),
        'd' => number(Field::Day, 2),
        'E' => Part::Day,
        'H' => number(Field::Hour, 2),
        'h' => number(Field::HalfHour, 2),
        'm' => number(Field::Minute, 2),
        's' => number(Field::Second, 2),
        'S' => Part::Number { field: Field::Fraction, least: 1, most: count.min(9) },
        'a' => Part::Half,
        'X' | 'x' | 'Z' | 'V' | 'z' | 'O' => Part::Zone,
        other => {
            return Err(format!(
                "date pattern `{pattern}`: the letter `{other}` is not supported; put text into single quotes"
            ));
        }
    })
}

fn read_parts<'t>(parts: &[Part], mut text: &'t [u8], moment: &mut Moment) -> Option<&'t [u8]> {
    for part in parts {
        text = match part {
            Part::Text(expected) => text.strip_prefix(expected.as_slice())?,
            Part::Number { field, least, most } => read_number(*field, *least, *most, text, moment)?,
            Part::Month => {
                let (number, rest) = read_name(&MONTHS, text)?;
                moment.month = number as u32 + 1;
                rest
            }
            Part::Day => read_name(&DAYS, text)?.1,
            Part::Half => {
                let half = text.get(..2)?;
                moment.afternoon = Some(match half.to_ascii_lowercase().as_slice() {
                    b"am" => false,
                    b"pm" => true,
                    _ => return None,
                });
                &text[2..]
            }
            Part::Zone => {
                let (offset, rest) = read_zone(text)?;
                moment.offset = Some(offset);
                rest
            }
            Part::Optional(inner) => {
                let before = *moment;
                match read_parts(inner, text, moment) {
                    Some(rest) => rest,
                    None => {
                        *moment = before;
                        text
                    }
                }
            }
        };
    }
    Some(text)
}

fn read_number<'t>(field: Field, least: usize, most: usize, text: &'t [u8], moment: &mut Moment) -> Option<&'t [u8]> {
    let digits = text.iter().take(most).take_while(|byte| byte.is_ascii_digit()).count();
    if digits < least {
        return None;
    }
    let (number, rest) = text.split_at(digits);
    let value = number.iter().fold(0u32, |value, digit| value.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')));
    match field {
        Field::Year => moment.year = i32::try_from(value).ok()?,
        Field::ShortYear => moment.year = 2000 + i32::try_from(value).ok()?,
        Field::Month => moment.month = value,
        Field::Day => moment.day = value,
        Field::Hour => moment.hour = value,
        // 12 is the first hour of either half.
        Field::HalfHour => moment.hour = if (1..=12).contains(&value) { value % 12 } else { 99 },
        Field::Minute => moment.minute = value,
        Field::Second => moment.second = value,
        Field::Fraction => moment.micros = micros_of(number),
    }
    Some(rest)
}

/// The first six digits of a fraction; what a microsecond cannot hold is cut, as Spark does.
pub(crate) fn micros_of(digits: &[u8]) -> u32 {
    (0..6).fold(0, |value, at| value * 10 + digits.get(at).map_or(0, |digit| u32::from(digit - b'0')))
}

fn read_name<'t>(names: &[&str], text: &'t [u8]) -> Option<(usize, &'t [u8])> {
    let letters = text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let (word, rest) = text.split_at(letters);
    let fits = |name: &&str| {
        let name = name.as_bytes();
        word.len() >= 3
            && (word.len() == 3 || word.len() == name.len())
            && name[..word.len()].eq_ignore_ascii_case(word)
    };
    names.iter().position(fits).map(|at| (at, rest))
}

/// `Z`, `UTC`, `GMT`, or an offset with or without colon and minutes.
pub(crate) fn read_zone(text: &[u8]) -> Option<(i32, &[u8])> {
    for name in [b"UTC".as_slice(), b"GMT", b"Z"] {
        if let Some(rest) = text.strip_prefix(name) {
            return match rest.first() {
                Some(b'+' | b'-') => read_offset(rest),
                _ => Some((0, rest)),
            };
        }
    }
    read_offset(text)
}

fn read_offset(text: &[u8]) -> Option<(i32, &[u8])> {
    let sign = match text.first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, rest) = two_digits(&text[1..])?;
    let (minutes, rest) = match rest.strip_prefix(b":") {
        Some(after) => two_digits(after)?,
        None => two_digits(rest).unwrap_or((0, rest)),
    };
    (hours <= 18 && minutes < 60).then_some((sign * (hours * 3600 + minutes * 60) as i32, rest))
}

fn two_digits(text: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = text.split_at_checked(2)?;
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u32::from(byte - b'0'));
    Some((digit(number[0])? * 10 + digit(number[1])?, rest))
}

impl Moment {
    pub(crate) fn is_valid(&self) -> bool {
        (1..=12).contains(&self.month)
            && (1..=days_in(self.year, self.month)).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second < 60
    }

    /// Days since the epoch.
    pub(crate) fn days(&self) -> i32 {
        days_from_civil(self.year, self.month, self.day)
    }

    /// Microseconds since the epoch; text without a zone is read as UTC.
    pub(crate) fn micros(&self) -> i64 {
        let hour = self.hour + if self.afternoon == Some(true) && self.hour < 12 { 12 } else { 0 };
        let seconds = i64::from(self.days()) * 86_400 + i64::from(hour * 3600 + self.minute * 60 + self.second);
        (seconds - i64::from(self.offset.unwrap_or(0))) * 1_000_000 + i64::from(self.micros)
    }
}

fn days_in(year: i32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days since the epoch of a date of the Gregorian calendar, reckoned from the first of March.
fn days_from_civil(year: i32, month: u32, day: u32) -> i32 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = ((153 * ((month as i32 + 9) % 12) + 2) / 5) + day as i32 - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// A date `yyyy-MM-dd`; the rest of the text beside it.
fn iso_date(text: &[u8]) -> Option<(Moment, &[u8])> {
    let head = text.get(..10)?;
    if head[4] != b'-' || head[7] != b'-' {
        return None;
    }
    let number = |range: std::ops::Range<usize>| {
        head[range]
            .iter()
            .try_fold(0u32, |value, byte| byte.is_ascii_digit().then(|| value * 10 + u32::from(byte - b'0')))
    };
    let moment = Moment { year: number(0..4)? as i32, month: number(5..7)?, day: number(8..10)?, ..Moment::default() };
    moment.is_valid().then_some((moment, &text[10..]))
}

/// Days since the epoch of a date `yyyy-MM-dd`.
pub(crate) fn read_iso_date(text: &[u8]) -> Option<i32> {
    let (moment, rest) = iso_date(text)?;
    rest.is_empty().then(|| moment.days())
}

/// A time `yyyy-MM-dd[T| ]HH:mm[:ss[.S…]][zone]`, or a date alone.
pub(crate) fn read_iso_time(text: &[u8]) -> Option<Moment> {
    let (mut moment, rest) = iso_date(text)?;
    if rest.is_empty() {
        return Some(moment);
    }
    let rest = rest.strip_prefix(b"T").or_else(|| rest.strip_prefix(b" "))?;
    let (hour, rest) = two_digits(rest)?;
    let (minute, mut rest) = two_digits(rest.strip_prefix(b":")?)?;
    (moment.hour, moment.minute) = (hour, minute);
    if let Some(after) = rest.strip_prefix(b":") {
        let (second, after) = two_digits(after)?;
        moment.second = second;
        rest = after;
        if let Some(after) = rest.strip_prefix(b".") {
            let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if !(1..=9).contains(&digits) {
                return None;
            }
            moment.micros = micros_of(&after[..digits]);
            rest = &after[digits..];
        }
    }
    if !rest.is_empty() {
        let (offset, after) = read_zone(rest.strip_prefix(b" ").unwrap_or(rest))?;
        moment.offset = Some(offset);
        rest = after;
    }
    (rest.is_empty() && moment.is_valid()).then_some(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(pattern: &str, text: &str) -> Option<i64> {
        Pattern::new(pattern).unwrap().read(text.as_bytes()).map(|moment| moment.micros())
    }

    #[test]
    fn patterns_read_what_java_writes_with_them() {
        let expected = Some(1_749_234_506_197_000);
        let cases = [
            ("yyyyMMddHHmmssSSS", "20250606182826197"),
            ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "2025-06-06T18:28:26.197Z"),
            ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "2025-06-06T20:28:26.197+02:00"),
            ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "2025-06-06T18:28:26.197"),
            ("d.M.yyyy h:mm:ss.SSS a", "6.6.2025 6:28:26.197 PM"),
            ("EEE, dd MMM yyyy HH:mm:ss.SSS Z", "Fri, 06 Jun 2025 18:28:26.197 +0000"),
            ("dd/MM/yy HH:mm:ss.SSSSSS", "06/06/25 18:28:26.197"),
        ];
        for (pattern, text) in cases {
            assert_eq!(micros(pattern, text), expected, "{pattern} {text}");
        }
        assert_eq!(micros("yyyy-MM-dd HH:mm", "2025-06-06 18:28:26"), None, "what is left over is no time");
        assert_eq!(micros("yyyy-MM-dd", "2025-02-29"), None);
        assert_eq!(micros("h a", "12 AM"), Some(0));
        assert_eq!(micros("h a", "13 AM"), None);
    }

    #[test]
    fn a_prefix_is_enough_for_a_name() {
        let pattern = Pattern::new("'orders_'yyyyMMdd").unwrap();
        let (moment, rest) = pattern.read_prefix(b"orders_20250606.csv.gz").unwrap();
        assert_eq!((moment.days(), rest), (20_245, b".csv.gz".as_slice()));
        assert!(pattern.read_prefix(b"users_20250606").is_none());
    }

    #[test]
    fn a_letter_that_means_nothing_here_is_refused() {
        assert!(Pattern::new("orders_yyyy").unwrap_err().contains("letter `o`"));
        assert!(Pattern::new("[yyyy").unwrap_err().contains("not closed"));
        assert!(Pattern::new("yyyy'x").unwrap_err().contains("quote"));
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let days = |text: &str| read_iso_date(text.as_bytes());
        assert_eq!(days("1970-01-01"), Some(0));
        assert_eq!(days("2000-02-29"), Some(11_016));
        assert_eq!(days("1900-02-29"), None);
        assert_eq!(days("0001-01-01"), Some(-719_162));
        assert_eq!(days("9999-12-31"), Some(2_932_896));
        assert_eq!(days("2025-1-01"), None);
    }

    #[test]
    fn iso_times_are_read_with_and_without_seconds_fraction_and_zone() {
        let read = |text: &str| read_iso_time(text.as_bytes()).map(|moment| moment.micros());
        let base = 1_749_234_480_000_000;
        assert_eq!(read("2025-06-06 18:28"), Some(base));
        assert_eq!(read("2025-06-06T18:28:26.1234567Z"), Some(base + 26_123_456));
        assert_eq!(read("2025-06-06T18:28:00 +00:00"), Some(base));
        assert_eq!(read("2025-06-06T13:58:00-0430"), Some(base));
        assert_eq!(read("2025-06-06T24:00"), None);
        assert_eq!(read("2025-06-06T18:28:26."), None);
        assert_eq!(read("2025-06-06T18:28:26x"), None);
    }
}
