// SPDX-License-Identifier: Apache-2.0
//! What the commands print: for people, or one JSON object a line for scripts.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tributary_api::coordinator::{BatchStatus, Coordinator, PlannedBatch, SourceStatus};
use tributary_hudi::{CommitMetadata, Instant};
use tributary_types::{BatchName, Cursor, FLAT_KEY, FLAT_KEY_V2, InstantTime, Outcome, Stage, pipeline_of_key};

use crate::cli::Output;
use crate::commands::Failed;

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
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        Progress { bar: Some(bar) }
    }

    pub(crate) fn show(&mut self, status: &BatchStatus) {
        let Some(bar) = &self.bar else { return };
        let done = STAGES.iter().position(|stage| *stage == status.stage).unwrap_or_default();
        let rows: u64 = status.sources.iter().map(|source| source.rows).sum();
        bar.set_position(done as u64);
        bar.set_message(format!("{} ({rows} rows read)", status.stage.as_str().to_lowercase()));
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
    peak_memory: u64,
    sources: Vec<SourceJson>,
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
    lag_instants: usize,
    lag_seconds: u64,
    /// Requested times of the commits that the window begins after and ends with: the other clock of a cursor.
    begin_requested: Option<String>,
    end_requested: Option<String>,
    oldest_pending: Option<String>,
    not_a_cut: bool,
    /// Files behind the cursor that are read, and that are left out: the first ones, and how many are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    late_files: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
    left_out_files: u64,
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
        lag_instants: source.report.lag_instants,
        lag_seconds: source.report.lag_seconds,
        begin_requested: source.report.begin_requested.as_ref().map(ToString::to_string),
        end_requested: source.report.end_requested.as_ref().map(ToString::to_string),
        oldest_pending: source.report.oldest_pending.as_ref().map(ToString::to_string),
        not_a_cut: source.report.not_a_cut,
        late_files: source.report.late_files.clone(),
        left_out: source.report.left_out.clone(),
        left_out_files: source.report.left_out_files,
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
        peak_memory: status.peak_memory,
        sources: status.sources.iter().map(source_json).collect(),
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
    if let (Some(Outcome::Committed), Some(instant)) = (status.outcome, &status.instant) {
        let completed = status.completed.as_ref().map_or("-".to_string(), ToString::to_string);
        let seq = status.seq.map_or("-".to_string(), |seq| seq.to_string());
        println!("commit   {instant}, completed {completed}, sequence number {seq}");
        let written = &status.written;
        println!(
            "written  {} rows ({} new, {} updated) in {} files, {}",
            written.rows,
            written.inserts,
            written.updates,
            written.files,
            size(written.bytes)
        );
    }
    let timings: Vec<String> =
        status.timings.iter().map(|(stage, ms)| format!("{} {ms} ms", stage.as_str().to_lowercase())).collect();
    println!("timings  {}", timings.join(", "));
}

fn print_source(source: &SourceStatus) {
    let report = &source.report;
    let files = source.window.as_ref().is_some_and(|window| matches!(window.end, Cursor::File(_)));
    match &source.window {
        Some(window) if files => println!(
            "source   {}: window {window}, {} files, {}, {} rows, lag {} files",
            source.source,
            report.files,
            size(report.bytes),
            source.rows,
            report.lag_instants
        ),
        Some(window) => println!(
            "source   {}: window {window}, {} commits, {} files, {}, {} rows, lag {} commits",
            source.source,
            report.instants,
            report.files,
            size(report.bytes),
            source.rows,
            report.lag_instants
        ),
        None => println!(
            "source   {}: looked up, {} files, {}, {} rows",
            source.source,
            report.files,
            size(report.bytes),
            source.rows
        ),
    }
    if report.not_a_cut {
        println!(
            "         {}: not a cut: its commits are ordered by request, or its files by name, those of other sources by \
             time",
            source.source
        );
    }
    if !report.late_files.is_empty() {
        println!("         {}: behind the cursor, and read: {}", source.source, report.late_files.join(", "));
    }
    if report.left_out_files > 0 {
        println!(
            "         {}: {} behind the cursor, left out: {}",
            source.source,
            report.left_out_files,
            report.left_out.join(", ")
        );
    }
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
            "columns": plan.columns.iter().map(|(n, t)| serde_json::json!({"name": n, "type": t})).collect::<Vec<_>>(),
            "logical_plan": plan.logical_plan,
            "physical_plan": plan.physical_plan,
        }));
        return;
    }
    println!("news     {}", if plan.has_news { "yes" } else { "no" });
    plan.sources.iter().for_each(print_source);
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
    let mut writer = arrow::json::LineDelimitedWriter::new(std::io::stdout());
    for batch in batches {
        writer.write(batch)?;
    }
    writer.finish()
}

pub(crate) fn print_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("error: the result cannot be printed as JSON: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use tributary_hudi::Timeline;

    use super::*;

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
