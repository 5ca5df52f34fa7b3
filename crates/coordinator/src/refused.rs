// SPDX-License-Identifier: Apache-2.0
//! The error table's side of a batch: one commit of refused rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use tributary_api::Stop;
use tributary_api::boxed_error;
use tributary_api::coordinator::{Error, RunRequest};
use tributary_api::refused::{BAD_MESSAGE, BAD_RECORD, ERROR_KEY, NULL_KEY, RESULT_SOURCE, error_schema};
use tributary_api::writer::{FileSizes, StageRequest, Staged};
use tributary_hudi::target::{Owner, TableLock, begin_instant, create_table, find_completion};
use tributary_hudi::{Action, CommitMetadata, Storage, avro_schema, current_file_slices};
use tributary_types::pipeline::{
    ErrorTable, InsertConflict, OnNullKey, Operation, Pipeline, Services, Source, SourceKind, TableType, Target,
    Writers,
};
use tributary_types::{InstantTime, MemoryBudget, Outcome, Zone};

use crate::commit::Proposal;
use crate::compaction::Means;
use crate::decide::{Gate, gate};
use crate::heartbeat::Heartbeat;
use crate::housekeeping::{clear_dead_instants, mint, refuse_restoring, roll_back_own, tidy};
use crate::locks::{Held, Locks, Pausable, Relock};
use crate::remains::{refuse_damaged, refuse_reading_the_target, refuse_remains};
use crate::schema::target_schema;
use crate::service::Inner;
use crate::services::TableServices;
use crate::staged::{target_slices, write_stats};
use crate::target::{TargetState, check_config, key_settings, load_timeline, new_table, target_error};

/// Prefix of the metadata key by which a commit of the error table says whose it is.
const COMMIT_KEY: &str = "tributary.refused.";

/// A commit to the error table.
pub(crate) struct ErrorCommit<'a> {
    inner: &'a Inner,
    request: &'a RunRequest,
    definition: String,
    epoch: u64,
    storage: Storage,
    /// The pipeline with the error table as its target.
    pipeline: Pipeline,
}

/// An instant that was opened on the error table.
pub(crate) struct OpenedErrors {
    pub(crate) instant: InstantTime,
    target: TargetState,
    schema: SchemaRef,
    seen: BTreeSet<InstantTime>,
    owner: Owner,
    stage: StageRequest,
    heartbeat: Option<Heartbeat>,
}

impl<'a> ErrorCommit<'a> {
    /// Opens the table's store.
    pub(crate) fn open(
        inner: &'a Inner,
        request: &'a RunRequest,
        table: &ErrorTable,
        definition: &str,
        epoch: u64,
    ) -> Result<Self, Error> {
        let storage = inner.open_target(&table.path)?;
        let pipeline = with_error_table(&request.pipeline, table);
        let definition = definition.to_string();
        Ok(ErrorCommit { inner, request, definition, epoch, storage, pipeline })
    }

    /// Where the table is.
    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Opens an instant, with nothing of dead ones left on the table, which is created when absent. The caller holds the
    /// table's locks.
    pub(crate) async fn begin(&self, budget: &MemoryBudget, stop: &Stop) -> Result<OpenedErrors, Error> {
        let fail = |e| target_error(self.storage.url(), "opening an instant on the error table", e);
        let target = self.ready().await?;
        let timeline = load_timeline(&self.storage, &target.config).await?;
        refuse_restoring(&self.storage, &timeline)?;
        let instant = mint(self.inner.clock.as_ref(), &target, &timeline);
        let pipeline = &self.pipeline;
        let owner = Owner { pipeline: pipeline.name.clone(), epoch: self.epoch, process: self.inner.process.clone() };
        let directory = target.config.timeline_dir();
        let operation = Operation::Upsert.as_str();
        begin_instant(&self.storage, &directory, &instant, Action::Commit, operation, &owner).await.map_err(fail)?;
        let slices = current_file_slices(&self.storage, &target.config, &timeline).await.map_err(fail)?;
        let refuse = |problems: Vec<String>| self.mismatch(problems);
        let schema = target_schema(&pipeline.target, target.schema.as_ref(), &error_schema()).map_err(refuse)?;
        let seen = timeline.completed_writes().iter().map(|write| write.requested.clone()).collect();
        let files = &pipeline.target;
        let stage = StageRequest {
            url: self.storage.url().to_string(),
            table_name: target.config.name.clone(),
            table_type: target.config.table_type,
            instant: instant.clone(),
            attempt: 0,
            schema: error_schema(),
            table_schema: Arc::clone(&schema),
            operation: Operation::Upsert,
            keys: key_settings(&pipeline.target, &target.config),
            ordering: Vec::new(),
            merge: None,
            deletes_give_way: false,
            on_null_key: OnNullKey::Fail,
            files: FileSizes { small: files.small_file_limit.0, largest: files.max_file_size.0 },
            slices: Arc::new(target_slices(slices)),
            budget: budget.clone(),
            share: None,
            spill_bytes: pipeline.limits.spill.0,
            stop: stop.clone(),
        };
        let heartbeat = Heartbeat::go_on(
            self.storage.clone(),
            instant.clone(),
            owner.clone(),
            Arc::clone(&self.inner.clock),
            self.inner.settings.heartbeat_every,
        );
        Ok(OpenedErrors { instant, target, schema, seen, owner, stage, heartbeat: Some(heartbeat) })
    }

