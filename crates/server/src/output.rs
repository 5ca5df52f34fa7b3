// SPDX-License-Identifier: Apache-2.0
//! What the commands print: for people, or one JSON object a line for scripts.

mod brief;
mod cursors;
mod json_rows;
mod pipelines;
mod refused;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tributary_api::coordinator::{BatchStatus, Coordinator, PlannedBatch, SourceStatus, Written};
use tributary_hudi::{CommitMetadata, Instant};
use tributary_types::{
    BatchName, Cursor, CursorKind, FLAT_KEY, FLAT_KEY_V2, InstantTime, Outcome, Stage, pipeline_of_key,
};

use crate::cli::Output;
use crate::commands::Failed;
use crate::telemetry::bars;

pub(crate) use self::brief::print_brief;
use self::cursors::{OverrideJson, override_json, override_line};
pub(crate) use self::cursors::{print_cursors, print_history, print_overrides};
pub(crate) use self::pipelines::{print_deleted, print_stored, print_stored_list};
use self::refused::{RefusedJson, refused_json, refused_text};

/// A progress bar on a terminal; nothing elsewhere.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

/// Stages in the order in which a batch passes them.
const STAGES: [Stage; 8] = [
    Stage::Pending,
    Stage::Resolve,
    Stage::Plan,
    Stage::Begin,
    Stage::Merge,
    Stage::Commit,
    Stage::Publish,
    Stage::Done,
];

impl Progress {
    pub(crate) fn new(output: Output) -> Self {
        if output == Output::Json || !std::io::stderr().is_terminal() {
            return Progress { bar: None };
        }
        let bar = ProgressBar::new(STAGES.len() as u64 - 1);
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {msg} {elapsed}") {
            bar.set_style(style);
        }
        let bar = bars::add(bar);
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        Progress { bar: Some(bar) }
    }

    pub(crate) fn show(&mut self, status: &BatchStatus) {
        let Some(bar) = &self.bar else { return };
        let done = STAGES.iter().position(|stage| *stage == status.stage).unwrap_or_default();
        let rows: u64 = status.sources.iter().map(|source| source.rows).sum();
        bar.set_position(done as u64);
        let bytes: u64 = status.sources.iter().map(|source| source.bytes_read).sum();
        let stage = status.stage.as_str().to_lowercase();
        bar.set_message(format!("{stage} ({rows} rows, {} read)", size(bytes)));
    }

    pub(crate) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// A batch as scripts see it.
#[derive(Serialize)]
struct BatchJson<'a> {
    batch: String,
    asked_by: &'a str,
    /// When it started, milliseconds since the epoch.
    started_millis: i64,
    stage: &'a str,
    /// Null while it runs.
    outcome: Option<&'a str>,
    instant: Option<String>,
    completed: Option<String>,
    seq: Option<u64>,
    rows: u64,
    inserts: u64,
    updates: u64,
    files: u64,
    bytes: u64,
    combined: u64,
    outdated: u64,
    without_key: u64,
    deletes: u64,
    absent: u64,
    replaced_groups: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<RefusedJson<'a>>,
    peak_memory: u64,
    sources: Vec<SourceJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<OverrideJson>,
    timings_millis: BTreeMap<&'a str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorJson<'a>>,
}

#[derive(Serialize)]
struct SourceJson {
    name: String,
    begin: Option<String>,
    end: Option<String>,
    instants: usize,
    files: usize,
    bytes: u64,
    rows: u64,
    /// Bytes in memory of the rows read so far.
    bytes_read: u64,
    lag_instants: usize,
    lag_seconds: u64,
    /// Requested times of the commits that the window begins after and ends with: the other clock of a cursor.
    begin_requested: Option<String>,
    end_requested: Option<String>,
    oldest_pending: Option<String>,
    /// The pending instant that completed commits wait for.
    waits_for: Option<String>,
    /// Commits that archiver and cleaner may still pass before the next batch could not be read.
    headroom_instants: usize,
    not_a_cut: bool,
    /// Why the source was left out of the batch.
    skipped: Option<String>,
    /// Whether its cursor was stale, so that the whole table was read and deletes in the gap are lost.
    gap: bool,
    /// Files behind the cursor that are read, and that are left out: the first ones, and how many are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    late_files: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
    left_out_files: u64,
    /// What looks like no news and may be a mistake.
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<String>,
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    code: String,
    retry: String,
    reason: &'a str,
    message: &'a str,
}

