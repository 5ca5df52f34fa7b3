// SPDX-License-Identifier: Apache-2.0
//! The target table as a batch finds it, and whether it is what the pipeline says.

use arrow::datatypes::Schema;
use tributary_api::coordinator::Error;
use tributary_api::writer::KeySettings;
use tributary_api::{BoxedError, boxed_error};
use tributary_hudi::target::{NewTable, StatsIndex};
use tributary_hudi::{
    Action, CommitMetadata, MergeRules, Storage, TableConfig, Timeline, arrow_schema, without_meta_columns,
};
use tributary_types::pipeline::{Pipeline, TableType, Target, Writers};
use tributary_types::{InstantTime, pipeline_of_key};

/// The target as one listing showed it.
#[derive(Debug, Clone)]
pub(crate) struct TargetState {
    pub(crate) config: TableConfig,
    pub(crate) timeline: Timeline,
    /// Schema without meta columns; `None` for a table without a commit.
    pub(crate) schema: Option<Schema>,
    /// A write of somebody else that changed rows after our newest commit.
    pub(crate) foreign: Option<ForeignWrite>,
    /// The columns that its metadata table keeps statistics of.
    pub(crate) statistics: Option<StatsIndex>,
}

/// A write that is not of any pipeline of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForeignWrite {
    pub(crate) instant: InstantTime,
    /// Our newest commit before it.
    pub(crate) after: InstantTime,
}

impl TargetState {
    /// Reads the target; `None` when there is no table.
    pub(crate) async fn load(storage: &Storage) -> Result<Option<Self>, Error> {
        let config = match TableConfig::load(storage).await {
            Ok(config) => config,
            Err(tributary_hudi::Error::NoTable { .. }) => return Ok(None),
            Err(e) => return Err(target_error(storage.url(), "reading the target's properties", e)),
        };
        let timeline = load_timeline(storage, &config).await?;
        let mut newest = Newest::default();
        for instant in timeline.completed_writes().into_iter().rev() {
            let Some(path) = timeline.completed_path(instant) else { continue };
            newest.add(&instant.requested, &path, &read_metadata(storage, &path).await?);
            if newest.is_complete() {
                break;
            }
        }
        let text = newest.schema.or_else(|| {
            let created = config.get("hoodie.table.create.schema")?;
            Some(("hoodie.properties".to_string(), created.to_string()))
        });
        let schema = match text {
            None => None,
            Some((file, text)) => {
                let schema =
                    arrow_schema(&file, &text).map_err(|e| target_error(storage.url(), "reading the schema", e))?;
                Some(without_meta_columns(&schema))
            }
        };
        let foreign = newest.ours.zip(newest.foreign).map(|(after, instant)| ForeignWrite { instant, after });
        let statistics = StatsIndex::load(storage, &config).await;
        let statistics = statistics.map_err(|e| target_error(storage.url(), "reading the index definitions", e))?;
        Ok(Some(TargetState { config, timeline, schema, foreign, statistics }))
    }

    /// Under exclusive writers, no write that changes rows may have followed the newest one of ours. What was in the
    /// table before our first batch is not our concern.
    pub(crate) fn check_writers(&self, url: &str, writers: Writers) -> Result<(), Error> {
        let foreign = self.foreign.as_ref().filter(|_| writers == Writers::Exclusive);
        let Some(ForeignWrite { instant, after }) = foreign else { return Ok(()) };
        Err(Error::Conflict {
            url: url.to_string(),
            what: format!(
                "another writer committed {instant} after our commit {after}, while `target.writers = \"exclusive\"`; \
                 stop that writer, or set `target.writers = \"shared\"`"
            ),
        })
    }

