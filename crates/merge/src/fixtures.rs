// SPDX-License-Identifier: Apache-2.0
//! Roles in memory, for tests: a timeline that serves record batches by split, and a writer that keeps what it gets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::util::display::array_value_to_string;
use futures::{StreamExt, stream};
use tributary_api::merge::{CheckRequest, Checked, Error, Merge, MergeLimits, MergeRequest, MergeSource, Merged, Step};
use tributary_api::timeline::{
    self, Deleted, PlanRequest, ReadRequest, Relation, SourcePlan, Split, TableInfo, Timeline,
};
use tributary_api::transform::Transforms;
use tributary_api::writer::{self, FileSizes, KeySettings, StageRequest, Staged, Writer};
use tributary_api::{RowError, RowStream, Stop};
use tributary_types::pipeline::{OnNullKey, Operation};
use tributary_types::{MemoryBudget, SourceName};

use crate::{Service, Settings};

/// Serves record batches by the path of their split, and remembers what it was asked.
#[derive(Default)]
pub(crate) struct MemoryTimeline {
    files: Mutex<HashMap<String, Vec<RecordBatch>>>,
    gone: Mutex<Vec<String>>,
    delay: Mutex<Duration>,
    requests: Mutex<Vec<ReadRequest>>,
}

impl MemoryTimeline {
    pub(crate) fn requests(&self) -> Vec<ReadRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// From now on the file at `path` is missing, which shows after its first batch.
    pub(crate) fn lose(&self, path: &str) {
        self.gone.lock().unwrap().push(path.to_string());
    }

    /// From now on every read takes `delay`.
    pub(crate) fn slow_down(&self, delay: Duration) {
        *self.delay.lock().unwrap() = delay;
    }
}

#[async_trait]
impl Timeline for MemoryTimeline {
    async fn describe(&self, url: &str) -> Result<TableInfo, timeline::Error> {
        Err(timeline::Error::NoTable { url: url.to_string(), what: "a test".to_string() })
    }

    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, timeline::Error> {
        Err(timeline::Error::NoTable { url: request.url, what: "a test".to_string() })
    }

    async fn read(&self, request: ReadRequest) -> Result<RowStream, timeline::Error> {
        self.requests.lock().unwrap().push(request.clone());
        let delay = *self.delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        let path = request.split.path.clone();
        let gone = timeline::Error::FileGone { url: request.split.url.clone(), file: path.clone() };
        let lost = self.gone.lock().unwrap().contains(&path);
        let Some(batches) = self.files.lock().unwrap().get(&path).cloned() else {
            return Err(gone);
        };
        let mut items: Vec<Result<RecordBatch, RowError>> = Vec::new();
        for batch in batches {
            let batch = match &request.projection {
                Some(columns) => batch.project(columns).unwrap(),
                None => batch,
            };
            for from in (0..batch.num_rows()).step_by(request.batch_rows) {
                items.push(Ok(batch.slice(from, request.batch_rows.min(batch.num_rows() - from))));
            }
        }
        if lost {
            items.truncate(1);
            items.push(Err(RowError::new(gone)));
        }
        Ok(stream::iter(items).boxed())
    }
}

/// Keeps the rows it is handed.
#[derive(Default)]
pub(crate) struct CollectingWriter {
    batches: Mutex<Vec<RecordBatch>>,
    failures: Mutex<Vec<RowError>>,
    give_up_after: Mutex<Option<usize>>,
    full: Mutex<bool>,
    shares: Mutex<Vec<Option<usize>>>,
}

impl CollectingWriter {
    pub(crate) fn batches(&self) -> Vec<RecordBatch> {
        self.batches.lock().unwrap().clone()
    }

    /// Errors that streams of rows ended with.
    pub(crate) fn failures(&self) -> Vec<RowError> {
        self.failures.lock().unwrap().clone()
    }

    /// The memory that each staging was given for a writer elsewhere.
    pub(crate) fn shares(&self) -> Vec<Option<usize>> {
        self.shares.lock().unwrap().clone()
    }

    /// From now on it stops after so many batches and calls that a success.
    pub(crate) fn give_up_after(&self, batches: usize) {
        *self.give_up_after.lock().unwrap() = Some(batches);
    }