fn source_json(source: &SourceStatus) -> SourceJson {
    let window = source.window.as_ref();
    SourceJson {
        name: source.source.to_string(),
        begin: window.and_then(|window| window.begin.as_ref().map(ToString::to_string)),
        end: window.map(|window| window.end.to_string()),
        instants: source.report.instants,
        files: source.report.files,
        bytes: source.report.bytes,
        rows: source.rows,
        bytes_read: source.bytes_read,
        lag_instants: source.report.lag_instants,
        lag_seconds: source.report.lag_seconds,
        begin_requested: source.report.begin_requested.as_ref().map(ToString::to_string),
        end_requested: source.report.end_requested.as_ref().map(ToString::to_string),
        oldest_pending: source.report.oldest_pending.as_ref().map(ToString::to_string),
        waits_for: source.report.waits_for.as_ref().map(ToString::to_string),
        headroom_instants: source.report.headroom_instants,
        not_a_cut: source.report.not_a_cut,
        skipped: source.report.skipped.clone(),
        gap: source.report.gap,
        late_files: source.report.late_files.clone(),
        left_out: source.report.left_out.clone(),
        left_out_files: source.report.left_out_files,
        notice: source.report.notice.clone(),
    }
}

/// Follows a batch to its end, showing how far it is.
pub(crate) async fn follow(
    coordinator: &dyn Coordinator,
    name: &BatchName,
    mut progress: Progress,
) -> Result<BatchStatus, Failed> {
    let mut watch = coordinator.watch_batch(name).await?;
    loop {
        let status = watch.borrow_and_update().clone();
        progress.show(&status);
        if status.outcome.is_some() {
            progress.end();
            return Ok(status);
        }
        if watch.changed().await.is_err() {
            let message = format!(
                "batch `{name}` cannot be followed any more and its outcome is not known here; ask for it again by \
                 its name, or run the request again with the same request id"
            );
            return Err(Failed { message, exit_code: Outcome::Unknown.exit_code() });
        }
    }
}

/// Prints batches, one a line.
pub(crate) fn print_batches(batches: &[BatchStatus], output: Output) {
    if output == Output::Json {
        batches.iter().for_each(|status| print_json(&batch_json(status)));
        return;
    }
    let widest = batches.iter().map(|status| status.name.as_str().len()).max().unwrap_or_default();
    for status in batches {
        let state = status.outcome.map_or_else(|| status.stage.as_str().to_lowercase(), |o| o.as_str().to_string());
        let instant = status.instant.as_ref().map_or("-", InstantTime::as_str);
        println!("{:widest$}  {state:<11}  {instant:<17}  {} rows", status.name.as_str(), status.written.rows);
    }
}

/// Prints a batch: how it ended, or where it is.
pub(crate) fn print_batch(status: &BatchStatus, output: Output) {
    match output {
        Output::Json => print_json(&batch_json(status)),
        Output::Text => print_batch_text(status),
    }
}

fn batch_json(status: &BatchStatus) -> BatchJson<'_> {
    let mut timings: BTreeMap<&str, u64> = BTreeMap::new();
    for (stage, millis) in &status.timings {
        *timings.entry(stage.as_str()).or_default() += millis;
    }
    BatchJson {
        batch: status.name.to_string(),
        asked_by: &status.asked_by,
        started_millis: status.started_millis,
        stage: status.stage.as_str(),
        outcome: status.outcome.map(Outcome::as_str),
        instant: status.instant.as_ref().map(ToString::to_string),
        completed: status.completed.as_ref().map(ToString::to_string),
        seq: status.seq,
        rows: status.written.rows,
        inserts: status.written.inserts,
        updates: status.written.updates,
        files: status.written.files,
        bytes: status.written.bytes,
        combined: status.written.combined,
        outdated: status.written.outdated,
        without_key: status.written.without_key,
        deletes: status.written.deletes,
        absent: status.written.absent,
        replaced_groups: status.written.replaced_groups,
        refused: refused_json(&status.refused),
        peak_memory: status.peak_memory,
        sources: status.sources.iter().map(source_json).collect(),
        overrides: status.overrides.iter().map(|it| override_json(it, status.outcome)).collect(),
        timings_millis: timings,
        error: status.error.as_ref().map(|failure| ErrorJson {
            code: format!("{:?}", failure.code),
            retry: format!("{:?}", failure.retry),
            reason: &failure.reason,
            message: &failure.message,
        }),
    }
}