    /// Columns whose bounds in the metadata table could not follow: `schema` gives them another type than the stored one, or
    /// has them in a type whose bounds are not known.
    pub(crate) fn unkept_statistics(&self, schema: &Schema) -> Vec<String> {
        let (Some(statistics), Some(stored)) = (&self.statistics, &self.schema) else { return Vec::new() };
        let retyped = schema.fields().iter().filter_map(|field| {
            let (_, stored) = stored.column_with_name(field.name())?;
            let changes = stored.data_type() != field.data_type() && statistics.pins_type(field.name());
            changes.then(|| {
                format!(
                    "column `{}` is {} in the target and would become {}, which its `partition_stats` cannot follow: cast \
                     it to the stored type, or drop that index",
                    field.name(),
                    stored.data_type(),
                    field.data_type()
                )
            })
        });
        let unkept = schema.fields().iter().filter(|field| !statistics.follows(field.name(), field.data_type()));
        let unkept = unkept.map(|field| {
            format!(
                "its metadata table keeps statistics of column `{}`, which is {}: only times in microseconds can be kept \
                 true; leave the column out of `hoodie.metadata.index.column.stats.column.list` and build the index anew",
                field.name(),
                field.data_type()
            )
        });
        retyped.chain(unkept).collect()
    }
}

/// What the newest writes say, gathered from the newest backwards, each read once.
#[derive(Debug, Default)]
struct Newest {
    /// The newest schema: the file it stands in, and its text.
    schema: Option<(String, String)>,
    /// The newest commit of ours.
    ours: Option<InstantTime>,
    /// The oldest write of somebody else after that which changed rows.
    foreign: Option<InstantTime>,
}

impl Newest {
    fn is_complete(&self) -> bool {
        self.schema.is_some() && self.ours.is_some()
    }

    fn add(&mut self, instant: &InstantTime, path: &str, metadata: &CommitMetadata) {
        if self.schema.is_none() {
            self.schema = metadata.schema().map(|text| (path.to_string(), text.to_string()));
        }
        if self.ours.is_some() {
            return;
        }
        if metadata.extra.keys().any(|key| pipeline_of_key(key).is_some()) {
            self.ours = Some(instant.clone());
        } else if metadata.changes_rows() {
            self.foreign = Some(instant.clone());
        }
    }
}

/// A fresh listing of the target's timeline.
pub(crate) async fn load_timeline(storage: &Storage, config: &TableConfig) -> Result<Timeline, Error> {
    Timeline::load(storage, config).await.map_err(|e| target_error(storage.url(), "listing the target's timeline", e))
}

/// Metadata of a completed write.
pub(crate) async fn read_metadata(storage: &Storage, path: &str) -> Result<CommitMetadata, Error> {
    let fail = |e| target_error(storage.url(), "reading a commit of the target", e);
    let bytes = storage.read(path).await.map_err(fail)?;
    CommitMetadata::decode(path, &bytes).map_err(|error| match error {
        damaged @ tributary_hudi::Error::Corrupt { .. } => Error::Target {
            url: storage.url().to_string(),
            what: format!(
                "{damaged}. Restore the file from a copy, or write a new target: at another `target.path` every source \
                 begins at its `start`"
            ),
        },
        other => fail(other),
    })
}

/// Everything about an existing table that keeps the pipeline from writing it.
pub(crate) fn check_config(target: &Target, config: &TableConfig) -> Vec<String> {
    let mut problems = Vec::new();
    if config.table_type != target.table_type {
        problems.push(format!(
            "it is {}, the pipeline says {}",
            config.table_type.as_str(),
            target.table_type.as_str()
        ));
    }
    if config.name != target.table_name {
        problems.push(format!("its name is `{}`, the pipeline says `{}`", config.name, target.table_name));
    }
    if config.version != target.table_version {
        problems.push(match config.version {
            8 | 9 => format!("it has version {}, the pipeline says {}", config.version, target.table_version),
            other => format!("it has version {other}, which cannot be written: versions 8 and 9 are supported"),
        });
    }
    let complex = matches!(key_generator(config.key_generator()), Some(KeyGenerator::Complex));
    if config.version < 9 && complex && config.record_key().len() == 1 {
        problems.push(
            "its key generator is COMPLEX with a single record key: before version 9 nothing says whether keys are the \
             value or `column:value`"
                .to_string(),
        );
    }
    let columns = [
        ("record key", config.record_key(), &target.record_key),
        ("partition columns", config.partition_by(), &target.partition_by),
        ("ordering columns", config.ordering(), &target.ordering),
    ];
    for (what, found, expected) in columns {
        if &found != expected {
            problems.push(format!(
                "its {what} are [{}], the pipeline says [{}]",
                found.join(", "),
                expected.join(", ")
            ));
        }
    }
    problems.extend(check_features(config));
    problems.extend(check_merging(target, config));
    problems
}

