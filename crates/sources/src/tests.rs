// SPDX-License-Identifier: Apache-2.0
//! Plans and reads of directories on disk.

use std::io::Write;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use serde_json::{Value, json};
use tributary_api::timeline::{
    Begin, Error, FilesRequest, PlanRequest, ReadRequest, Relation, SourcePlan, Timeline, Views,
};
use tributary_api::{RowError, RowStream};
use tributary_hudi::SystemStores;
use tributary_testkit::write_parquet;
use tributary_types::pipeline::{FileFormat, FileSource};
use tributary_types::{Fault, MemoryBudget, SourceName, SystemClock};

use crate::{Service, Settings};

struct Directory {
    root: tempfile::TempDir,
    source: FileSource,
    service: Service,
}

impl Directory {
    fn new(kind: &str, files: Value, format: Value) -> Self {
        let format = match kind {
            "csv" => FileFormat::Csv(Box::new(serde_json::from_value(format).unwrap())),
            "json" => FileFormat::Json(serde_json::from_value(format).unwrap()),
            _ => FileFormat::Parquet,
        };
        let source = FileSource { files: serde_json::from_value(files).unwrap(), format, topic: None };
        // Small parts, so that every file comes in several.
        let settings = Settings { part_bytes: 7, ..Settings::default() };
        let service = Service::new(Arc::new(SystemStores::new()), Arc::new(SystemClock), settings);
        Directory { root: tempfile::tempdir().unwrap(), source, service }
    }

    fn put(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.root.path().join(path)
    }

    fn request(&self, begin: Begin, before: Option<&SourcePlan>) -> PlanRequest {
        let state = before.map(|plan| plan.files.as_deref().unwrap().clone());
        let url = self.root.path().display().to_string();
        PlanRequest {
            views: Views { changed: true, end: true, begin: true },
            files: Some(Box::new(FilesRequest { source: self.source.clone(), state, pinned: None, moved: false })),
            ..PlanRequest::window(SourceName::new("clicks").unwrap(), url, begin)
        }
    }

    async fn plan(&self, before: Option<&SourcePlan>) -> Result<SourcePlan, Error> {
        let begin = before.map_or(Begin::Earliest, |plan| Begin::After(plan.end.clone()));
        self.service.plan(self.request(begin, before)).await
    }

    async fn read(&self, relation: &Relation) -> Result<Vec<RecordBatch>, RowError> {
        let mut batches = Vec::new();
        for split in relation.splits.clone() {
            let request = ReadRequest {
                split,
                schema: Arc::clone(&relation.schema),
                projection: None,
                predicate: None,
                batch_rows: 2,
                memory: MemoryBudget::new(1 << 20),
            };
            let rows: RowStream = self.service.read(request).await.map_err(RowError::new)?;
            batches.extend(rows.try_collect::<Vec<_>>().await?);
        }
        Ok(batches)
    }

    /// The rows of the next window, as JSON.
    async fn next(&self, before: Option<&SourcePlan>) -> (Vec<String>, SourcePlan) {
        let plan = self.plan(before).await.unwrap();
        let rows = match &plan.changed {
            Some(relation) => json_rows(&self.read(relation).await.unwrap()),
            None => Vec::new(),
        };
        (rows, plan)
    }

    async fn failure(&self, plan: &SourcePlan) -> RowError {
        self.read(plan.changed.as_ref().unwrap()).await.unwrap_err()
    }
}

fn json_rows(batches: &[RecordBatch]) -> Vec<String> {
    let mut writer = arrow::json::LineDelimitedWriter::new(Vec::new());
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    let text = String::from_utf8(writer.into_inner()).unwrap();
    let mut rows: Vec<String> = text.lines().map(str::to_string).collect();
    rows.sort();
    rows
}

fn columns(plan: &SourcePlan) -> Vec<String> {
    let schema = plan.table.schema.as_ref().unwrap();
    schema.fields().iter().map(|field| format!("{}: {}", field.name(), field.data_type())).collect()
}