    /// From now on its disk is full.
    pub(crate) fn fill_up(&self) {
        *self.full.lock().unwrap() = true;
    }
}

#[async_trait]
impl Writer for CollectingWriter {
    async fn stage(&self, request: StageRequest, mut rows: RowStream) -> Result<Staged, writer::Error> {
        let mut staged = Staged::default();
        self.shares.lock().unwrap().push(request.share);
        let give_up_after = *self.give_up_after.lock().unwrap();
        let full = *self.full.lock().unwrap();
        loop {
            let next = tokio::select! {
                next = rows.next() => next,
                () = request.stop.wait() => return Err(writer::Error::Stopped),
            };
            let Some(batch) = next else { break };
            let batch = batch.inspect_err(|error| self.failures.lock().unwrap().push(error.clone()))?;
            assert_eq!(batch.schema(), request.schema, "rows come as announced");
            staged.rows_in += batch.num_rows() as u64;
            self.batches.lock().unwrap().push(batch);
            if full {
                return Err(writer::Error::Spill { limit: request.spill_bytes });
            }
            if give_up_after == Some(self.batches.lock().unwrap().len()) {
                break;
            }
        }
        if full {
            return Err(writer::Error::Spill { limit: request.spill_bytes });
        }
        Ok(staged)
    }
}

/// Sources in memory and a merge role over them.
pub(crate) struct Bench {
    pub(crate) timeline: Arc<MemoryTimeline>,
    pub(crate) writer: Arc<CollectingWriter>,
    pub(crate) sources: Vec<MergeSource>,
    /// Steps after the SQL.
    pub(crate) then: Vec<Step>,
    /// Sources whose deletes must not be lost.
    pub(crate) deletes: Vec<SourceName>,
    pub(crate) limits: MergeLimits,
    pub(crate) settings: Settings,
    /// Size that every split claims to have.
    pub(crate) split_bytes: u64,
    /// Steps in Rust.
    pub(crate) transforms: Transforms,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Bench {
            timeline: Arc::default(),
            writer: Arc::default(),
            sources: Vec::new(),
            then: Vec::new(),
            deletes: Vec::new(),
            limits: limits(1 << 30),
            settings: Settings { own_threads: false, ..Settings::default() },
            split_bytes: 1,
            transforms: Transforms::new(),
        }
    }

    /// Adds a source whose changed rows are `splits`, one batch each.
    pub(crate) fn source(mut self, name: &str, schema: SchemaRef, splits: Vec<RecordBatch>) -> Self {
        let changed = self.relation(&format!("{name}/changed"), &schema, splits);
        let source = SourceName::new(name).unwrap();
        self.sources.push(MergeSource { source, schema, changed: Some(changed), at_end: None, at_begin: None });
        self
    }

    /// Adds to the source that was added last what its table is at the window's end and beginning.
    pub(crate) fn tables(mut self, at_end: Vec<RecordBatch>, at_begin: Vec<RecordBatch>) -> Self {
        let mut source = self.sources.pop().unwrap();
        source.at_end = Some(self.relation(&format!("{}/end", source.source), &source.schema, at_end));
        source.at_begin = Some(self.relation(&format!("{}/begin", source.source), &source.schema, at_begin));
        self.sources.push(source);
        self
    }

    fn relation(&self, path: &str, schema: &SchemaRef, batches: Vec<RecordBatch>) -> Relation {
        let mut splits = Vec::new();
        for (number, batch) in batches.into_iter().enumerate() {
            let path = format!("{path}/{number}");
            self.timeline.files.lock().unwrap().insert(path.clone(), vec![batch]);
            splits.push(Split {
                url: "/table".to_string(),
                partition: String::new(),
                file_id: path.clone(),
                path,
                bytes: self.split_bytes,
                logs: None,
                instants: None,
                all_but: false,
                file: None,
                deleted: Deleted::Unsaid,
            });
        }
        Relation { schema: Arc::clone(schema), splits }
    }

    pub(crate) fn service(&self) -> Service {
        let timeline: Arc<dyn Timeline> = Arc::clone(&self.timeline) as _;
        let writer: Arc<dyn Writer> = Arc::clone(&self.writer) as _;
        Service::new(timeline, writer, self.settings.clone()).with_transforms(self.transforms.clone())
    }

    pub(crate) async fn check(&self, sql: &str) -> Result<Checked, Error> {
        let sources = self.sources.iter().map(|source| (source.source.clone(), Arc::clone(&source.schema))).collect();
        let (then, limits) = (self.then.clone(), self.limits.clone());
        let deletes = self.deletes.clone();
        let request = CheckRequest { sql: Some(sql.to_string()), then, sources, deletes, limits };
        self.service().check(request).await
    }

    /// The refusal of `sql` at start-up, as text.
    pub(crate) async fn refusal(&self, sql: &str) -> String {
        match self.check(sql).await {
            Ok(checked) => panic!("`{sql}` was not refused: {}", checked.logical_plan),
            Err(error) => error.to_string(),
        }
    }

    /// The request that the coordinator would send for `sql`.
    pub(crate) async fn request(&self, sql: &str) -> Result<MergeRequest, Error> {
        let schema = self.check(sql).await?.schema;
        Ok(MergeRequest {
            sql: Some(sql.to_string()),
            then: self.then.clone(),
            sources: self.sources.clone(),
            stage: stage_request(schema, self.limits.budget.clone()),
            limits: self.limits.clone(),
        })
    }

    /// Checks and runs `sql`.
    pub(crate) async fn run(&self, sql: &str) -> Result<Merged, Error> {
        let request = self.request(sql).await?;
        self.service().run(request).await
    }

    /// Runs `sql` and shows its rows, sorted.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<String> {
        self.writer.batches.lock().unwrap().clear();
        match self.run(sql).await {
            Ok(_) => shown(&self.writer.batches()),
            Err(error) => panic!("`{sql}` failed: {error}"),
        }
    }
}

