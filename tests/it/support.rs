// SPDX-License-Identifier: Apache-2.0
//! What the integration tests share: a lake in a temporary directory, pipelines over it, and ways to look at tables.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use futures::StreamExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use tributary_api::coordinator::{BatchStatus, RunRequest};
use tributary_api::timeline::{PlanRequest, ReadRequest};
use tributary_hudi::target::metadata_timeline;
use tributary_hudi::{
    Action, CommitMetadata, LogFile, Stores, SystemStores, TableConfig, Timeline, find_archived_metadata,
};
use tributary_rpc::{CheckpointClient, CoordinatorClient, MergeClient, TimelineClient, WriterClient};
use tributary_server::bench::source::SourceTable;
use tributary_server::embedded::{CoordinatorSettings, Embedded, Settings, embed};
use tributary_server::roles::{Elsewhere, Parts, Role, host};
use tributary_server::serve::Options;
use tributary_store::{KeyValue, MemoryStore};
use tributary_types::pipeline::Pipeline;
use tributary_types::{
    Checkpoint, Clock, InstantTime, MemoryBudget, PipelineName, RequestId, SourceName, SystemClock, SystemEntropy,
    checkpoint_key,
};

/// A directory of tables.
pub(crate) struct Lake {
    root: TempDir,
}

impl Lake {
    pub(crate) fn new() -> Self {
        Lake { root: tempfile::tempdir().unwrap() }
    }

    /// A lake with the demo's source tables as of a round.
    pub(crate) fn demo(round: u32) -> Self {
        let lake = Lake::new();
        lake.advance_demo(round);
        lake
    }

    /// Brings the demo's source tables to a later round.
    pub(crate) fn advance_demo(&self, round: u32) {
        let archive = fixtures().join(format!("demo/round{round}.zip"));
        tributary_testkit::unpack_zip(&archive, self.root.path());
    }

    /// The same tables in a directory of their own.
    pub(crate) fn copy(&self) -> Self {
        let copy = Lake::new();
        copy_tree(self.root.path(), copy.root.path());
        copy
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.root.path().join(name).display().to_string()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.root.path()
    }
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// All roles over the local disk. With `TRIBUTARY_TEST_ROLES=apart` each runs behind its own port, so that every test
/// can be run that way too.
pub(crate) fn roles() -> Embedded {
    roles_over(Arc::new(SystemStores::new()))
}

/// All roles over some stores.
pub(crate) fn roles_over(stores: Arc<dyn Stores>) -> Embedded {
    roles_with(stores, Arc::new(MemoryStore::default()), |_| {})
}

/// All roles over some stores, by a clock.
pub(crate) fn roles_at(stores: Arc<dyn Stores>, clock: Arc<dyn Clock>) -> Embedded {
    roles_of(stores, Arc::new(MemoryStore::default()), clock, |_| {})
}

/// All roles over some stores, with records in `store` and changed settings of the coordinator.
pub(crate) fn roles_with(
    stores: Arc<dyn Stores>,
    store: Arc<dyn KeyValue>,
    change: impl FnOnce(&mut CoordinatorSettings),
) -> Embedded {
    roles_of(stores, store, Arc::new(SystemClock), change)
}

/// All roles over some stores, by a clock, with records in `store` and changed settings of the coordinator.
pub(crate) fn roles_of(
    stores: Arc<dyn Stores>,
    store: Arc<dyn KeyValue>,
    clock: Arc<dyn Clock>,
    change: impl FnOnce(&mut CoordinatorSettings),
) -> Embedded {
    let settings = Settings {
        coordinator: tributary_server::embedded::coordinator_settings(|settings| {
            settings.commit_pause = std::time::Duration::from_millis(1);
            change(settings);
        }),
        ..Settings::default()
    };
    let parts = Parts { stores, store, clock, entropy: Arc::new(SystemEntropy) };
    if std::env::var("TRIBUTARY_TEST_ROLES").is_ok_and(|roles| roles == "apart") {
        return spread(parts, settings);
    }
    embed(parts.stores, parts.store, parts.clock, parts.entropy, settings)
}

/// The same roles, each behind a port of its own, and all of them called through their adapters.
pub(crate) fn spread(parts: Parts, settings: Settings) -> Embedded {
    let start = |role: Role, elsewhere: &Elsewhere| {
        let hosted = host(&[role], elsewhere, &parts, settings.clone()).unwrap();
        let options = Options {
            listen: "127.0.0.1:0".parse().unwrap(),
            http: None,
            metrics: None,
            peers: Vec::new(),
            pulls: Default::default(),
        };
        let starting = tributary_server::serve::start(hosted, options);
        let server = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(starting)).unwrap();
        let url = format!("http://{}", server.address());
        // A server that is dropped stops; these live as long as the test.
        std::mem::forget(server);
        (tributary_rpc::connect_lazily(&url).unwrap(), url)
    };
    let (channel, url) = start(Role::Timeline, &Elsewhere::default());
    let timeline: Arc<dyn tributary_api::timeline::Timeline> = Arc::new(TimelineClient::new(channel, url));
    let (channel, url) = start(Role::Sources, &Elsewhere::default());
    let sources: Arc<dyn tributary_api::timeline::Timeline> = Arc::new(TimelineClient::new(channel, url));
    let (channel, url) = start(Role::Checkpoint, &Elsewhere::default());
    let checkpoints: Arc<dyn tributary_api::checkpoint::Checkpoints> = Arc::new(CheckpointClient::new(channel, url));
    let (channel, url) = start(Role::Writer, &Elsewhere::default());
    let writer: Arc<dyn tributary_api::writer::Writer> = Arc::new(WriterClient::new(channel, url));
    let mut elsewhere = Elsewhere {
        timeline: Some(timeline.clone()),
        sources: Some(sources.clone()),
        checkpoints: Some(checkpoints.clone()),
        writer: Some(writer.clone()),
        merge: None,
    };
    let (channel, url) = start(Role::Merge, &elsewhere);
    let merge: Arc<dyn tributary_api::merge::Merge> = Arc::new(MergeClient::new(channel, url));
    elsewhere.merge = Some(merge.clone());
    let (channel, url) = start(Role::Coordinator, &elsewhere);
    let coordinator = Arc::new(CoordinatorClient::new(channel, url));
    let pipelines = Arc::clone(&coordinator) as Arc<dyn tributary_api::pipelines::Pipelines>;
    Embedded { timeline, sources, checkpoints, merge, writer, coordinator, pipelines, pulls: None }
}