fn print_batch_text(status: &BatchStatus) {
    println!("batch    {}", status.name);
    match status.outcome {
        Some(outcome) => println!("outcome  {}", outcome.as_str()),
        None => println!("running  {}", status.stage.as_str().to_lowercase()),
    }
    if !status.asked_by.is_empty() {
        println!("asked by {}", status.asked_by);
    }
    if let Some(error) = &status.error {
        println!("error    {} [{}]", error.message, error.reason);
    }
    for source in &status.sources {
        print_source(source);
    }
    for status_of in &status.overrides {
        println!("{}", override_line(status_of, status.outcome));
    }
    if let (Some(Outcome::Committed), Some(instant)) = (status.outcome, &status.instant) {
        let completed = status.completed.as_ref().map_or("-".to_string(), ToString::to_string);
        let seq = status.seq.map_or("-".to_string(), |seq| seq.to_string());
        println!("commit   {instant}, completed {completed}, sequence number {seq}");
        let written = &status.written;
        println!(
            "written  {} rows ({} new, {} updated{}) in {} files, {}{}",
            written.rows,
            written.inserts,
            written.updates,
            if written.deletes > 0 { format!(", {} deleted", written.deletes) } else { String::new() },
            written.files,
            size(written.bytes),
            if written.replaced_groups > 0 {
                format!(", {} file groups replaced", written.replaced_groups)
            } else {
                String::new()
            }
        );
        if let Some(line) = left_out(written) {
            println!("left out {line}");
        }
    }
    if let Some(line) = refused_text(&status.refused) {
        println!("refused  {line}");
    }
    let timings: Vec<String> =
        status.timings.iter().map(|(stage, ms)| format!("{} {ms} ms", stage.as_str().to_lowercase())).collect();
    println!("timings  {}", timings.join(", "));
}