pub(crate) fn limits(memory: usize) -> MergeLimits {
    MergeLimits {
        budget: MemoryBudget::new(memory),
        spill_bytes: 1 << 30,
        timeout: Duration::from_secs(120),
        parallelism: 2,
        stop: Stop::default(),
        progress: tributary_api::Progress::default(),
    }
}

pub(crate) fn stage_request(schema: SchemaRef, budget: MemoryBudget) -> StageRequest {
    StageRequest {
        table_schema: Arc::clone(&schema),
        url: "/target".to_string(),
        table_name: "t".to_string(),
        table_type: tributary_types::pipeline::TableType::CopyOnWrite,
        instant: "20250606182826197".parse().unwrap(),
        attempt: 0,
        schema,
        operation: Operation::Upsert,
        keys: KeySettings {
            record_key: vec!["id".to_string()],
            partition_by: Vec::new(),
            complex: false,
            hive_style: true,
            url_encode: false,
        },
        ordering: Vec::new(),
        merge: None,
        deletes_give_way: false,
        on_null_key: OnNullKey::Fail,
        files: FileSizes { small: 5, largest: 6 },
        slices: Arc::default(),
        budget,
        share: None,
        spill_bytes: 1 << 30,
        stop: Stop::default(),
    }
}

/// `id BIGINT, name STRING, amount BIGINT`, as a table's file has them.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8, true),
        Field::new("amount", DataType::Int64, true),
    ]))
}

/// Rows of [`schema`].
pub(crate) fn batch(rows: &[(i64, &str, i64)]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// `count` rows with ids from `first`, in no order, each about 100 bytes.
pub(crate) fn many(first: i64, count: i64) -> RecordBatch {
    let ids: Vec<i64> = (0..count).map(|n| first + (n * 7919) % count).collect();
    let names: Vec<String> = ids.iter().map(|id| format!("{id:0>80}")).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(ids.clone())),
        Arc::new(StringArray::from(names)),
        Arc::new(Int64Array::from(ids)),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// Every row as `a|b|c`, sorted.
pub(crate) fn shown(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows = in_order(batches);
    rows.sort();
    rows
}

/// Every row as `a|b|c`, in the order they came.
pub(crate) fn in_order(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cells: Vec<String> =
                batch
                    .columns()
                    .iter()
                    .map(|column| {
                        if column.is_null(row) {
                            "null".to_string()
                        } else {
                            array_value_to_string(column, row).unwrap()
                        }
                    })
                    .collect();
            rows.push(cells.join("|"));
        }
    }
    rows
}