/// A pipeline from its JSON form.
pub(crate) fn pipeline(value: Value) -> Pipeline {
    serde_json::from_value(value).unwrap()
}

/// `orders` with the `users` looked up.
pub(crate) fn enriched(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "orders_enriched",
        "source": [
            {"name": "orders", "path": lake.path("orders"), "start": "snapshot"},
            {"name": "users", "path": lake.path("users"), "read": "snapshot"},
        ],
        "transform": [{"sql": "SELECT o.order_id, o.user_id, u.name AS user_name, u.tier, o.amount, o.status, o.order_date, \
                               o.updated_at FROM <SRC:orders> o LEFT JOIN <SNAP:users> u ON o.user_id = u.user_id"}],
        "target": {
            "path": lake.path("out"), "table_name": "orders_enriched", "record_key": ["order_id"],
            "partition_by": ["order_date"], "ordering": ["updated_at"],
        },
    }))
}

/// Asks for one batch.
pub(crate) fn request_of(pipeline: &Pipeline, request: &str) -> RunRequest {
    let request = RequestId::new(request).unwrap();
    RunRequest {
        pipeline: pipeline.clone(),
        request,
        allow_empty: false,
        overrides: Vec::new(),
        cursors_only: false,
        asked_by: "a test".to_string(),
    }
}

/// Runs one batch to its end.
pub(crate) async fn run(roles: &Embedded, pipeline: &Pipeline, request: &str) -> BatchStatus {
    let started = roles.coordinator.run_batch(request_of(pipeline, request)).await.unwrap();
    let mut watch = roles.coordinator.watch_batch(&started.name).await.unwrap();
    watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone()
}