    async fn ready(&self) -> Result<TargetState, Error> {
        let Some(target) = TargetState::load(&self.storage).await? else { return self.create().await };
        refuse_damaged(&self.storage, &target).await?;
        let problems = check_config(&self.pipeline.target, &target.config);
        if !problems.is_empty() {
            return Err(self.mismatch(problems));
        }
        let clock = self.inner.clock.as_ref();
        let mut changed = clear_dead_instants(&self.storage, &target, clock, Writers::Exclusive).await? > 0;
        changed |= self.services(&target).resume().await;
        if !changed {
            return Ok(target);
        }
        TargetState::load(&self.storage).await?.ok_or_else(|| self.vanished())
    }

    async fn create(&self) -> Result<TargetState, Error> {
        refuse_remains(&self.storage).await?;
        let now = InstantTime::from_epoch_millis(self.inner.clock.now_millis(), Zone::Utc);
        create_table(&self.storage, &new_table(&self.pipeline), &now)
            .await
            .map_err(|e| target_error(self.storage.url(), "creating the error table", e))?;
        TargetState::load(&self.storage).await?.ok_or_else(|| self.vanished())
    }

    fn vanished(&self) -> Error {
        self.mismatch(vec!["it was there and cannot be found: the store does not show its own writes".to_string()])
    }

    fn mismatch(&self, problems: Vec<String>) -> Error {
        Error::Target { url: self.storage.url().to_string(), what: format!("the error table: {}", problems.join("; ")) }
    }

    /// Completes the instant with what was staged. Once this answers well the commit is there; after any error it may be
    /// taken as not there, since the batch does not go on: whatever arrives later is written anew by the next try.
    pub(crate) async fn complete(
        &self,
        opened: &OpenedErrors,
        staged: &Staged,
        seq: u64,
        lock: Held<'_>,
    ) -> Result<(), Error> {
        let fail = |e| target_error(self.storage.url(), "committing to the error table", e);
        let proposal = Proposal {
            storage: &self.storage,
            target: &opened.target,
            pipeline: &self.pipeline.name,
            definition: &self.definition,
            instant: &opened.instant,
            seen: &opened.seen,
            base: None,
            staged,
            action: Action::Commit,
            lock,
            settings: &self.inner.settings,
        };
        let renewed = opened.heartbeat.as_ref().map_or(0, Heartbeat::renewed_millis);
        let age = (self.inner.clock.now_millis() - renewed).max(0) as u64;
        let facts = proposal.facts(age, None).await?;
        let permit = match gate(self.pipeline.name.as_str(), &self.request.request, &facts) {
            Gate::Open(permit) => permit,
            Gate::AlreadyCommitted(_) => return Ok(()),
            Gate::Closed(what) => return Err(Error::Conflict { url: self.storage.url().to_string(), what }),
            Gate::AnsweredBy(other) => return Err(self.disturbed(&other)),
            Gate::Conflict(conflict) => return Err(self.disturbed(&conflict.instant)),
        };
        proposal.delete_unnamed().await?;
        let name = &self.pipeline.name;
        let whose = serde_json::json!({"seq": seq, "rows": staged.rows_in}).to_string();
        let extra = BTreeMap::from([
            ("schema".to_string(), avro_schema(&opened.target.config.name, &opened.schema).map_err(fail)?),
            (format!("{COMMIT_KEY}{name}"), whose),
        ]);
        let metadata = CommitMetadata {
            operation: Operation::Upsert.as_str().to_string(),
            stats: write_stats(&staged.files),
            replaced: BTreeMap::new(),
            extra,
            compacted: false,
        };
        match proposal.complete(&permit, &metadata, self.inner.clock.as_ref()).await {
            Ok(_) => Ok(()),
            Err(error) if error.outcome() == Outcome::Unknown => self.read_back(opened, error).await,
            Err(error) => Err(error),
        }
    }

    fn disturbed(&self, other: &InstantTime) -> Error {
        let what = format!("commit {other} was made to the error table while its lock was held");
        Error::Conflict { url: self.storage.url().to_string(), what }
    }