/// How the table merges rows of one key must be what the pipeline says of its ordering columns.
fn check_merging(target: &Target, config: &TableConfig) -> Option<String> {
    match MergeRules::of(config) {
        Err(error) => Some(error.to_string()),
        Ok(rules) if rules.delete_marker.is_some() => {
            Some("it takes rows with a marker for deletes (`hoodie.payload.delete.marker`)".to_string())
        }
        Ok(rules) if rules.ordering.is_some() && target.ordering.is_empty() => Some(
            "it merges rows by event time (`hoodie.record.merge.mode`) and has no ordering columns to tell it"
                .to_string(),
        ),
        Ok(rules) if rules.ordering.is_none() && !target.ordering.is_empty() => Some(
            "the later row of a key stays in it (`hoodie.record.merge.mode=COMMIT_TIME_ORDERING`), though it has \
             ordering columns"
                .to_string(),
        ),
        Ok(_) => None,
    }
}

/// Features of a table that a write of ours would break.
fn check_features(config: &TableConfig) -> Vec<String> {
    let mut problems = Vec::new();
    if !config.has_meta_columns() {
        problems
            .push("it has no meta columns (`hoodie.populate.meta.fields=false`): keys could not be found".to_string());
    }
    if config.drops_partition_columns() {
        problems.push("it leaves partition columns out of its files, which cannot be written".to_string());
    }
    if config.flag("hoodie.table.cdc.enabled", false) {
        problems.push("it keeps a change log (`hoodie.table.cdc.enabled=true`), which cannot be written".to_string());
    }
    if config.flag("hoodie.table.multiple.base.file.formats.enable", false) {
        problems.push("it has several base file formats, which cannot be written".to_string());
    }
    if config.get("hoodie.bootstrap.base.path").is_some() {
        problems.push("it is a bootstrapped table, which cannot be written".to_string());
    }
    let is_statistics = |name: &String| name == "column_stats" || name == "partition_stats";
    // Those of log files are not known.
    let keeps_statistics = config.table_type == TableType::CopyOnWrite;
    let kept = |name: &String| name == "files" || (keeps_statistics && is_statistics(name));
    let unkept: Vec<String> = config.metadata_partitions().into_iter().filter(|name| !kept(name)).collect();
    if !unkept.is_empty() {
        let advice = match unkept.iter().all(is_statistics) {
            // On by default in Hudi 1.x; a writer that does without takes them away.
            true => "commit once with Spark and `hoodie.metadata.index.column.stats.enable=false`, and keep it so",
            false => "drop these indexes first",
        };
        problems.push(format!(
            "its metadata table has partitions that cannot be kept true: {}; {advice}",
            unkept.join(", ")
        ));
    }
    let pending = config.list("hoodie.table.metadata.partitions.inflight");
    if !pending.is_empty() {
        problems.push(format!("indexes are being built on it: {}", pending.join(", ")));
    }
    let generator = config.key_generator();
    if !generator.is_empty() && key_generator(generator).is_none() {
        problems.push(format!("its key generator `{generator}` is not supported"));
    }
    problems
}

enum KeyGenerator {
    Bare,
    Complex,
}

fn key_generator(name: &str) -> Option<KeyGenerator> {
    // A class name is known by its last part.
    match name.rsplit('.').next().unwrap_or(name) {
        "SIMPLE" | "NON_PARTITION" | "SimpleKeyGenerator" | "NonpartitionedKeyGenerator" => Some(KeyGenerator::Bare),
        "COMPLEX" | "ComplexKeyGenerator" => Some(KeyGenerator::Complex),
        _ => None,
    }
}