/// All rows of a table as JSON text, sorted.
pub(crate) async fn rows(roles: &Embedded, url: &str) -> Vec<String> {
    let request = PlanRequest::whole_table(SourceName::new("table").unwrap(), url);
    let plan = roles.timeline.plan(request).await.unwrap();
    let relation = plan.at_end.unwrap();
    let mut batches = Vec::new();
    for split in relation.splits {
        let request = ReadRequest {
            split,
            schema: relation.schema.clone(),
            projection: None,
            predicate: None,
            batch_rows: 1000,
            memory: MemoryBudget::new(64 << 20),
        };
        let mut stream = roles.timeline.read(request).await.unwrap();
        while let Some(batch) = stream.next().await {
            batches.push(batch.unwrap());
        }
    }
    json_rows(&batches)
}

/// Rows as JSON text, sorted.
pub(crate) fn json_rows(batches: &[RecordBatch]) -> Vec<String> {
    let mut writer = arrow::json::LineDelimitedWriter::new(Vec::new());
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
    let text = String::from_utf8(writer.into_inner()).unwrap();
    let mut rows: Vec<String> = text.lines().map(str::to_string).collect();
    rows.sort();
    rows
}

/// The cursors in every commit of a pipeline, archived ones too, in order of completion.
pub(crate) async fn checkpoints(url: &str, pipeline: &str) -> Vec<Checkpoint> {
    checkpoints_in(&SystemStores::new(), url, pipeline).await
}

/// The same, in some stores.
pub(crate) async fn checkpoints_in(stores: &dyn Stores, url: &str, pipeline: &str) -> Vec<Checkpoint> {
    let pipeline = PipelineName::new(pipeline).unwrap();
    let mut found = Vec::new();
    for (instant, metadata) in commits(stores, url).await {
        if let Some(text) = metadata.extra.get(&checkpoint_key(&pipeline)) {
            found.push(Checkpoint::from_json(&pipeline, &instant, text).unwrap());
        }
    }
    found
}

/// Every commit of ours, archived ones too, in order of completion.
async fn commits(stores: &dyn Stores, url: &str) -> Vec<(InstantTime, CommitMetadata)> {
    let (storage, config, timeline) = open_in(stores, url).await;
    let archived = find_archived_metadata(&storage, &config, "schema").await.unwrap();
    let mut found: Vec<_> =
        archived.into_iter().rev().map(|(instant, metadata)| (instant.requested, metadata)).collect();
    for instant in timeline.completed_writes() {
        let path = timeline.completed_path(instant).unwrap();
        let metadata = CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
        found.push((instant.requested.clone(), metadata));
    }
    found
}

/// Whether there is a table at `url`.
pub(crate) fn has_table(url: &str) -> bool {
    Path::new(url).join(".hoodie/hoodie.properties").exists()
}

/// Changes the cursors in the newest commit of a pipeline, where they stand.
pub(crate) async fn rewrite_checkpoint(url: &str, pipeline: &str, change: impl FnOnce(&mut Checkpoint)) {
    let pipeline = PipelineName::new(pipeline).unwrap();
    let key = checkpoint_key(&pipeline);
    let (storage, _, timeline) = open(url).await;
    for instant in timeline.completed_writes().into_iter().rev() {
        let path = timeline.completed_path(instant).unwrap();
        let mut metadata = CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
        let Some(text) = metadata.extra.get(&key) else { continue };
        let mut checkpoint = Checkpoint::from_json(&pipeline, &instant.requested, text).unwrap();
        change(&mut checkpoint);
        metadata.extra.insert(key, checkpoint.to_json());
        storage.put(&path, metadata.encode().unwrap()).await.unwrap();
        return;
    }
    panic!("{pipeline} has no commit in {url}");
}

pub(crate) async fn open(url: &str) -> (tributary_hudi::Storage, TableConfig, Timeline) {
    open_in(&SystemStores::new(), url).await
}

pub(crate) async fn open_in(stores: &dyn Stores, url: &str) -> (tributary_hudi::Storage, TableConfig, Timeline) {
    let storage = stores.open(url).unwrap();
    let config = TableConfig::load(&storage).await.unwrap();
    let timeline = Timeline::load(&storage, &config).await.unwrap();
    (storage, config, timeline)
}

/// What must hold of a target at rest, whatever happened to it: nothing pending; every data file is named by a commit;
/// the newest version of every file group is there, and all versions if nothing was cleaned; the metadata table lists
/// exactly the files that exist; sequence numbers and windows without a gap.
pub(crate) async fn assert_sound(url: &str, pipeline: &str) {
    assert_sound_in(&SystemStores::new(), url, pipeline).await;
}

