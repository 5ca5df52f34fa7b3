// SPDX-License-Identifier: Apache-2.0
//! The service: lists, decides, settles the schema, pins files.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use tributary_api::RowStream;
use tributary_api::timeline::{
    Deleted, Error, FileSplit, FilesRequest, NAMES_REPORTED, PlanRequest, ReadRequest, Relation, SourcePlan, Split,
    TableInfo, Timeline, WindowReport,
};
use tributary_hudi::{Entry, Storage, Stores};
use tributary_types::pipeline::{FileFormat, TableType, TopicSource, UnknownColumns};
use tributary_types::{Clock, Cursor, Fault, FilePosition, Zone};

use crate::decide::{Facts, Window, decide, is_uncut};
use crate::fault::fault;
use crate::listing::{Listed, Rules};
use crate::notice::no_file;
use crate::refused::CleanSplits;
use crate::settings::Settings;
use crate::settle::{Settling, settle};
use crate::{kafka, metrics, read, schema};

/// How often a plan whose files move under it is made anew.
const ATTEMPTS: usize = 3;

/// Reads directories of files, and topics.
pub struct Service {
    stores: Arc<dyn Stores>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    clean: Arc<CleanSplits>,
}

impl Service {
    /// A service over these stores.
    pub fn new(stores: Arc<dyn Stores>, clock: Arc<dyn Clock>, settings: Settings) -> Self {
        Service { stores, clock, settings, clean: Arc::default() }
    }

    /// Refuses a topic where locations are restricted and it is none of them: by what it is read from, not by what the
    /// request calls it.
    fn allow(&self, topic: &TopicSource) -> Result<(), Error> {
        let url = topic.url();
        self.stores.check(&url).map_err(|error| match error {
            tributary_hudi::Error::Location { url, detail } => Error::Unsupported { url, what: detail },
            other => fault(&url)(other),
        })
    }

    async fn plan_topic(
        &self,
        request: &PlanRequest,
        files: &FilesRequest,
        topic: &TopicSource,
    ) -> Result<SourcePlan, Error> {
        self.allow(topic)?;
        let log = kafka::Client::new(topic.clone());
        let plan = Box::pin(kafka::plan(request, files, topic, &log, self.clock.now_millis())).await?;
        metrics::record_topic(&plan);
        Ok(plan)
    }

    async fn try_plan(&self, request: &PlanRequest, files: &FilesRequest) -> Result<SourcePlan, Error> {
        if let Some(topic) = &files.source.topic {
            return self.plan_topic(request, files, topic).await;
        }
        let url = &request.url;
        let refuse = |problems: Vec<String>| Error::Unsupported {
            url: url.clone(),
            what: format!("source `{}`: {}", request.source, problems.join("; ")),
        };
        let rules = Rules::new(&files.source.files).map_err(refuse)?;
        let storage = self.stores.open(url).map_err(fault(url))?;
        if storage.lacks_directory() {
            // It would look like a directory in which nothing is new.
            return Err(Error::NoDirectory { source_name: request.source.clone(), url: url.clone() });
        }
        let now_millis = self.clock.now_millis();
        let entries = list(&storage, files.source.files.recursive).await?;
        let listed = rules.choose(&entries).map_err(|file| {
            refuse(vec![format!(
                "the name of file `{file}` does not begin with a time as `files.name_timestamp` says; move it, or leave \
                 it out with `files.glob`"
            )])
        })?;
        let mut window = decide(request, files, &Facts { listed: &listed, now_millis, rules: &rules })?;
        let settling =
            Settling { storage: &storage, request, files, listed: &listed, window: &window, settings: &self.settings };
        let schema = settle(&settling).await?;
        if let Some(schema) = &schema {
            window.state.schema = Some(schema::to_json(&schema.kept));
        }
        let schema = schema.map(|settled| Arc::new(settled.shown));
        let unread = window.end.as_ref().is_none_or(FilePosition::is_start);
        let notice = (listed.is_empty() && unread)
            .then(|| no_file(url, &files.source.files, &entries, storage.tells_directories()));
        let quiet = i64::try_from(files.source.files.quiet.0.as_millis()).unwrap_or(i64::MAX);
        let plan = Planned { request, files, listed: &listed, window, schema, uncut: is_uncut(request, files) };
        let late = plan.window.late.len() as u64;
        let mut plan = plan.into_plan(now_millis.saturating_sub(quiet));
        plan.report.notice = notice.flatten();
        metrics::record_plan(&plan, listed.len(), late);
        Ok(plan)
    }
}

async fn list(storage: &Storage, recursive: bool) -> Result<Vec<Entry>, Error> {
    let listed = if recursive { storage.list("").await } else { storage.list_level("").await.map(|(files, _)| files) };
    listed.map_err(fault(storage.url()))
}

/// Everything of a plan but its form.
struct Planned<'a> {
    request: &'a PlanRequest,
    files: &'a FilesRequest,
    listed: &'a [Listed],
    window: Window,
    schema: Option<SchemaRef>,
    uncut: bool,
}

