// SPDX-License-Identifier: Apache-2.0
//! Archiving commits as Hudi's archiver does on timeline layout 2: rows of a parquet file in the history, a manifest
//! that names it, and a version that names the manifest.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;

/// Moves completed instants of the table at `table` into its history, as one more file of it.
///
/// # Panics
/// When the table does not have them: a test cannot go on without it.
pub fn archive_instants(table: &Path, instants: &[&str]) {
    let timeline = table.join(".hoodie/timeline");
    let history = timeline.join("history");
    let mut rows = Vec::new();
    let mut files = Vec::new();
    for instant in instants {
        let all = files_of(&timeline, instant);
        let completed = all.iter().find(|path| name_of(path).starts_with(&format!("{instant}_")));
        let completed = completed.unwrap_or_else(|| panic!("{instant} is not completed"));
        let name = name_of(completed);
        let (times, action) = name.split_once('.').unwrap_or_else(|| panic!("`{name}` names no action"));
        let completion = times.split_once('_').map(|(_, at)| at.to_string()).unwrap_or_default();
        let metadata = fs::read(completed).unwrap_or_else(|e| panic!("{}: {e}", completed.display()));
        rows.push(((*instant).to_string(), completion, action.to_string(), metadata));
        files.extend(all);
    }
    fs::create_dir_all(&history).unwrap_or_else(|e| panic!("{}: {e}", history.display()));
    let name = format!("{}_{}_0.parquet", instants[0], instants[instants.len() - 1]);
    write_rows(&history.join(&name), &rows);
    add_to_manifest(&history, &name);
    for file in files {
        fs::remove_file(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn files_of(timeline: &Path, instant: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(timeline).unwrap_or_else(|e| panic!("{}: {e}", timeline.display()));
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| path.is_file() && name_of(path).starts_with(instant)).collect()
}

/// Instant, completion, action and metadata.
type Row = (String, String, String, Vec<u8>);

fn write_rows(path: &Path, rows: &[Row]) {
    let text =
        |pick: fn(&Row) -> &String| -> ArrayRef { Arc::new(StringArray::from_iter_values(rows.iter().map(pick))) };
    let metadata: ArrayRef = Arc::new(BinaryArray::from_iter_values(rows.iter().map(|row| &row.3)));
    let columns = vec![
        ("instantTime", text(|row| &row.0)),
        ("completionTime", text(|row| &row.1)),
        ("action", text(|row| &row.2)),
        ("metadata", metadata),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = fs::File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut writer =
        ArrowWriter::try_new(file, batch.schema(), None).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    writer.write(&batch).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    writer.close().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// The next version of the manifest has one file more.
fn add_to_manifest(history: &Path, name: &str) {
    let version_file = history.join("_version_");
    let version: u64 = fs::read_to_string(&version_file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let before = fs::read_to_string(history.join(format!("manifest_{version}"))).unwrap_or_default();
    let entry = format!("{{\"fileName\":\"{name}\",\"fileLen\":0}}");
    let manifest = match before.strip_suffix("]}") {
        Some(start) => format!("{start},{entry}]}}"),
        None => format!("{{\"files\":[{entry}]}}"),
    };
    let next = version + 1;
    fs::write(history.join(format!("manifest_{next}")), manifest).unwrap_or_else(|e| panic!("{name}: {e}"));
    fs::write(version_file, next.to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
}