/// The same, in some stores.
pub(crate) async fn assert_sound_in(stores: &dyn Stores, url: &str, pipeline: &str) {
    let (storage, _, timeline) = open_in(stores, url).await;
    let own = metadata_timeline(&storage).await.unwrap();
    let pending: Vec<_> =
        timeline.instants().iter().chain(own.instants()).filter(|instant| instant.is_pending()).collect();
    assert!(pending.is_empty(), "pending instants: {pending:?}");
    let mut named = BTreeSet::new();
    let mut newest = BTreeMap::new();
    for stat in commits(stores, url).await.into_iter().flat_map(|(_, metadata)| metadata.stats) {
        newest.insert((stat.partition, stat.file_id), stat.path.clone());
        named.insert(stat.path);
    }
    let listed = storage.list("").await.unwrap();
    let is_data = |path: &str| path.ends_with(".parquet") || LogFile::from_path(path, 0).is_some();
    let data = listed.iter().filter(|e| is_data(&e.path) && !e.path.starts_with(".hoodie"));
    let present: BTreeSet<String> = data.map(|entry| entry.path.clone()).collect();
    assert!(present.is_subset(&named), "data files that no commit names: {:?}", present.difference(&named));
    assert!(newest.values().all(|path| present.contains(path)), "{newest:?} not all in {present:?}");
    if !timeline.instants().iter().any(|instant| instant.action == Action::Clean) {
        assert_eq!(present, named, "data files and what commits name");
    }
    let kept = tributary_hudi::read_file_listing(&storage, &timeline).await.unwrap();
    let logs = kept.logs.into_iter().map(|log| log.path);
    let kept: BTreeSet<String> = kept.bases.into_iter().map(|file| file.path).chain(logs).collect();
    assert_eq!(kept, present, "the metadata table and what exists");
    let leftover = |path: &str| path.starts_with(".hoodie/.temp") || path.starts_with(".hoodie/.heartbeat");
    let left: Vec<_> = listed.iter().filter(|entry| leftover(&entry.path)).collect();
    assert!(left.is_empty(), "markers or heartbeats left: {left:?}");
    assert_windows_tile(&checkpoints_in(stores, url, pipeline).await);
}

fn assert_windows_tile(checkpoints: &[Checkpoint]) {
    let mut cursors: BTreeMap<&SourceName, _> = BTreeMap::new();
    for (number, checkpoint) in checkpoints.iter().enumerate() {
        assert_eq!(checkpoint.seq, number as u64 + 1, "sequence numbers without a gap");
        for (name, source) in &checkpoint.sources {
            let Some(window) = &source.window else { continue };
            if let Some(last) = cursors.get(name).copied() {
                assert_eq!(window.begin.as_ref(), Some(last), "{name}: each window begins where the last ended");
            }
            assert_eq!(Some(&window.end), source.cursor.as_ref());
            cursors.insert(name, &window.end);
        }
    }
}

/// `id, value` rows for a table made by a test.
pub(crate) fn values(rows: impl IntoIterator<Item = (String, i64)>) -> RecordBatch {
    let (ids, numbers): (Vec<String>, Vec<i64>) = rows.into_iter().unzip();
    let columns: Vec<(&str, ArrayRef)> =
        vec![("id", Arc::new(StringArray::from(ids))), ("value", Arc::new(Int64Array::from(numbers)))];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap()
}

/// A table of `id, value` rows at `url`.
pub(crate) async fn value_table(roles: &Embedded, url: &str) -> SourceTable {
    value_table_in(&SystemStores::new(), roles, url).await
}

/// The same, in some stores.
pub(crate) async fn value_table_in(stores: &dyn Stores, roles: &Embedded, url: &str) -> SourceTable {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let schema = values([]).schema();
    SourceTable::create(stores, roles.writer.clone(), clock, url, "id", schema).await.unwrap()
}

/// A table that [`value_table`] made.
pub(crate) async fn open_value_table(roles: &Embedded, url: &str) -> SourceTable {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    SourceTable::open(&SystemStores::new(), roles.writer.clone(), clock, url, values([]).schema()).await.unwrap()
}