impl Planned<'_> {
    fn into_plan(self, frontier_millis: i64) -> SourcePlan {
        let report = self.report();
        let views = self.request.views;
        let relation = |wanted: bool, files: &[usize]| wanted.then(|| self.relation(files)).flatten();
        let (changed, at_end, at_begin) = (
            relation(views.changed, &self.window.read),
            relation(views.end, &self.window.at_end),
            relation(views.begin, &self.window.at_begin),
        );
        let table = TableInfo {
            url: self.request.url.clone(),
            name: self.request.source.to_string(),
            version: 0,
            table_type: TableType::CopyOnWrite,
            zone: Zone::Utc,
            fingerprint: "files".to_string(),
            record_key: Vec::new(),
            partition_by: Vec::new(),
            ordering: Vec::new(),
            schema: self.schema.clone(),
            newest: None,
        };
        let order = self.files.source.files.order;
        let end = self.window.end.clone().unwrap_or_else(|| FilePosition::start(order));
        SourcePlan {
            source: self.request.source.clone(),
            table,
            begin: self.window.begin.clone().map(Cursor::File),
            end: Cursor::File(end),
            instants: Vec::new(),
            has_news: !self.window.read.is_empty(),
            limited: self.window.limited,
            frontier_millis,
            recent: Vec::new(),
            changed,
            at_end,
            at_begin,
            report,
            files: Some(Box::new(self.window.state)),
        }
    }

    /// `None` where no file was ever read and no schema is given.
    fn relation(&self, files: &[usize]) -> Option<Relation> {
        let schema = self.schema.clone()?;
        let format = Arc::new(self.files.source.format.clone());
        let strict = self.files.source.files.unknown_columns == UnknownColumns::Fail;
        let split = |at: &usize| self.split(&self.listed[*at], &format, strict);
        Some(Relation { schema, splits: files.iter().map(split).collect() })
    }

    fn split(&self, listed: &Listed, format: &Arc<FileFormat>, strict: bool) -> Split {
        let file = &listed.file;
        Split {
            url: self.request.url.clone(),
            partition: String::new(),
            file_id: file.path.clone(),
            path: file.path.clone(),
            bytes: file.bytes,
            logs: None,
            instants: None,
            all_but: false,
            deleted: Deleted::Unsaid,
            file: Some(FileSplit {
                source: self.request.source.clone(),
                format: Arc::clone(format),
                modified_millis: file.modified_millis,
                e_tag: file.e_tag.clone(),
                strict,
                topic: None,
                refused: false,
            }),
        }
    }

    fn report(&self) -> WindowReport {
        let window = &self.window;
        let read = if self.request.lookup { &window.at_end } else { &window.read };
        let cut = |names: &[String]| names.iter().take(NAMES_REPORTED).cloned().collect();
        WindowReport {
            instants: window.read.len(),
            files: read.len(),
            bytes: read.iter().map(|at| self.listed[*at].file.bytes).sum(),
            lag_instants: window.lag,
            lag_seconds: self.lag_seconds(),
            not_a_cut: self.uncut,
            late_files: cut(&window.late),
            left_out: cut(&window.left_out),
            left_out_files: window.left_out.len() as u64,
            ..WindowReport::default()
        }
    }

    fn lag_seconds(&self) -> u64 {
        let time = |listed: &Listed| listed.at.millis.unwrap_or(listed.file.modified_millis);
        let newest = self.listed.last().filter(|_| self.window.lag > 0).map(time);
        let end = self.window.end.as_ref().and_then(|end| {
            let file = self.listed.iter().find(|listed| listed.at == *end).map(time);
            file.or(end.millis.filter(|_| !end.is_start()))
        });
        let end = end.or_else(|| self.listed.first().map(time));
        newest.zip(end).map_or(0, |(newest, end)| u64::try_from((newest - end) / 1000).unwrap_or(0))
    }
}

#[async_trait]
impl Timeline for Service {
    async fn describe(&self, url: &str) -> Result<TableInfo, Error> {
        Err(Error::Unsupported { url: url.to_string(), what: "the timeline role says what tables are".to_string() })
    }

    #[tracing::instrument(name = "plan a window", skip_all, fields(role = "sources", source = %request.source))]
    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, Error> {
        let Some(files) = &request.files else {
            let what = "a table is planned by the timeline role".to_string();
            return Err(Error::Unsupported { url: request.url.clone(), what });
        };
        let mut attempt = 1;
        let planned = loop {
            match Box::pin(self.try_plan(&request, files)).await {
                // It moved while it was looked into; the next listing shows it as it is.
                Err(Error::FileGone { file, .. } | Error::FileChanged { file, .. })
                    if files.pinned.is_none() && attempt < ATTEMPTS =>
                {
                    tracing::debug!(source = %request.source, file, attempt, "planning again, a file moved");
                    attempt += 1;
                }
                planned => break planned,
            }
        };
        if let Err(error) = &planned {
            metrics::record_failure(request.source.as_str(), error.reason());
        }
        planned
    }

    async fn read(&self, request: ReadRequest) -> Result<RowStream, Error> {
        let url = request.split.url.clone();
        if let Some(file) = &request.split.file
            && let Some(split) = &file.topic
        {
            self.allow(&split.source)?;
            let log = Arc::new(kafka::Client::new(split.source.as_ref().clone()));
            return kafka::read(log, &file.clone(), &split.clone(), request, self.settings.part_bytes, &self.clean);
        }
        let storage = self.stores.open(&url).map_err(fault(&url))?;
        read::read(&storage, request, self.settings.part_bytes, &self.clean).await
    }
}

/// Columns as they are settled for a plan.
pub(crate) struct Settled {
    /// What the checkpoint keeps.
    pub(crate) kept: Schema,
    /// What queries see.
    pub(crate) shown: Schema,
}