/// Which rows of the query's result did not become rows of the target; `None`: all did.
fn left_out(written: &Written) -> Option<String> {
    let reasons = [
        (written.combined, "lost against another row of their key"),
        (written.outdated, "older than the stored row"),
        (written.without_key, "without a key"),
        (written.absent, "deleting a record that is not there"),
    ];
    let told: Vec<String> =
        reasons.iter().filter(|(rows, _)| *rows > 0).map(|(rows, why)| format!("{rows} rows {why}")).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

fn print_source(source: &SourceStatus) {
    source_lines(source).iter().for_each(|line| println!("{line}"));
}

/// What is said of a source: its window, and then whatever about it somebody may have to look at.
fn source_lines(source: &SourceStatus) -> Vec<String> {
    let (name, report) = (&source.source, &source.report);
    let read = format!("{} files, {}, {} rows", report.files, size(report.bytes), source.rows);
    let Some(window) = &source.window else {
        let notice = report.notice.iter().map(|what| format!("         {name}: {what}"));
        return std::iter::once(format!("source   {name}: looked up, {read}")).chain(notice).collect();
    };
    let mut lines = vec![match window.end {
        Cursor::File(_) => format!("source   {name}: window {window}, {read}, lag {} files", report.lag_instants),
        Cursor::Offsets(_) => format!(
            "source   {name}: window {window}, at most {} messages of {} partitions, {} rows, lag {} messages",
            report.instants, report.files, source.rows, report.lag_instants
        ),
        Cursor::Requested(_) | Cursor::Completed(_) => format!(
            "source   {name}: window {window}, {} commits, {read}, lag {} commits ({} s), headroom {} commits",
            report.instants, report.lag_instants, report.lag_seconds, report.headroom_instants
        ),
    }];
    let mut more = |what: String| lines.push(format!("         {name}: {what}"));
    let requested = [("begins after", &report.begin_requested), ("ends with", &report.end_requested)];
    let requested = requested.into_iter().filter_map(|(what, at)| at.as_ref().map(|at| format!("{what} {at}")));
    let requested: Vec<String> = requested.collect();
    if window.end.kind() == CursorKind::Completed && !requested.is_empty() {
        more(format!("by requested time it {}", requested.join(" and ")));
    }
    if let Some(what) = &report.notice {
        more(what.clone());
    }
    if report.gap {
        more("its cursor was stale: the whole table is read, and deletes since then are lost".to_string());
    }
    if let Some(why) = &report.skipped {
        more(format!("left out, its cursor stays: {why}"));
    }
    match (&report.waits_for, &report.oldest_pending) {
        (Some(hole), _) => more(format!("commits after {hole} wait until it completes or is rolled back")),
        (None, Some(pending)) => more(format!("oldest pending commit {pending}")),
        (None, None) => {}
    }
    if report.not_a_cut {
        more(
            match window.end {
                Cursor::Offsets(_) => "not a cut: `kafka.max_events` ends it before the time at which other sources end",
                _ => "not a cut: its commits are ordered by request, or its files by name, those of other sources by time",
            }
            .to_string(),
        );
    }
    if !report.late_files.is_empty() {
        more(format!("behind the cursor, and read: {}", report.late_files.join(", ")));
    }
    if report.left_out_files > 0 && matches!(window.end, Cursor::Offsets(_)) {
        more(format!("{} offsets are gone and lost: {}", report.left_out_files, report.left_out.join(", ")));
    } else if report.left_out_files > 0 {
        more(format!("{} behind the cursor, left out: {}", report.left_out_files, report.left_out.join(", ")));
    }
    lines
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// Prints a plan.
pub(crate) fn print_plan(plan: &PlannedBatch, output: Output) {
    if output == Output::Json {
        let sources: Vec<SourceJson> = plan.sources.iter().map(source_json).collect();
        print_json(&serde_json::json!({
            "has_news": plan.has_news,
            "sources": sources,
            "overrides": plan.overrides.iter().map(|it| override_json(it, None)).collect::<Vec<_>>(),
            "columns": plan.columns.iter().map(|(n, t)| serde_json::json!({"name": n, "type": t})).collect::<Vec<_>>(),
            "logical_plan": plan.logical_plan,
            "physical_plan": plan.physical_plan,
        }));
        return;
    }
    println!("news     {}", if plan.has_news { "yes" } else { "no" });
    plan.sources.iter().for_each(print_source);
    plan.overrides.iter().for_each(|status| println!("{}", override_line(status, None)));
    println!("columns");
    for (name, data_type) in &plan.columns {
        println!("  {name}: {data_type}");
    }
    println!("logical plan\n{}", indented(&plan.logical_plan));
    println!("physical plan\n{}", indented(&plan.physical_plan));
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect::<String>().trim_end().to_string()
}

/// A table as `table inspect` shows it.
#[derive(Serialize)]
pub(crate) struct TableReport {
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) version: u32,
    pub(crate) table_type: String,
    pub(crate) record_key: Vec<String>,
    pub(crate) partition_by: Vec<String>,
    pub(crate) ordering: Vec<String>,
    pub(crate) metadata_partitions: Vec<String>,
    pub(crate) pending: Vec<String>,
    pub(crate) commits: Vec<CommitLine>,
}

/// One completed write.
#[derive(Serialize)]
pub(crate) struct CommitLine {
    requested: String,
    completed: Option<String>,
    action: String,
    operation: String,
    files: usize,
    rows: i64,
    /// Cursors by metadata key: structured ones as JSON, flat ones as text.
    cursors: BTreeMap<String, serde_json::Value>,
}

impl CommitLine {
    /// `layout` is that of the timeline: on layout 1 nothing says when a commit completed.
    pub(crate) fn new(layout: u32, instant: &Instant, metadata: &CommitMetadata) -> Self {
        let is_cursor = |key: &str| pipeline_of_key(key).is_some() || key == FLAT_KEY || key == FLAT_KEY_V2;
        let cursors = metadata.extra.iter().filter(|(key, _)| is_cursor(key)).map(|(key, text)| {
            let value = serde_json::from_str(text).ok().filter(serde_json::Value::is_object);
            (key.clone(), value.unwrap_or_else(|| serde_json::Value::String(text.clone())))
        });
        CommitLine {
            requested: instant.requested.to_string(),
            completed: instant.completed.as_ref().filter(|_| layout > 1).map(ToString::to_string),
            action: instant.action.as_str().to_string(),
            operation: metadata.operation.clone(),
            files: metadata.stats.len(),
            rows: metadata.stats.iter().map(|stat| stat.inserts + stat.updates).sum(),
            cursors: cursors.collect(),
        }
    }
}

/// Prints a table's report.
pub(crate) fn print_table(report: &TableReport, output: Output) {
    if output == Output::Json {
        print_json(report);
        return;
    }
    println!("table    {} ({}, version {}) at {}", report.name, report.table_type, report.version, report.url);
    println!("key      {}", report.record_key.join(", "));
    println!("parts    {}", report.partition_by.join(", "));
    println!("ordering {}", report.ordering.join(", "));
    println!("metadata {}", report.metadata_partitions.join(", "));
    for pending in &report.pending {
        println!("pending  {pending}");
    }
    for commit in &report.commits {
        let completed = commit.completed.as_deref().unwrap_or("-");
        println!(
            "commit   {} -> {completed} {} {}: {} files, {} rows written",
            commit.requested, commit.action, commit.operation, commit.files, commit.rows
        );
        for (key, value) in &commit.cursors {
            match value.get("sources").and_then(serde_json::Value::as_object) {
                Some(sources) => {
                    for (name, source) in sources {
                        let cursor = source.get("cursor").or(source.get("as_of")).and_then(|c| c.as_str());
                        println!("           {key}  {name} = {}", cursor.unwrap_or("-"));
                    }
                    if let Some(operators) = value.get("operators").and_then(serde_json::Value::as_object) {
                        let one = |(column, operator): (&String, &serde_json::Value)| {
                            format!("{column} by {}", operator.as_str().unwrap_or("?"))
                        };
                        let merged: Vec<String> = operators.iter().map(one).collect();
                        println!("           {key}  merged: {}", merged.join(", "));
                    }
                }
                None => println!("           {key}  {}", value.as_str().unwrap_or_default()),
            }
        }
    }
}

/// Prints rows.
pub(crate) fn print_rows(batches: &[RecordBatch], output: Output) -> Result<(), ArrowError> {
    if output == Output::Text {
        println!("{}", arrow::util::pretty::pretty_format_batches(batches)?);
        return Ok(());
    }
    json_rows::write_rows(batches, std::io::stdout())
}

pub(crate) fn print_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("error: the result cannot be printed as JSON: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use tributary_api::timeline::WindowReport;
    use tributary_hudi::Timeline;
    use tributary_types::{SourceName, Window};

    use super::*;

    #[test]
    fn rows_that_were_left_out_are_told_with_the_reason_and_nothing_otherwise() {
        assert_eq!(left_out(&Written { rows: 9, ..Written::default() }), None);
        let written = Written { combined: 2, without_key: 1, ..Written::default() };
        assert_eq!(
            left_out(&written).as_deref(),
            Some("2 rows lost against another row of their key, 1 rows without a key")
        );
    }

    #[test]
    fn the_text_of_a_source_names_headroom_lag_what_it_waits_for_and_why_it_was_left_out() {
        let at = |text: &str| Some(text.parse().unwrap());
        let status = |cursor: &str, change: fn(&mut WindowReport)| {
            let mut report = WindowReport {
                lag_instants: 3,
                lag_seconds: 61,
                headroom_instants: 7,
                oldest_pending: "20250101000000005".parse().ok(),
                ..WindowReport::default()
            };
            change(&mut report);
            let window = Some(Window { begin: None, end: cursor.parse().unwrap() });
            SourceStatus { source: SourceName::new("orders").unwrap(), window, report, rows: 0, bytes_read: 0 }
        };
        let six = status("requested:20250101000000004", |_| {});
        let text = source_lines(&six).join("\n");
        for part in ["lag 3 commits (61 s)", "headroom 7 commits", "oldest pending commit 20250101000000005"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let mut blocked = six;
        blocked.report.waits_for = at("20250101000000005");
        blocked.report.skipped = Some("column `a` is Utf8".to_string());
        let text = source_lines(&blocked).join("\n");
        for part in ["commits after 20250101000000005 wait", "left out, its cursor stays: column `a` is Utf8"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let topic = status("offsets:clicks,0:42,1:17", |report| {
            (report.instants, report.files, report.left_out_files) = (59, 2, 3);
            report.left_out = vec!["partition 1: offsets 4 to 6".to_string()];
        });
        let text = source_lines(&topic).join("\n");
        for part in [
            "window (start, offsets:clicks,0:42,1:17], at most 59 messages of 2 partitions, 0 rows, lag 3 messages",
            "3 offsets are gone and lost: partition 1: offsets 4 to 6",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let nine = status("completed:20250101000000009", |report| {
            report.begin_requested = "20250101000000001".parse().ok();
            report.end_requested = "20250101000000008".parse().ok();
        });
        let text = source_lines(&nine).join("\n");
        assert!(text.contains("begins after 20250101000000001 and ends with 20250101000000008"), "{text}");
    }

    #[test]
    fn a_commit_of_version_six_has_no_completion_time() {
        let shown = |layout: u32, name: &str| {
            let timeline = Timeline::from_names("d", layout, [name]);
            let line = CommitLine::new(layout, &timeline.instants()[0], &CommitMetadata::default());
            (line.requested, line.completed)
        };
        let (requested, completed) = ("20250101000000001".to_string(), "20250101000000009".to_string());
        assert_eq!(shown(1, "20250101000000001.commit"), (requested.clone(), None));
        assert_eq!(shown(2, "20250101000000001_20250101000000009.commit"), (requested, Some(completed)));
    }
}