/// How keys of the table are made.
pub(crate) fn key_settings(target: &Target, config: &TableConfig) -> KeySettings {
    let complex = matches!(key_generator(config.key_generator()), Some(KeyGenerator::Complex));
    KeySettings {
        record_key: target.record_key.clone(),
        partition_by: target.partition_by.clone(),
        complex: complex || target.record_key.len() > 1,
        hive_style: config.hive_style(),
        url_encode: config.url_encode(),
    }
}

/// What a write of rows is called on the table's timeline.
pub(crate) fn write_action(config: &TableConfig) -> Action {
    match config.table_type {
        TableType::CopyOnWrite => Action::Commit,
        TableType::MergeOnRead => Action::DeltaCommit,
    }
}

/// The table that the pipeline describes.
pub(crate) fn new_table(pipeline: &Pipeline) -> NewTable {
    let target = &pipeline.target;
    NewTable {
        name: target.table_name.clone(),
        table_type: target.table_type,
        version: target.table_version,
        record_key: target.record_key.clone(),
        partition_by: target.partition_by.clone(),
        ordering: target.ordering.clone(),
        hive_style: target.hive_style,
        // Any value can then be a directory: Spark cannot open one with a colon, and a slash would be a level.
        url_encode: !target.partition_by.is_empty(),
    }
}

/// Whether a table that does not fit may be described anew: it never had a commit, and nobody gave it a schema. A
/// first batch that failed leaves such a table.
pub(crate) fn is_untouched(target: &TargetState) -> bool {
    target.schema.is_none()
        && target.timeline.completed_writes().is_empty()
        && target.config.get("hoodie.table.create.schema").is_none()
}

/// A file error on the target as this role tells it.
pub(crate) fn target_error(url: &str, doing: &str, error: tributary_hudi::Error) -> Error {
    use tributary_hudi::Error as Hudi;
    match error {
        Hudi::Conflict { what } => Error::Conflict { url: url.to_string(), what },
        Hudi::Store { doing: step, source } => store_failed(url, doing, &step, boxed_error(source)),
        Hudi::Disk { doing: step, source } => store_failed(url, doing, &step, boxed_error(source)),
        Hudi::Gone { .. } => {
            Error::Store { url: url.to_string(), doing: doing.to_string(), source: boxed_error(error) }
        }
        // A file that is no good is no mistake of the pipeline's.
        Hudi::Corrupt { file, detail } => {
            Error::Writer(tributary_api::writer::Error::Corrupt { url: url.to_string(), file, detail })
        }
        other => Error::Target { url: url.to_string(), what: other.to_string() },
    }
}

fn store_failed(url: &str, doing: &str, step: &str, source: BoxedError) -> Error {
    Error::Store { url: url.to_string(), doing: format!("{doing} ({step})"), source }
}

#[cfg(test)]
mod tests {
    use tributary_hudi::parse_properties;

    use super::*;

    fn target() -> Target {
        serde_json::from_value(serde_json::json!({
            "path": "/t", "table_name": "t", "record_key": ["id"], "partition_by": ["d"], "ordering": ["ts"],
        }))
        .unwrap()
    }

    fn config(more: &str) -> TableConfig {
        let text = format!(
            "hoodie.table.name=t\nhoodie.table.version=9\nhoodie.table.type=COPY_ON_WRITE\n\
             hoodie.table.recordkey.fields=id\nhoodie.table.partition.fields=d\nhoodie.table.ordering.fields=ts\n\
             hoodie.table.keygenerator.type=SIMPLE\nhoodie.table.metadata.partitions=files\n{more}"
        );
        TableConfig::from_properties("p", parse_properties(&text)).unwrap()
    }

    fn written(ours: bool, changes: bool, schema: bool) -> CommitMetadata {
        let mut metadata = CommitMetadata { operation: "UPSERT".to_string(), ..CommitMetadata::default() };
        if ours {
            metadata.extra.insert("tributary.checkpoint.p".to_string(), "{}".to_string());
        }
        if schema {
            metadata.extra.insert("schema".to_string(), "{}".to_string());
        }
        if changes {
            metadata.stats.push(tributary_hudi::WriteStat { path: "f".to_string(), ..Default::default() });
        }
        metadata
    }

