// SPDX-License-Identifier: Apache-2.0
//! A batch in a few lines: how it ended, a line for each source, a line for its commit.

use std::fmt::Write as _;

use tributary_api::coordinator::{BatchStatus, SourceStatus};
use tributary_types::{Cursor, Outcome, Stage};

use super::cursors::override_line;
use super::refused::refused_text;
use super::size;

/// Prints a batch in a few lines of at most a hundred columns, error messages aside.
pub(crate) fn print_brief(status: &BatchStatus) {
    print!("{}", brief(status));
}

fn brief(status: &BatchStatus) -> String {
    let mut text = String::new();
    let outcome = status.outcome.map_or("RUNNING", Outcome::as_str);
    // Writing into a string does not fail.
    let _ = writeln!(text, "outcome  {outcome}  {}", status.name);
    if let Some(error) = &status.error {
        let _ = writeln!(text, "  error   {} [{}]", error.message, error.reason);
    }
    for wanted in &status.overrides {
        let _ = writeln!(text, "  {}", override_line(wanted, status.outcome));
    }
    if status.outcome == Some(Outcome::NoNewData) {
        let ends = status.sources.iter().map(at);
        let _ = writeln!(text, "  nothing new: {}; {}", ends.collect::<Vec<_>>().join(", "), timings(status));
        text.push_str(&notices(status));
        return text;
    }
    let widest = status.sources.iter().map(|source| source.source.as_str().len()).max().unwrap_or_default();
    for source in &status.sources {
        let _ = writeln!(text, "  {:widest$}  {}", source.source.as_str(), reading(source));
    }
    text.push_str(&notices(status));
    if let Some(line) = refused_text(&status.refused) {
        let _ = writeln!(text, "  refused {line}");
    }
    match (status.outcome, &status.instant) {
        (Some(Outcome::Committed), Some(instant)) => {
            let written = &status.written;
            let seq = status.seq.map_or("-".to_string(), |seq| seq.to_string());
            let _ = writeln!(
                text,
                "  commit {instant}, seq {seq}: {} rows ({} new), {} files, {} in {}",
                written.rows,
                written.inserts,
                written.files,
                size(written.bytes),
                timings(status)
            );
        }
        _ => {
            let _ = writeln!(text, "  {}", timings(status));
        }
    }
    text
}

/// What may be a mistake, a line for each source.
fn notices(status: &BatchStatus) -> String {
    let told = status.sources.iter().filter_map(|source| Some((&source.source, source.report.notice.as_ref()?)));
    told.map(|(source, what)| format!("  {source}: {what}\n")).collect()
}

/// `orders at 20250606182826197`.
fn at(source: &SourceStatus) -> String {
    match &source.window {
        Some(window) => format!("{} at {}", source.source, place(&window.end)),
        None => format!("{} looked up", source.source),
    }
}

/// What was read of a source. The end of the window is the cursor after the batch.
fn reading(source: &SourceStatus) -> String {
    let report = &source.report;
    let read = format!("{} files, {}, {} rows", report.files, size(report.bytes), source.rows);
    let Some(window) = &source.window else { return format!("looked up: {read}") };
    let clock = match window.end {
        Cursor::Requested(_) => " requested",
        Cursor::Completed(_) | Cursor::File(_) | Cursor::Offsets(_) => "",
    };
    let (begin, commits) = match &window.begin {
        Some(begin) => (place(begin), format!("{} commits", report.instants)),
        None if report.instants == 0 => ("start".to_string(), "the table".to_string()),
        None => ("start".to_string(), format!("{} commits", report.instants)),
    };
    if matches!(window.end, Cursor::Offsets(_)) {
        let (messages, partitions) = (report.instants, report.files);
        return format!(
            "to {}: {messages} messages of {partitions} partitions, {} rows",
            place(&window.end),
            source.rows
        );
    }
    if matches!(window.end, Cursor::File(_)) {
        return format!("({begin}, {}]: {read}", place(&window.end));
    }
    format!("({begin}, {}]{clock}: {commits}, {read}", place(&window.end))
}

/// A cursor without its clock.
fn place(cursor: &Cursor) -> String {
    cursor.instant().map_or_else(|| cursor.to_string(), ToString::to_string)
}