#[tokio::test]
async fn types_are_inferred_once_and_then_kept() {
    let directory = Directory::new("csv", json!({}), json!({"header": true}));
    directory.put("1.csv", "id,n\n1,10\n");
    let (rows, first) = directory.next(None).await;
    assert_eq!(rows, ["{\"id\":1,\"n\":10}"]);
    assert_eq!(columns(&first), ["id: Int64", "n: Int64"]);
    directory.put("2.csv", "id,n\n2,many\n");
    let second = directory.plan(Some(&first)).await.unwrap();
    assert_eq!(columns(&second), columns(&first));
    let bad = directory.failure(&second).await;
    assert_eq!(bad.reason(), "BAD_RECORD");
    let message = bad.to_string();
    for part in ["`clicks`", "`2.csv` line 2, byte 5", "column `n` is not an integer", "`2,many`"] {
        assert!(message.contains(part), "{part} not in {message}");
    }
}

#[tokio::test]
async fn headers_that_differ_between_files_map_by_name_and_new_columns_are_added() {
    let directory = Directory::new("csv", json!({}), json!({"header": true}));
    directory.put("1.csv", "id,a\n1,x\n");
    let (_, first) = directory.next(None).await;
    directory.put("2.csv", "b,id\n2.5,2\n").put("3.csv", "a,id\ny,3\n");
    let (rows, second) = directory.next(Some(&first)).await;
    assert_eq!(rows, ["{\"id\":2,\"b\":2.5}", "{\"id\":3,\"a\":\"y\"}"]);
    assert_eq!(columns(&second), ["id: Int64", "a: Utf8", "b: Float64"]);
    directory.put("4.csv", "id\n4\n");
    let (rows, third) = directory.next(Some(&second)).await;
    assert_eq!((rows, columns(&third)), (vec!["{\"id\":4}".to_string()], columns(&second)), "a column that came stays");
}

