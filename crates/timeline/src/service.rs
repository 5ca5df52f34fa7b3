// SPDX-License-Identifier: Apache-2.0
//! The service: reads facts, decides, pins files.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use tributary_api::RowStream;
use tributary_api::timeline::{
    Error, InstantFact, InstantInfo, PlanRequest, ReadRequest, Relation, SourcePlan, Split, TableInfo, Timeline,
    WindowReport,
};
use tributary_hudi::Stores;
use tributary_hudi::target::CleanMark;
use tributary_types::pipeline::OnStale;
use tributary_types::{Clock, Cursor, Fault, InstantTime, with_causes};

use crate::cache::Cache;
use crate::decide::{Facts, Step, Window, decide, decide_gap};
use crate::facts::Table;
use crate::headroom::{clean_mark, headroom};
use crate::left_out::{LeftOut, check_files, leave_out};
use crate::relations::{Pinning, Relations};
use crate::schema::{Resolved, relation_schema, schema_as_of};
use crate::settings::Settings;
use crate::{metrics, read, refuse};

/// How often a plan whose files move under it is made anew.
const ATTEMPTS: usize = 3;

/// Reads Hudi tables of versions 6, 8 and 9.
pub struct Service {
    stores: Arc<dyn Stores>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    cache: Cache,
}

impl Service {
    /// A service over these stores.
    pub fn new(stores: Arc<dyn Stores>, clock: Arc<dyn Clock>, settings: Settings) -> Self {
        metrics::register();
        let cache = Cache::new(settings.cached_files);
        Service { stores, clock, settings, cache }
    }

    async fn open(&self, url: &str, what: &str) -> Result<Table, Error> {
        Table::open(self.stores.as_ref(), &self.cache, self.clock.as_ref(), url, what).await
    }

    async fn try_plan(&self, request: &PlanRequest) -> Result<SourcePlan, Error> {
        let mut table = self.open(&request.url, &format!("source `{}`", request.source)).await?;
        if !request.lookup {
            refuse::check_incremental(&request.url, &table.config)?;
        }
        if request.meta_columns {
            refuse::check_meta_columns(&request.url, &table.config)?;
        }
        check_identity(&table, request)?;
        let mut planned = self.plan_window(&mut table, request, decide).await;
        if request.on_stale == OnStale::Snapshot && !request.lookup && matches!(planned, Err(Error::Stale { .. })) {
            planned = self.plan_window(&mut table, request, decide_gap).await;
        }
        let (planned, known) = planned?;
        let mark = clean_mark(&table, &self.cache).await;
        let newest = table.newest_known_change(&known).cloned();
        let report = report(&table, request, &planned, &known, mark.as_ref());
        let Planned { end, window, schema, relations, .. } = planned;
        Ok(SourcePlan {
            source: request.source.clone(),
            table: info(&table, schema, newest),
            begin: window.begin,
            end,
            instants: window.instants,
            has_news: window.has_news,
            limited: window.limited,
            frontier_millis: table.frontier_millis(self.settings.frontier_margin_millis()),
            recent: window.recent,
            files: None,
            changed: relations.changed,
            at_end: relations.at_end,
            at_begin: relations.at_begin,
            report,
        })
    }

    async fn plan_window(
        &self,
        table: &mut Table,
        request: &PlanRequest,
        by: Decide,
    ) -> Result<(Planned, HashMap<InstantTime, bool>), Error> {
        let (window, known) = self.decide(table, request, by).await?;
        let planned = match self.pin(table, request, &window).await? {
            Ok((schema, relations)) => {
                Planned { end: table.kind().at(window.end.clone()), window, schema, relations, skipped: None }
            }
            Err(why) => {
                let skipped = Some(with_causes(&why));
                let LeftOut { window, cursor, schema, relations } = leave_out(request, &window, why)?;
                Planned { end: cursor, window, schema: Some(schema), relations, skipped }
            }
        };
        Ok((planned, known))
    }

    /// Pins the files of a window and resolves its schema; the inner error says why the files and it do not fit.
    async fn pin(
        &self,
        table: &Table,
        request: &PlanRequest,
        window: &Window,
    ) -> Result<Resolved<(Option<SchemaRef>, Relations)>, Error> {
        let schema = match schema_as_of(table, &self.cache, &window.end, request.look_only).await? {
            Ok(schema) => schema,
            Err(why) => return Ok(Err(why)),
        };
        let pinning = Pinning {
            table,
            cache: &self.cache,
            request,
            window,
            schema: relation_schema(schema.as_ref(), request.meta_columns),
        };
        let relations = pinning.pin().await?;
        if request.fallback_schema.is_some() && !request.look_only {
            let fit = check_files(self.stores.as_ref(), table, &self.cache, window, &relations).await?;
            return Ok(fit.map(|()| (schema, relations)));
        }
        Ok(Ok((schema, relations)))
    }

    /// Reads as few commits as the decision needs.
    async fn decide(
        &self,
        table: &mut Table,
        request: &PlanRequest,
        by: Decide,
    ) -> Result<(Window, HashMap<InstantTime, bool>), Error> {
        let mut known = HashMap::new();
        loop {
            let facts = Facts {
                version: table.config.version,
                kind: table.kind(),
                zone: table.config.zone,
                writes: &table.writes,
                pending: &table.pending,
                archived: &table.archive.writes,
                known: &known,
            };
            match by(request, &facts)? {
                Step::Decided(window) => return Ok((window, known)),
                Step::Classify(wanted) => table.classify(&self.cache, &wanted, &mut known).await?,
            }
        }
    }
}

