// SPDX-License-Identifier: Apache-2.0
//! Plans of topics: asks the brokers, decides the window, settles the columns.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use tributary_api::timeline::{
    Begin, Deleted, Error, FileSplit, FilesRequest, NAMES_REPORTED, PlanRequest, Relation, SourcePlan, Split,
    TableInfo, TopicSplit, WindowReport,
};
use tributary_types::pipeline::{FileFormat, TableType, TopicSource, UnknownColumns};
use tributary_types::{Cursor, FileState, TopicOffsets, Zone};

use crate::csv::{CsvFormat, CsvSample, CsvSampler};
use crate::json::{JsonFormat, JsonSampler, Shape};
use crate::kafka::decide::{Facts, Problem, Question, Window, decide, told};
use crate::kafka::log::{Asked, At, Log, Message, Place, Topic};
use crate::kafka::schema::shown;
use crate::{schema, sniff};

/// Bytes asked for at once by a look at messages.
const LOOK_BYTES: i32 = 1 << 20;
/// Answers that a look at one end of a partition takes at most.
const LOOKS: usize = 20;
/// Bytes of a message where none was looked at.
const TYPICAL_MESSAGE: u64 = 256;
/// What the fingerprint of a topic begins with; nothing follows where the brokers tell no identity.
const FINGERPRINT: &str = "topic:";

/// Fixes the window of a topic.
pub(crate) async fn plan(
    request: &PlanRequest,
    files: &FilesRequest,
    topic: &TopicSource,
    log: &dyn Log,
    now_millis: i64,
) -> Result<SourcePlan, Error> {
    let place = Place { source: request.source.clone(), url: request.url.clone() };
    if request.lookup || request.views.end || request.views.begin {
        let name = &request.source;
        return Err(place.refuse(&format!(
            "a topic cannot be looked up: name `<SRC:{name}>` in the SQL, not `<SNAP:{name}>` or `<PREV:{name}>`"
        )));
    }
    let described = log.describe().await.map_err(|error| place.fault(error))?;
    let fingerprint = format!("{FINGERPRINT}{}", described.id.as_deref().unwrap_or_default());
    check_identity(&place, request, &fingerprint)?;
    let planning = Planning { place, request, files, topic, log };
    let facts = planning.facts(&described).await?;
    let pinned = match &request.pinned_end {
        Some(Cursor::Offsets(offsets)) => Some(offsets),
        _ => None,
    };
    let question = Question { topic: &topic.topic, begin: &request.begin, pinned, options: &topic.options };
    let window = decide(&question, &facts).map_err(|problem| planning.problem(problem))?;
    let look = planning.look(&described, &window, &facts).await?;
    let settled = planning.settle(&look)?;
    let mut state = FileState::default();
    let mut relation_schema = None;
    if let Some((kept, values)) = settled {
        state.schema = Some(schema::to_json(&kept));
        let all = shown(&values, topic).map_err(|what| planning.place.refuse(&what))?;
        relation_schema = Some((all, values.fields().len()));
    }
    Ok(planning.into_plan(Planned { described, fingerprint, window, look, state, schema: relation_schema, now_millis }))
}

/// Refuses another topic of the same name.
fn check_identity(place: &Place, request: &PlanRequest, found: &str) -> Result<(), Error> {
    let Some(expected) = request.fingerprint.as_deref().filter(|expected| expected.len() > FINGERPRINT.len()) else {
        return Ok(());
    };
    match found.len() > FINGERPRINT.len() && found != expected {
        true => Err(place.recreated(format!("its identity is {found}, and it was {expected}"))),
        false => Ok(()),
    }
}

struct Planning<'a> {
    place: Place,
    request: &'a PlanRequest,
    files: &'a FilesRequest,
    topic: &'a TopicSource,
    log: &'a dyn Log,
}

/// Messages that were looked at.
#[derive(Default)]
struct Look {
    values: Vec<Vec<u8>>,
    bytes: u64,
    messages: u64,
}

impl Look {
    fn take(&mut self, messages: Vec<Message>) {
        for message in messages {
            self.messages += 1;
            self.bytes += message.key.as_ref().map_or(0, |key| key.len() as u64);
            if let Some(value) = message.value {
                self.bytes += value.len() as u64;
                self.values.push(value.to_vec());
            }
        }
    }
}

/// Everything of a plan but its form.
struct Planned {
    described: Topic,
    fingerprint: String,
    window: Window,
    look: Look,
    state: FileState,
    /// All columns, and how many of them are those of values; `None`: no message shows any.
    schema: Option<(SchemaRef, usize)>,
    now_millis: i64,
}