#[tokio::test]
async fn unknown_columns_are_left_out_or_refused_as_the_source_says() {
    for (policy, fails) in [("ignore", false), ("fail", true)] {
        let directory = Directory::new("csv", json!({"unknown_columns": policy}), json!({"header": true}));
        directory.put("1.csv", "id\n1\n");
        let (_, first) = directory.next(None).await;
        directory.put("2.csv", "id,new\n2,x\n");
        let planned = directory.plan(Some(&first)).await;
        match planned {
            Ok(plan) if !fails => assert_eq!(columns(&plan), ["id: Int64"]),
            Err(error) if fails => assert!(error.to_string().contains("2.csv") && error.to_string().contains("new")),
            other => panic!("{policy}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_schema_gives_names_and_types_by_position_without_a_header() {
    let avro = json!({"type": "record", "name": "r", "fields": [
        {"name": "id", "type": "string"}, {"name": "amount",
         "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}}]});
    let directory = Directory::new("csv", json!({"schema": avro.to_string()}), json!({"sep": "|"}));
    directory.put("1.txt", "007|1.5\n");
    let (rows, plan) = directory.next(None).await;
    assert_eq!(rows, ["{\"id\":\"007\",\"amount\":1.50}"]);
    assert_eq!(columns(&plan), ["id: Utf8", "amount: Decimal128(10, 2)"]);
}

#[tokio::test]
async fn without_a_header_columns_are_numbered_and_without_inference_they_are_text() {
    let directory = Directory::new("csv", json!({"sample_rows": 0}), json!({}));
    directory.put("1.csv", "1,x\n");
    let (rows, _) = directory.next(None).await;
    assert_eq!(rows, ["{\"_c0\":\"1\",\"_c1\":\"x\"}"]);
}

#[tokio::test]
async fn a_comma_in_a_file_name_is_part_of_it() {
    // hudi PR 19677: paths were joined with commas.
    let directory = Directory::new("csv", json!({}), json!({"header": true}));
    directory.put("a,b=c/1,2:3.csv", "id\n1\n");
    let (rows, plan) = directory.next(None).await;
    assert_eq!(rows, ["{\"id\":1}"]);
    assert!(plan.end.to_string().ends_with(":a,b=c/1,2:3.csv"), "{}", plan.end);
    let again = plan.end.to_string().parse().unwrap();
    assert_eq!(plan.end, again);
}

#[tokio::test]
async fn compressed_files_are_read_and_a_cut_one_is_a_bad_file() {
    let directory = Directory::new("csv", json!({}), json!({"header": true}));
    let text = "id\n1\n2\n3\n4\n5\n6\n7\n";
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(text.as_bytes()).unwrap();
    let gz = gz.finish().unwrap();
    directory.put("1.csv.gz", &gz).put("2.csv.zst", zstd::encode_all(text.as_bytes(), 1).unwrap());
    let (rows, first) = directory.next(None).await;
    assert_eq!(rows.len(), 14);
    directory.put("3.csv.gz", &gz[..gz.len() - 3]);
    let second = directory.plan(Some(&first)).await;
    let error = match &second {
        Ok(plan) => directory.failure(plan).await.to_string(),
        Err(error) => error.to_string(),
    };
    assert!(error.contains("3.csv.gz") && error.contains("ends within"), "{error}");
}

#[tokio::test]
async fn a_byte_order_mark_and_utf_16_are_read_from_the_first_header_on() {
    let directory = Directory::new("csv", json!({}), json!({"header": true}));
    let utf16: Vec<u8> = "\u{feff}\"id\",n\n2,ü\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    directory.put("1.csv", "\u{feff}\"id\",n\n1,é\n").put("2.csv", utf16);
    let (rows, plan) = directory.next(None).await;
    assert_eq!(rows, ["{\"id\":1,\"n\":\"é\"}", "{\"id\":2,\"n\":\"ü\"}"]);
    assert_eq!(columns(&plan), ["id: Int64", "n: Utf8"]);
}

#[tokio::test]
async fn empty_files_have_no_rows_and_the_cursor_passes_them() {
    let directory = Directory::new("csv", json!({}), json!({"header": true}));
    directory.put("1.csv", "id\n1\n").put("2.csv", "").put("3.csv", "id\n").put("4.csv", "\n");
    let (rows, plan) = directory.next(None).await;
    assert_eq!((rows.len(), plan.report.files), (1, 4));
    assert!(!directory.plan(Some(&plan)).await.unwrap().has_news);
}

#[tokio::test]
async fn a_file_that_changes_or_vanishes_between_plan_and_read_is_an_error_that_says_so() {
    let directory = Directory::new("csv", json!({}), json!({"header": true}));
    directory.put("1.csv", "id\n1\n");
    let plan = directory.plan(None).await.unwrap();
    directory.put("1.csv", "id\n1\n2\n");
    let changed = directory.failure(&plan).await;
    assert_eq!((changed.reason(), changed.retry()), ("FILE_CHANGED", tributary_types::Retry::Rebase));
    assert!(changed.to_string().contains("it had 5 bytes and has 7"), "{changed}");
    directory.put("1.csv", "id\n9\n");
    assert_eq!(directory.failure(&plan).await.reason(), "FILE_CHANGED", "of the same size");
    std::fs::remove_file(directory.path("1.csv")).unwrap();
    assert_eq!(directory.failure(&plan).await.reason(), "FILE_GONE");
}

#[tokio::test]
async fn an_empty_directory_has_no_files_and_no_schema_and_one_that_is_not_there_is_an_error() {
    let directory = Directory::new("csv", json!({}), json!({}));
    let url = directory.path("nowhere").display().to_string();
    let asked = PlanRequest { url, ..directory.request(Begin::Earliest, None) };
    let error = directory.service.plan(asked.clone()).await.unwrap_err();
    assert_eq!(error.reason(), "DIRECTORY_NOT_FOUND");
    std::fs::create_dir(directory.path("nowhere")).unwrap();
    let plan = directory.service.plan(asked).await.unwrap();
    assert!(!plan.has_news && plan.table.schema.is_none() && plan.changed.is_none());
}

#[tokio::test]
async fn objects_of_json_grow_by_what_new_files_bring() {
    let directory = Directory::new("json", json!({}), json!({}));
    directory.put("1.json", "{\"id\":1,\"s\":{\"a\":1}}\n{\"id\":2}\n");
    let (rows, first) = directory.next(None).await;
    assert_eq!(rows, ["{\"id\":1,\"s\":{\"a\":1}}", "{\"id\":2}"]);
    directory.put("2.json", "[{\"id\":3,\"s\":{\"b\":\"x\"},\"l\":[true]}]");
    let (rows, second) = directory.next(Some(&first)).await;
    assert_eq!(rows, ["{\"id\":3,\"s\":{\"b\":\"x\"},\"l\":[true]}"]);
    assert_eq!(columns(&second).len(), 3);
    directory.put("3.json", "{\"id\":4}\n{\"id\":oops}\n");
    let third = directory.plan(Some(&second)).await.unwrap();
    let message = directory.failure(&third).await.to_string();
    assert!(message.contains("`3.json` line 2, byte 9"), "{message}");
}

fn numbers(columns: &[(&str, &[i64])]) -> RecordBatch {
    let column = |values: &[i64]| Arc::new(arrow::array::Int64Array::from(values.to_vec())) as arrow::array::ArrayRef;
    RecordBatch::try_from_iter_with_nullable(columns.iter().map(|(name, values)| (*name, column(values), true)))
        .unwrap()
}

#[tokio::test]
async fn parquet_files_are_read_with_the_columns_that_all_of_them_have() {
    let directory = Directory::new("parquet", json!({"glob": "*.parquet"}), json!({}));
    write_parquet(&directory.path("1.parquet"), &numbers(&[("id", &[1, 2, 3])]));
    let (rows, first) = directory.next(None).await;
    assert_eq!(rows, ["{\"id\":1}", "{\"id\":2}", "{\"id\":3}"]);
    write_parquet(&directory.path("2.parquet"), &numbers(&[("n", &[7]), ("id", &[4])]));
    let (rows, second) = directory.next(Some(&first)).await;
    assert_eq!(rows, ["{\"id\":4,\"n\":7}"]);
    assert_eq!(columns(&second), ["id: Int64", "n: Int64"]);
    let plan = directory.plan(None).await.unwrap();
    write_parquet(&directory.path("1.parquet"), &numbers(&[("id", &[9, 9, 9, 9])]));
    assert_eq!(directory.failure(&plan).await.reason(), "FILE_CHANGED");
}

#[tokio::test]
async fn every_wrong_option_is_named() {
    let directory = Directory::new("csv", json!({"glob": "{a"}), json!({}));
    let refused = directory.plan(None).await.unwrap_err();
    assert!(refused.to_string().contains("`files.glob`"), "{refused}");
    let directory = Directory::new("csv", json!({}), json!({"quote": "ab", "sep": ""}));
    let refused = directory.plan(None).await.unwrap_err().to_string();
    assert!(refused.contains("`csv.quote`") && refused.contains("`csv.sep`"), "{refused}");
}

#[tokio::test]
async fn a_prefix_of_a_store_under_which_nothing_is_is_told_until_something_was_read() {
    let stores = Arc::new(tributary_testkit::MemoryStores::default());
    let service = Service::new(stores.clone(), Arc::new(SystemClock), Settings::default());
    let directory = Directory::new("csv", json!({}), json!({"header": true}));
    let request = |before: Option<&SourcePlan>| PlanRequest {
        url: "memory://lake/clicks".to_string(),
        ..directory.request(before.map_or(Begin::Earliest, |plan| Begin::After(plan.end.clone())), before)
    };
    let plan = service.plan(request(None)).await.unwrap();
    assert!(plan.report.notice.as_ref().unwrap().contains("no file under `memory://lake/clicks`"), "{:?}", plan.report);
    let storage = tributary_hudi::Stores::open(stores.as_ref(), "memory://lake/clicks").unwrap();
    storage.put("1.csv", "id\n1\n").await.unwrap();
    let read = service.plan(request(Some(&plan))).await.unwrap();
    assert_eq!((read.report.notice.clone(), read.report.files), (None, 1));
    storage.delete("1.csv").await.unwrap();
    let emptied = service.plan(request(Some(&read))).await.unwrap();
    assert_eq!(emptied.report.notice, None, "files come and go");
}

/// Columns of the refused records of a relation, a line each.
async fn refused(directory: &Directory, relation: &Relation) -> Vec<String> {
    let splits = relation.splits.iter().cloned().map(tributary_api::timeline::Split::refused_only).collect();
    let refused = Relation { schema: Arc::clone(&relation.schema), splits };
    let batches = directory.read(&refused).await.unwrap();
    assert!(batches.iter().all(|batch| batch.schema() == tributary_api::refused::refused_schema()));
    let rows = json_rows(&batches);
    let values = rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap());
    values.map(|row| format!("{} {} {}", row["position"].as_str().unwrap(), row["line"], row["raw"])).collect()
}

#[tokio::test]
async fn the_rows_of_a_file_and_the_records_refused_in_it_are_two_streams_of_it() {
    let schema = json!({"fields": [
        {"name": "id", "nullable": true, "type": {"name": "int", "bitWidth": 64, "isSigned": true}, "children": []},
        {"name": "t", "nullable": true, "type": {"name": "utf8"}, "children": []},
    ]});
    let files = json!({"schema": schema.to_string(), "order": "name"});
    let csv = Directory::new("csv", files.clone(), json!({"mode": "error_table"}));
    csv.put("1.csv", "1,a\nx,\"b\nc\"\n2,d,e\n3,f\n4,\"open\n").put("2.csv", "x,1\ny,2\nz,3\nv,4\nw,5\n");
    let plan = csv.plan(None).await.unwrap();
    let relation = plan.changed.as_ref().unwrap();
    assert_eq!(json_rows(&csv.read(relation).await.unwrap()), ["{\"id\":1,\"t\":\"a\"}", "{\"id\":3,\"t\":\"f\"}"]);
    let expected = [
        "1.csv:12 4 \"2,d,e\"",
        "1.csv:22 6 \"4,\\\"open\"",
        "1.csv:4 2 \"x,\\\"b\\nc\\\"\"",
        "2.csv:0 1 \"x,1\"",
        "2.csv:12 4 \"v,4\"",
        "2.csv:16 5 \"w,5\"",
        "2.csv:4 2 \"y,2\"",
        "2.csv:8 3 \"z,3\"",
    ];
    for _ in 0..2 {
        let mut found = refused(&csv, relation).await;
        found.sort();
        assert_eq!(found, expected, "the same each time");
    }

    let json_of = Directory::new("json", files, json!({"mode": "error_table"}));
    json_of.put("1.json", "{\"id\":1}\n{\"id\":\"x\"}\nno\n\n{\"id\":2,\"t\":\"é\"} {\"id\":\n");
    let plan = json_of.plan(None).await.unwrap();
    let relation = plan.changed.as_ref().unwrap();
    assert_eq!(json_rows(&json_of.read(relation).await.unwrap()), ["{\"id\":1}", "{\"id\":2,\"t\":\"é\"}"]);
    let mut found = refused(&json_of, relation).await;
    found.sort();
    assert_eq!(found, ["1.json:20 3 \"no\"", "1.json:42 5 \"{\\\"id\\\":\"", "1.json:9 2 \"{\\\"id\\\":\\\"x\\\"}\""]);
}

#[tokio::test]
async fn a_file_that_was_read_without_a_bad_record_is_not_opened_again_for_refused_ones() {
    let directory = Directory::new("csv", json!({}), json!({"mode": "error_table"}));
    directory.put("1.csv", "1,a\n2,b\n");
    let plan = directory.plan(None).await.unwrap();
    let relation = plan.changed.as_ref().unwrap();
    directory.read(relation).await.unwrap();
    std::fs::remove_file(directory.path("1.csv")).unwrap();
    assert_eq!(refused(&directory, relation).await, Vec::<String>::new());
    // Another process knows nothing of it, and has to look.
    let other = Directory { root: tempfile::tempdir().unwrap(), ..Directory::new("csv", json!({}), json!({})) };
    let splits = relation.splits.iter().cloned().map(tributary_api::timeline::Split::refused_only).collect();
    let lost = other.read(&Relation { schema: Arc::clone(&relation.schema), splits }).await.unwrap_err();
    assert_eq!(lost.reason, "FILE_GONE");
    // Of a source whose bad records go elsewhere none is refused.
    let failing = Directory::new("csv", json!({}), json!({}));
    failing.put("1.csv", "1,a\n2,b\n");
    let plan = failing.plan(None).await.unwrap();
    assert_eq!(refused(&failing, plan.changed.as_ref().unwrap()).await, Vec::<String>::new());
}