    /// Looks what became of a completing request without an answer. The batch goes on only if it arrived.
    async fn read_back(&self, opened: &OpenedErrors, unknown: Error) -> Result<(), Error> {
        let settings = &self.inner.settings;
        let directory = opened.target.config.timeline_dir();
        for _ in 0..settings.commit_tries {
            tokio::time::sleep(settings.commit_pause).await;
            match find_completion(&self.storage, &directory, &opened.instant).await {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the error table cannot be read back yet");
                }
            }
        }
        Err(Error::Store {
            url: self.storage.url().to_string(),
            doing: format!(
                "committing {} to the error table, whose outcome is unknown; the batch commits nothing, and the next try \
                 writes the rows anew",
                opened.instant
            ),
            source: boxed_error(unknown),
        })
    }

    /// Ends with the table what an instant left on it.
    pub(crate) async fn end(&self, opened: &mut OpenedErrors, committed: bool, acknowledged: bool, locks: &Locks) {
        if let Some(heartbeat) = opened.heartbeat.take() {
            heartbeat.stop().await;
        }
        if committed {
            tidy(&self.storage, &opened.instant).await;
            return;
        }
        let short = locks.held(None).left().is_some_and(|left| left <= self.inner.settings.commit_request);
        if !acknowledged || short {
            tracing::warn!(instant = %opened.instant, "the next batch rolls back what is left on the error table");
            return;
        }
        let clock = self.inner.clock.as_ref();
        if let Err(failed) = roll_back_own(&self.storage, &opened.target, &opened.instant, &opened.owner, clock).await {
            let error = &failed as &dyn std::error::Error;
            tracing::warn!(instant = %opened.instant, error, "rolling back on the error table failed; the next batch does it");
        }
    }

    /// Keeps the table small, once it was written.
    pub(crate) async fn serve(&self, opened: &OpenedErrors, budget: &MemoryBudget, locks: &Locks) {
        let settings = &self.inner.settings;
        let nobody = NobodyElse;
        let pausable = Pausable::new(locks, None, &nobody);
        let means =
            Means { owner: &opened.owner, memory: budget, locks: &pausable, commit_request: settings.commit_request };
        // Not every commit of the pipeline has rows here, so its own commits are counted.
        let commits = opened.seen.len() as u64 + 1;
        let limit = self.pipeline.limits.timeout.0;
        self.services(&opened.target).run_within(limit, settings.stop_within, Some(commits), &means).await;
    }

    fn services<'t>(&'t self, target: &'t TargetState) -> TableServices<'t> {
        TableServices {
            storage: &self.storage,
            target,
            services: self.pipeline.target.services,
            clock: self.inner.clock.as_ref(),
            process: &self.inner.process,
        }
    }
}

impl OpenedErrors {
    /// What the writer is asked for.
    pub(crate) fn stage(&self) -> StageRequest {
        self.stage.clone()
    }
}

/// Nobody else writes the error table while its lock is held.
struct NobodyElse;

#[async_trait]
impl Relock for NobodyElse {
    async fn relock(&self) -> Result<Option<TableLock>, Error> {
        Ok(None)
    }
}

/// The pipeline with the error table as its target: of the same version, so that whoever reads one reads the other.
fn with_error_table(pipeline: &Pipeline, table: &ErrorTable) -> Pipeline {
    let mut changed = pipeline.clone();
    changed.target = Target {
        path: table.path.clone(),
        table_name: table.table_name.clone(),
        table_type: TableType::CopyOnWrite,
        record_key: ERROR_KEY.map(ToString::to_string).to_vec(),
        partition_by: vec!["pipeline".to_string()],
        ordering: Vec::new(),
        operation: Operation::Upsert,
        acknowledge_window_only: false,
        writers: Writers::Exclusive,
        insert_conflict: InsertConflict::Fail,
        on_null_key: OnNullKey::Fail,
        hive_style: true,
        services: Services::default(),
        merge: None,
        ..changed.target
    };
    changed
}

/// Refuses an error table that is another table of the pipeline, by whatever path, or that is not what it would be
/// created as. Changes nothing.
pub(crate) async fn check_error_table(
    inner: &Inner,
    pipeline: &Pipeline,
    table: &ErrorTable,
    target: &Storage,
) -> Result<(), Error> {
    let storage = inner.open_target(&table.path)?;
    let refuse = |what: String| Error::Target { url: storage.url().to_string(), what };
    if storage.is_at(target) {
        return Err(refuse(
            "it is the target and the error table: give the error table a directory of its own".to_string(),
        ));
    }
    refuse_reading_the_target(inner.stores.as_ref(), pipeline, &storage)?;
    let Some(found) = TargetState::load(&storage).await? else { return Ok(()) };
    let problems = check_config(&with_error_table(pipeline, table).target, &found.config);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(refuse(format!("it is no error table: {}", problems.join("; ")))),
    }
}

/// Which rows a pipeline may refuse: their sources and reasons.
pub(crate) fn refusing(pipeline: &Pipeline) -> Vec<(String, &'static str)> {
    let sources = pipeline.sources.iter().filter(|source| source.refuses_records());
    let reason = |source: &Source| if source.kind == SourceKind::Kafka { BAD_MESSAGE } else { BAD_RECORD };
    let mut refusing: Vec<_> = sources.map(|source| (source.name.to_string(), reason(source))).collect();
    if pipeline.target.on_null_key == OnNullKey::ErrorTable {
        refusing.push((RESULT_SOURCE.to_string(), NULL_KEY));
    }
    refusing
}

/// The text at a row of a column; empty where there is none.
pub(crate) fn cell(batch: &RecordBatch, column: &str, row: usize) -> String {
    let column = batch.column_by_name(column).and_then(|column| column.as_string_opt::<i32>());
    column
        .filter(|column| row < column.len() && column.is_valid(row))
        .map(|column| column.value(row).to_string())
        .unwrap_or_default()
}