/// What decides a window.
type Decide = fn(&PlanRequest, &Facts<'_>) -> Result<Step, Error>;

/// What a plan is made of.
struct Planned {
    window: Window,
    /// Its end as a cursor.
    end: Cursor,
    schema: Option<SchemaRef>,
    relations: Relations,
    /// Why the source was left out.
    skipped: Option<String>,
}

fn info(table: &Table, schema: Option<SchemaRef>, newest: Option<InstantFact>) -> TableInfo {
    let config = &table.config;
    TableInfo {
        url: table.url.clone(),
        name: config.name.clone(),
        version: config.version,
        table_type: config.table_type,
        zone: config.zone,
        fingerprint: table.fingerprint(),
        record_key: config.record_key(),
        partition_by: config.partition_by(),
        ordering: config.ordering(),
        schema,
        newest,
    }
}

#[async_trait]
impl Timeline for Service {
    async fn describe(&self, url: &str) -> Result<TableInfo, Error> {
        let table = self.open(url, "the request").await?;
        let newest = table.writes.last().map_or_else(InstantTime::init, |write| write.completed.clone());
        let schema = schema_as_of(&table, &self.cache, &newest, false).await??;
        Ok(info(&table, schema, table.newest_change(&self.cache).await?))
    }

    async fn list_instants(
        &self,
        url: &str,
        before: Option<&InstantTime>,
        limit: usize,
    ) -> Result<Vec<InstantInfo>, Error> {
        let table = self.open(url, "the request").await?;
        let newest = table.timeline.instants().iter().rev();
        let wanted = newest.filter(|instant| before.is_none_or(|before| instant.requested < *before)).take(limit);
        Ok(wanted
            .map(|instant| InstantInfo {
                requested: instant.requested.clone(),
                completed: instant.completed.clone(),
                action: instant.action.as_str().to_string(),
            })
            .collect())
    }

    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, Error> {
        let mut attempt = 1;
        let planned = loop {
            match self.try_plan(&request).await {
                // An archiver or a cleaner runs right now.
                Err(Error::FileGone { file, .. }) if attempt < ATTEMPTS => {
                    tracing::debug!(source = %request.source, file, attempt, "planning again, a file moved");
                    attempt += 1;
                }
                planned => break planned,
            }
        };
        match &planned {
            Ok(plan) => metrics::record_plan(plan),
            Err(error) => metrics::record_failure(request.source.as_str(), error.reason()),
        }
        planned
    }

    async fn read(&self, request: ReadRequest) -> Result<RowStream, Error> {
        read::read(self.stores.as_ref(), request).await
    }
}

fn check_identity(table: &Table, request: &PlanRequest) -> Result<(), Error> {
    match &request.fingerprint {
        Some(expected) if !table.is_table_of(expected) => Err(Error::Recreated {
            source_name: request.source.clone(),
            url: request.url.clone(),
            found: table.fingerprint(),
            expected: expected.clone(),
        }),
        _ => Ok(()),
    }
}

/// Figures of a window (W16). Commits that nobody had to look into count as ones that changed rows.
fn report(
    table: &Table,
    request: &PlanRequest,
    planned: &Planned,
    known: &HashMap<InstantTime, bool>,
    mark: Option<&CleanMark>,
) -> WindowReport {
    let Planned { window, relations, .. } = planned;
    let after: Vec<&InstantFact> = table.writes.iter().filter(|write| write.completed > window.end).collect();
    let pinned = [&relations.changed, &relations.at_end, &relations.at_begin];
    let splits = || pinned.iter().filter_map(|relation| relation.as_ref()).flat_map(|r: &Relation| &r.splits);
    let requested = |at: &InstantTime| {
        let write = table.writes.iter().rfind(|write| write.completed == *at);
        write.map(|write| write.requested.clone())
    };
    WindowReport {
        instants: window.instants.len(),
        files: splits().map(Split::files).sum(),
        bytes: splits().map(Split::total_bytes).sum(),
        oldest_pending: table.pending.first().map(|(at, _)| at.clone()),
        lag_instants: after.iter().filter(|write| known.get(&write.requested) != Some(&false)).count(),
        lag_seconds: lag_seconds(table, window, &after),
        headroom_instants: headroom(&table.writes, &window.end, mark, request.views.begin),
        late_delivered: window.late.clone(),
        begin_requested: window.begin.as_ref().and_then(|begin| begin.instant().and_then(requested)),
        end_requested: requested(&window.end),
        not_a_cut: false,
        gap: window.unless.is_some(),
        waits_for: window.waits_for.clone(),
        skipped: planned.skipped.clone(),
        ..WindowReport::default()
    }
}

fn lag_seconds(table: &Table, window: &Window, after: &[&InstantFact]) -> u64 {
    let zone = table.config.zone;
    let (Some(first), Some(newest)) = (after.first(), after.last()) else { return 0 };
    let from = window.end.epoch_millis(zone).or_else(|| first.completed.epoch_millis(zone));
    let lag = newest.completed.epoch_millis(zone).zip(from).map_or(0, |(newest, from)| newest - from);
    u64::try_from(lag / 1000).unwrap_or(0)
}