    #[test]
    fn one_pass_over_the_newest_writes_finds_schema_our_commit_and_who_wrote_after_it() {
        let at = |n: u32| format!("2025010100000000{n}").parse::<InstantTime>().unwrap();
        let mut newest = Newest::default();
        newest.add(&at(9), "nine", &written(false, true, false));
        newest.add(&at(8), "eight", &written(false, true, true));
        assert!(!newest.is_complete());
        newest.add(&at(7), "seven", &written(true, true, true));
        assert!(newest.is_complete());
        assert_eq!(newest.schema.unwrap().0, "eight");
        assert_eq!((newest.ours, newest.foreign), (Some(at(7)), Some(at(8))));
    }

    #[test]
    fn a_table_of_version_eight_is_written_as_the_pipeline_says_unless_its_keys_are_ambiguous() {
        let old = |generator: &str| {
            let text = config(&format!("hoodie.table.keygenerator.type={generator}")).properties().clone();
            let mut properties = text;
            properties.insert("hoodie.table.version".to_string(), "8".to_string());
            TableConfig::from_properties("p", properties).unwrap()
        };
        let eight = Target { table_version: 8, ..target() };
        assert_eq!(check_config(&eight, &old("SIMPLE")), Vec::<String>::new());
        assert!(check_config(&target(), &old("SIMPLE"))[0].contains("version 8, the pipeline says 9"));
        assert!(check_config(&eight, &old("COMPLEX"))[0].contains("nothing says whether keys"));
    }

    #[test]
    fn a_table_as_the_pipeline_describes_it_may_be_written() {
        assert_eq!(check_config(&target(), &config("")), Vec::<String>::new());
        let statistics = "hoodie.table.metadata.partitions=column_stats,files,partition_stats";
        assert_eq!(check_config(&target(), &config(statistics)), Vec::<String>::new());
        assert!(!key_settings(&target(), &config("")).complex);
        assert!(key_settings(&target(), &config("hoodie.table.keygenerator.type=COMPLEX")).complex);
    }

    #[test]
    fn what_a_write_would_break_is_refused_by_name() {
        let cases = [
            ("hoodie.table.name=other", "`other`"),
            ("hoodie.table.type=MERGE_ON_READ", "MERGE_ON_READ"),
            ("hoodie.table.version=8", "version 8"),
            ("hoodie.table.recordkey.fields=other", "record key are [other]"),
            ("hoodie.table.partition.fields=", "partition columns are []"),
            ("hoodie.table.ordering.fields=", "ordering columns are []"),
            ("hoodie.populate.meta.fields=false", "meta columns"),
            ("hoodie.table.cdc.enabled=true", "change log"),
            ("hoodie.table.metadata.partitions=files,record_index", "record_index; drop these"),
            ("hoodie.table.metadata.partitions=column_stats,files,bloom_filters", "true: bloom_filters; drop these"),
            (
                "hoodie.table.metadata.partitions=column_stats,files,partition_stats\nhoodie.table.type=MERGE_ON_READ",
                "column.stats.enable=false",
            ),
            ("hoodie.table.metadata.partitions.inflight=column_stats", "column_stats"),
            ("hoodie.bootstrap.base.path=/x", "bootstrapped"),
            ("hoodie.table.keygenerator.type=TIMESTAMP", "TIMESTAMP"),
            ("hoodie.datasource.write.drop.partition.columns=true", "partition columns out"),
            ("hoodie.record.merge.mode=CUSTOM", "CUSTOM"),
            ("hoodie.record.merge.mode=COMMIT_TIME_ORDERING", "the later row"),
            ("hoodie.table.partial.update.mode=IGNORE_DEFAULTS", "IGNORE_DEFAULTS"),
        ];
        for (line, part) in cases {
            let problems = check_config(&target(), &config(line)).join("; ");
            assert!(problems.contains(part), "{line}: {problems}");
        }
    }
}