/// The whole time, and that of the merge.
fn timings(status: &BatchStatus) -> String {
    let whole: u64 = status.timings.iter().map(|(_, millis)| millis).sum();
    let merging = status.timings.iter().filter(|(stage, _)| *stage == Stage::Merge);
    match merging.map(|(_, millis)| millis).sum::<u64>() {
        0 => format!("{whole} ms"),
        merge => format!("{whole} ms (merge {merge})"),
    }
}

#[cfg(test)]
mod tests {
    use tributary_api::coordinator::{Failure, Written};
    use tributary_api::timeline::WindowReport;
    use tributary_types::{BatchName, Code, PipelineName, RequestId, Retry, SourceName, Window};

    use super::*;

    fn source(name: &str, window: Option<(Option<&str>, &str)>) -> SourceStatus {
        let cursor = |text: &str| text.parse::<Cursor>().unwrap();
        SourceStatus {
            source: SourceName::new(name).unwrap(),
            window: window.map(|(begin, end)| Window { begin: begin.map(cursor), end: cursor(end) }),
            report: WindowReport { instants: 2, files: 3, bytes: 1_300_000, ..WindowReport::default() },
            rows: 12_345,
            bytes_read: 0,
        }
    }

    fn status(outcome: Outcome) -> BatchStatus {
        let request = "019e7b2c-0000-7000-8000-000000000001";
        BatchStatus {
            name: BatchName::new(format!("orders_enriched/{request}")).unwrap(),
            pipeline: PipelineName::new("orders_enriched").unwrap(),
            request: RequestId::new(request).unwrap(),
            asked_by: String::new(),
            stage: Stage::Done,
            outcome: Some(outcome),
            instant: Some("20250606182826199".parse().unwrap()),
            completed: Some("20250606182826299".parse().unwrap()),
            seq: Some(2),
            sources: vec![
                source("orders", Some((Some("completed:20250606182826197"), "completed:20250606182826198"))),
                source("users", None),
                source("old", Some((None, "requested:20250606182826198"))),
            ],
            overrides: Vec::new(),
            written: Written { rows: 12_345, inserts: 12_000, files: 12, bytes: 1_300_000, ..Written::default() },
            refused: Default::default(),
            timings: vec![(Stage::Plan, 10), (Stage::Merge, 2000), (Stage::Commit, 300)],
            peak_memory: 0,
            error: None,
            started_millis: 0,
        }
    }

    #[test]
    fn a_committed_batch_takes_a_line_for_each_source_and_two_more() {
        let text = brief(&status(Outcome::Committed));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[0].starts_with("outcome  COMMITTED  orders_enriched/019e"), "{text}");
        let orders = "  orders  (20250606182826197, 20250606182826198]: 2 commits, 3 files, 1.2 MiB, 12345 rows";
        assert_eq!(lines[1], orders);
        assert!(lines[2].starts_with("  users   looked up: 3 files"), "{text}");
        assert!(lines[3].starts_with("  old     (start, 20250606182826198] requested: 2 commits"), "{text}");
        let commit =
            "  commit 20250606182826199, seq 2: 12345 rows (12000 new), 12 files, 1.2 MiB in 2310 ms (merge 2000)";
        assert_eq!(lines[4], commit);
        assert!(lines.iter().all(|line| line.len() <= 100), "{text}");
    }

    #[test]
    fn a_batch_without_news_takes_two_lines_that_say_where_the_cursors_stand() {
        let text = brief(&status(Outcome::NoNewData));
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("nothing new: orders at 20250606182826198, users looked up"), "{text}");
    }

    #[test]
    fn a_failed_batch_says_why() {
        let mut failed = status(Outcome::Failed);
        let (code, retry) = (Code::Unavailable, Retry::Again);
        let message = "the store is away".to_string();
        failed.error = Some(Failure { code, retry, reason: "STORE_UNAVAILABLE".to_string(), message });
        let text = brief(&failed);
        assert!(text.contains("error   the store is away [STORE_UNAVAILABLE]"), "{text}");
        assert!(!text.contains("commit 2025"), "{text}");
    }
}
