// SPDX-License-Identifier: Apache-2.0
//! Rows that went to the error table.

use serde::Serialize;
use tributary_api::coordinator::Refused;

/// Refused rows as scripts see them.
#[derive(Serialize)]
pub(super) struct RefusedJson<'a> {
    rows: u64,
    /// The error table's commit; null where it was not made.
    instant: Option<&'a str>,
    counts: Vec<CountJson<'a>>,
}

#[derive(Serialize)]
struct CountJson<'a> {
    source: &'a str,
    reason: &'a str,
    rows: u64,
}

/// `None`: no row was refused.
pub(super) fn refused_json(refused: &Refused) -> Option<RefusedJson<'_>> {
    let counts =
        refused.counts.iter().map(|count| CountJson { source: &count.source, reason: &count.reason, rows: count.rows });
    (refused.rows() > 0).then(|| RefusedJson {
        rows: refused.rows(),
        instant: refused.instant.as_ref().map(|instant| instant.as_str()),
        counts: counts.collect(),
    })
}

/// `3 rows: 2 of notes (BAD_RECORD), 1 of <result> (NULL_KEY); commit 20250606182826196 of the error table`.
pub(super) fn refused_text(refused: &Refused) -> Option<String> {
    if refused.rows() == 0 {
        return None;
    }
    let counts = refused.counts.iter().map(|count| format!("{} of {} ({})", count.rows, count.source, count.reason));
    let counts: Vec<String> = counts.collect();
    let place = match &refused.instant {
        Some(instant) => format!("commit {instant} of the error table"),
        None => "not in the error table".to_string(),
    };
    Some(format!("{} rows: {}; {place}", refused.rows(), counts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_rows_are_told_with_their_reasons_and_where_they_are() {
        let mut refused = Refused::default();
        assert_eq!(refused_text(&refused), None);
        assert!(refused_json(&refused).is_none());
        refused.add("notes", "BAD_RECORD", 1);
        refused.add("<result>", "NULL_KEY", 1);
        refused.add("notes", "BAD_RECORD", 1);
        let text = refused_text(&refused).unwrap();
        assert_eq!(text, "3 rows: 2 of notes (BAD_RECORD), 1 of <result> (NULL_KEY); not in the error table");
        refused.instant = Some("20250606182826196".parse().unwrap());
        assert!(refused_text(&refused).unwrap().ends_with("commit 20250606182826196 of the error table"));
        let json = serde_json::to_value(refused_json(&refused).unwrap()).unwrap();
        assert_eq!((json["rows"].as_u64(), json["counts"][0]["reason"].as_str()), (Some(3), Some("BAD_RECORD")));
        assert_eq!(json["instant"].as_str(), Some("20250606182826196"));
    }
}