impl Planning<'_> {
    fn problem(&self, problem: Problem) -> Error {
        match problem {
            Problem::Unfit(what) => self.place.refuse(&format!(
                "{what}. Give the source another name in the pipeline and its SQL: it then begins at its `start`"
            )),
            Problem::Gone(gone) => {
                Error::OutOfRange { source_name: self.place.source.clone(), url: self.place.url.clone(), gone }
            }
            Problem::Recreated(why) => self.place.recreated(why),
        }
    }

    async fn facts(&self, described: &Topic) -> Result<Facts, Error> {
        let partitions = &described.partitions;
        let starts = self.offsets(partitions, At::Start).await?;
        // Asked after the starts, so that no end lies before its start.
        let ends = self.offsets(partitions, At::End).await?;
        let timed = match self.request.begin {
            Begin::Timestamp(millis) => self.offsets(partitions, At::Time(millis)).await?,
            _ => BTreeMap::new(),
        };
        let ceiling = match self.request.ceiling_millis {
            Some(millis) => self.offsets(partitions, At::Time(millis.saturating_add(1))).await?,
            None => BTreeMap::new(),
        };
        Ok(Facts { starts, ends, timed, ceiling })
    }

    async fn offsets(&self, partitions: &[i32], at: At) -> Result<BTreeMap<i32, i64>, Error> {
        let found = self.log.offsets(partitions, at).await.map_err(|error| self.place.fault(error))?;
        Ok(found.into_iter().filter_map(|(partition, offset)| offset.map(|offset| (partition, offset))).collect())
    }

    /// What is given and what earlier plans settled.
    fn known(&self) -> Result<Option<Schema>, Error> {
        let given = self.files.source.files.schema.as_deref();
        let kept = self.files.state.as_ref().and_then(|state| state.schema.as_deref());
        schema::settled("`kafka.schema`", given, kept, self.evolves()).map_err(|problem| self.place.refuse(&problem))
    }

    fn evolves(&self) -> bool {
        self.topic.options.unknown_columns == UnknownColumns::Evolve
    }

    /// Looks at the first and the last messages of the window; where it has none and nothing says what columns there are, at
    /// those before it.
    async fn look(&self, described: &Topic, window: &Window, facts: &Facts) -> Result<Look, Error> {
        let known = self.known()?.is_some();
        let is_json = matches!(self.files.source.format, FileFormat::Json(_));
        let mut look = Look::default();
        if known && !(is_json && self.evolves()) {
            return Ok(look);
        }
        let before = |partition: &i32| {
            let (start, end) = facts.starts.get(partition).zip(facts.ends.get(partition))?;
            (start < end).then_some((*partition, *start..*end))
        };
        let spans: BTreeMap<i32, Range<i64>> = match window.spans.is_empty() {
            false => window.spans.clone(),
            true if known => return Ok(look),
            true => described.partitions.iter().filter_map(before).collect(),
        };
        let most = i64::from(self.topic.options.sample_events.max(1));
        let part = (most / (2 * spans.len().max(1) as i64)).max(1);
        for (partition, span) in &spans {
            let middle = span.start + (span.end - span.start).min(part);
            self.look_at(described, *partition, span.start..middle, &mut look).await?;
            self.look_at(described, *partition, middle.max(span.end - part)..span.end, &mut look).await?;
        }
        Ok(look)
    }

    async fn look_at(&self, described: &Topic, partition: i32, span: Range<i64>, look: &mut Look) -> Result<(), Error> {
        let mut offset = span.start;
        for _ in 0..LOOKS {
            if offset >= span.end {
                break;
            }
            let asked = Asked { topic_id: described.id.as_deref(), partition, offset, end: span.end };
            let fetched = self.log.fetch(&asked, LOOK_BYTES).await.map_err(|error| self.place.fault(error))?;
            if fetched.next <= offset {
                // Whoever reads the span finds out why.
                break;
            }
            offset = fetched.next;
            look.take(fetched.messages);
        }
        Ok(())
    }

    /// The columns of values as the checkpoint keeps them, and as they are read; `None` when nothing says what they are.
    fn settle(&self, look: &Look) -> Result<Option<(Schema, Schema)>, Error> {
        let known = self.known()?;
        let broken = |problems: Vec<String>| self.place.refuse(&problems.join("; "));
        let (kept, corrupt) = match &self.files.source.format {
            FileFormat::Json(options) => {
                let format = JsonFormat::new(options).map_err(broken)?;
                (self.json(known, &format, look), format.corrupt)
            }
            FileFormat::Csv(options) => {
                let format = CsvFormat::new(options).map_err(broken)?;
                (self.csv(known, &format, look)?, format.corrupt)
            }
            FileFormat::Parquet => return Err(self.place.refuse("a message is no Parquet file")),
        };
        Ok(kept.map(|kept| (kept.clone(), schema::with_corrupt(kept, corrupt.as_deref()))))
    }

    fn json(&self, known: Option<Schema>, format: &JsonFormat, look: &Look) -> Option<Schema> {
        let mut shape = Shape::Nothing;
        for value in &look.values {
            let objects = if self.topic.options.lines { usize::MAX } else { 1 };
            let mut sampler = JsonSampler::new(objects, format.max_record);
            sampler.push(value, true);
            shape.merge(sampler.finish());
        }
        let columns = shape.columns();
        match known {
            Some(known) if self.evolves() => Some(schema::grown(&known, &columns)),
            Some(known) => Some(known),
            None => (!columns.is_empty()).then(|| Schema::new(columns)),
        }
    }

    fn csv(&self, known: Option<Schema>, format: &CsvFormat, look: &Look) -> Result<Option<Schema>, Error> {
        if known.is_some() {
            return Ok(known);
        }
        let infer = format.infer && self.topic.options.sample_events > 0;
        let format = CsvFormat { infer, ..format.clone() };
        let mut samples: Vec<CsvSample> = Vec::with_capacity(look.values.len());
        for value in &look.values {
            let mut sampler = CsvSampler::new(&format, if self.topic.options.lines { usize::MAX } else { 1 });
            sampler.push(value, true).map_err(|problem| self.place.refuse(&problem))?;
            samples.push(sampler.finish());
        }
        let shows = samples.iter().any(|sample| !sample.names.is_empty());
        Ok(shows.then(|| Schema::new(sniff::csv_columns(&format, &samples))))
    }

    fn into_plan(self, planned: Planned) -> SourcePlan {
        let report = report(&planned.window, self.request.ceiling_millis.is_some());
        let first = !matches!(self.request.begin, Begin::After(_));
        // Where a topic is read from a moment on, that moment is news: nothing else keeps it. What is lost is told once.
        let fixes_start = first && matches!(self.request.begin, Begin::Latest | Begin::Timestamp(_));
        let has_news = !planned.window.spans.is_empty() || !planned.window.lost.is_empty() || fixes_start;
        let wanted = self.request.views.changed;
        let changed = planned
            .schema
            .as_ref()
            .filter(|_| wanted)
            .map(|(all, values)| Relation { schema: Arc::clone(all), splits: self.splits(&planned, *values) });
        let table = TableInfo {
            url: self.request.url.clone(),
            name: self.request.source.to_string(),
            version: 0,
            table_type: TableType::CopyOnWrite,
            zone: Zone::Utc,
            fingerprint: planned.fingerprint,
            record_key: Vec::new(),
            partition_by: Vec::new(),
            ordering: Vec::new(),
            schema: planned.schema.map(|(all, _)| all),
            newest: None,
        };
        let cursor = |offsets: TopicOffsets| Cursor::Offsets(offsets);
        SourcePlan {
            source: self.request.source.clone(),
            table,
            begin: Some(cursor(planned.window.begin)),
            end: cursor(planned.window.end),
            instants: Vec::new(),
            has_news,
            limited: planned.window.limited,
            frontier_millis: planned.now_millis,
            recent: Vec::new(),
            changed,
            at_end: None,
            at_begin: None,
            report,
            files: Some(Box::new(planned.state)),
        }
    }

    fn splits(&self, planned: &Planned, value_columns: usize) -> Vec<Split> {
        let source = Arc::new(self.topic.clone());
        let format = Arc::new(self.files.source.format.clone());
        let strict = self.topic.options.unknown_columns == UnknownColumns::Fail;
        let typical = planned.look.bytes.checked_div(planned.look.messages).unwrap_or(TYPICAL_MESSAGE).max(1);
        let split = |(partition, span): (&i32, &Range<i64>)| Split {
            url: self.request.url.clone(),
            partition: String::new(),
            file_id: format!("{}-{partition}", self.topic.topic),
            path: format!("partition {partition}, offsets {} to {}", span.start, span.end - 1),
            // An estimate: what a span holds only reading shows.
            bytes: typical.saturating_mul((span.end - span.start).unsigned_abs()),
            logs: None,
            instants: None,
            all_but: false,
            deleted: Deleted::Unsaid,
            file: Some(FileSplit {
                source: self.request.source.clone(),
                format: Arc::clone(&format),
                modified_millis: 0,
                e_tag: None,
                strict,
                topic: Some(TopicSplit {
                    source: Arc::clone(&source),
                    topic_id: planned.described.id.clone(),
                    partition: *partition,
                    begin: span.start,
                    end: span.end,
                    value_columns,
                }),
                refused: false,
            }),
        };
        planned.window.spans.iter().map(split).collect()
    }
}

fn report(window: &Window, aligned: bool) -> WindowReport {
    let length = |span: &Range<i64>| (span.end - span.start).unsigned_abs();
    WindowReport {
        instants: window.spans.values().map(|span| length(span) as usize).sum(),
        files: window.spans.len(),
        lag_instants: window.lag as usize,
        not_a_cut: aligned && window.limited,
        left_out: window.lost.iter().take(NAMES_REPORTED).map(|(partition, span)| told(*partition, span)).collect(),
        left_out_files: window.lost.values().map(length).sum(),
        ..WindowReport::default()
    }
}
