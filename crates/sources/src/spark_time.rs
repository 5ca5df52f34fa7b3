// SPDX-License-Identifier: Apache-2.0
//! Dates and times in every form in which Spark reads text without a pattern: with digits left out, white space around
//! them, and of a time only its date. Forms are those of `DateTimeUtils.stringToDate` and `stringToTimestamp` in Spark
//! 3.5, but for years of more than four digits, times without a date, and zones by name.

use crate::pattern::{Moment, micros_of, read_zone};

/// Days since the epoch of a date, or of the day that a time is on.
pub(crate) fn read_date(text: &[u8]) -> Option<i32> {
    let (moment, parts, rest) = day_of(trimmed(text))?;
    let over = match rest.first() {
        None => true,
        Some(byte) => parts == 3 && matches!(byte, b' ' | b'T'),
    };
    (over && moment.is_valid()).then(|| moment.days())
}

/// A time, or the beginning of a day, month or year.
pub(crate) fn read_time(text: &[u8]) -> Option<Moment> {
    let (mut moment, parts, rest) = day_of(trimmed(text))?;
    if !rest.is_empty() {
        let after = rest.strip_prefix(b"T").or_else(|| rest.strip_prefix(b" ")).filter(|_| parts == 3)?;
        read_clock(after, &mut moment)?;
    }
    moment.is_valid().then_some(moment)
}

/// `h[:m[:s[.fraction][zone]]]`, of one or two digits each.
fn read_clock(text: &[u8], moment: &mut Moment) -> Option<()> {
    let (hour, rest) = digits(text, 1, 2)?;
    moment.hour = hour;
    if rest.is_empty() {
        return Some(());
    }
    let (minute, rest) = digits(rest.strip_prefix(b":")?, 1, 2)?;
    moment.minute = minute;
    if rest.is_empty() {
        return Some(());
    }
    let (second, mut rest) = digits(rest.strip_prefix(b":")?, 1, 2)?;
    moment.second = second;
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        moment.micros = micros_of(&fraction[..count]);
        rest = &fraction[count..];
    }
    if rest.is_empty() {
        return Some(());
    }
    let (offset, rest) = read_zone(trimmed(rest))?;
    moment.offset = Some(offset);
    rest.is_empty().then_some(())
}

/// `yyyy[-m[-d]]`: the day, how many parts of it there are, and the rest of the text.
fn day_of(text: &[u8]) -> Option<(Moment, u32, &[u8])> {
    let mut moment = Moment::default();
    let (year, rest) = digits(text, 4, 4)?;
    moment.year = i32::try_from(year).ok()?;
    let Some(after) = rest.strip_prefix(b"-") else { return Some((moment, 1, rest)) };
    let (month, rest) = digits(after, 1, 2)?;
    moment.month = month;
    let Some(after) = rest.strip_prefix(b"-") else { return Some((moment, 2, rest)) };
    let (day, rest) = digits(after, 1, 2)?;
    moment.day = day;
    Some((moment, 3, rest))
}

/// A number of so many digits, which no digit follows.
fn digits(text: &[u8], least: usize, most: usize) -> Option<(u32, &[u8])> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count < least || count > most {
        return None;
    }
    let (number, rest) = text.split_at(count);
    Some((number.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0')), rest))
}

/// Text without white space and control characters around it, as Spark trims it.
fn trimmed(text: &[u8]) -> &[u8] {
    let begin = text.iter().take_while(|byte| **byte <= b' ').count();
    let end = text.len() - text[begin..].iter().rev().take_while(|byte| **byte <= b' ').count();
    &text[begin..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::read_iso_time;

    #[test]
    fn dates_are_read_with_digits_left_out_and_of_a_time_only_the_day() {
        let day = read_date(b"2025-01-05");
        assert_eq!(day, Some(20_093));
        for text in ["2025-1-5", " 2025-01-05 ", "2025-01-05 10:00:00", "2025-01-05T", "2025-01-5 what"] {
            assert_eq!(read_date(text.as_bytes()), day, "{text}");
        }
        assert_eq!(read_date(b"2025"), read_date(b"2025-01-01"));
        assert_eq!(read_date(b"2025-3"), read_date(b"2025-03-01"));
        for text in
            ["", " ", "25-1-1", "20250105", "2025-001-05", "2025-13-01", "2025-02-29", "2025-01-05x", "2025 x", "x"]
        {
            assert_eq!(read_date(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn times_are_read_with_digits_and_parts_left_out() {
        let same = [
            ("2025-1-5 1:2:3", "2025-01-05T01:02:03"),
            ("2025-01-05 1:2:3.45+02:00", "2025-01-05T01:02:03.45+02:00"),
            ("2025-01-05T01:02:03.123456789Z", "2025-01-05T01:02:03.123456Z"),
            (" 2025-01-05 10:20 ", "2025-01-05T10:20:00"),
            ("2025-01-05 10", "2025-01-05T10:00:00"),
            ("2025-01-05 10:20:30 UTC", "2025-01-05T10:20:30Z"),
            ("2025-01-05 10:20:30.", "2025-01-05T10:20:30"),
            ("2025-01", "2025-01-01"),
        ];
        for (text, iso) in same {
            let micros = |moment: Option<Moment>| moment.map(|moment| moment.micros());
            assert_eq!(micros(read_time(text.as_bytes())), micros(read_iso_time(iso.as_bytes())), "{text}");
            assert!(read_time(text.as_bytes()).is_some(), "{text}");
        }
        for text in [
            "2025-01-05T",
            "2025-01-05 24:00:00",
            "2025-01-05 10:61",
            "2025-01 10:00:00",
            "10:00:00",
            "2025-01-05 10:00Z",
        ] {
            assert_eq!(read_time(text.as_bytes()), None, "{text}");
        }
    }
}
