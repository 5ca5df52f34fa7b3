// SPDX-License-Identifier: Apache-2.0
//! Sources: one Hudi table (`HoodieIncrSource`), several (RFC-108), a directory of files, or a topic.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Props, files, fold, location, topics};
use crate::cli::JobArgs;

const ONE: &str = "hoodie.streamer.source.hoodieincr.";
const MANY: &str = "hoodie.streamer.source.multi.hudi.";
const EACH: &str = "hoodie.streamer.source.hudi.";

/// How partition values are taken out of paths; by the last part of the class's name.
const EXTRACTORS: [&str; 2] = ["HiveStylePartitionValueExtractor", "NonPartitionedExtractor"];

pub(super) fn read(props: &mut Props, directory: &Path, args: &JobArgs) -> Vec<Map<String, Value>> {
    check_checkpoint_keys(props);
    let provider = args.schemaprovider_class.as_deref();
    match class_of(props, args.source_class.as_deref()) {
        Class::Tables => tables(props, directory),
        Class::Files(kind) => vec![files::read(props, directory, kind, provider)],
        Class::Topic => vec![topics::read(props, directory, provider)],
        Class::None => Vec::new(),
    }
}

fn tables(props: &mut Props, directory: &Path) -> Vec<Map<String, Value>> {
    let tables = props.take(&format!("{MANY}tables"));
    let one = props.take(&format!("{ONE}path"));
    let mut sources = match (tables, one) {
        (Some(_), Some(_)) => {
            props.problem(format!("both `{MANY}tables` and `{ONE}path` are given: one job reads either"));
            Vec::new()
        }
        (Some(tables), None) => many(props, directory, &tables),
        (None, Some(path)) => vec![single(props, directory, &path)],
        (None, None) => {
            props.problem(format!(
                "neither `{ONE}path` nor `{MANY}tables` is given; jobs over files or topics need `--source-class`, such as \
                 CsvDFSSource or JsonKafkaSource"
            ));
            Vec::new()
        }
    };
    let on_hole = match props.take("hoodie.read.timeline.holes.resolution.policy").as_deref() {
        None | Some("BLOCK") => "block",
        Some("FAIL") => "fail",
        Some(other) => {
            props.problem(format!(
                "`hoodie.read.timeline.holes.resolution.policy={other}` is not there: it would skip commits that complete \
                 late; BLOCK and FAIL are"
            ));
            "block"
        }
    };
    for source in &mut sources {
        source.insert("on_hole".to_string(), json!(on_hole));
    }
    sources
}

/// What a job reads.
enum Class {
    Tables,
    /// Of this kind.
    Files(&'static str),
    Topic,
    /// Nothing that can be read.
    None,
}

fn class_of(props: &mut Props, class: Option<&str>) -> Class {
    let Some(class) = class else { return class_by_keys(props) };
    match class.rsplit('.').next().unwrap_or(class) {
        "HoodieIncrSource" | "HoodieIncrMultiSource" => Class::Tables,
        "CsvDFSSource" => Class::Files("csv"),
        "JsonDFSSource" => Class::Files("json"),
        "ParquetDFSSource" => Class::Files("parquet"),
        "JsonKafkaSource" => Class::Topic,
        "AvroKafkaSource" => {
            props.problem(format!(
                "`--source-class {class}` is not read from properties: of topics JsonKafkaSource is, whose messages are JSON"
            ));
            Class::None
        }
        _ => {
            props.problem(format!(
                "`--source-class {class}` is not read from properties: HoodieIncrSource, HoodieIncrMultiSource, CsvDFSSource, \
                 JsonDFSSource, ParquetDFSSource and JsonKafkaSource are; describe other sources in a pipeline file"
            ));
            Class::None
        }
    }
}

/// Without a class Hudi Streamer reads files of JSON; what the keys say otherwise was left out by mistake.
fn class_by_keys(props: &mut Props) -> Class {
    let meant = if topics::has_topic(props) {
        "JsonKafkaSource"
    } else if files::has_csv(props) {
        "CsvDFSSource"
    } else if files::has_root(props) {
        return Class::Files("json");
    } else {
        return Class::Tables;
    };
    if props.has(&format!("{ONE}path")) || props.has(&format!("{MANY}tables")) {
        return Class::Tables;
    }
    props.problem(format!("which source is read is not said: give `--source-class {meant}`"));
    Class::None
}

/// The name of a source: the last part of its path, or its topic.
pub(super) fn name_of(path: &str) -> String {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    if name.is_empty() { "source".to_string() } else { name }
}

/// Whether each of several sources has its cursor in the checkpoint for Java jobs, or all have one timestamp.
pub(super) fn writes_each_cursor(props: &mut Props) -> bool {
    let key = format!("{MANY}checkpoint.enable");
    !props.has(&key) || props.flag(&key)
}

fn check_checkpoint_keys(props: &mut Props) {
    let skip = "a commit without its cursors would be read again: Tributary always keeps them";
    props.refuse_unless("hoodie.streamer.checkpoint.force.skip", "false", skip);
    if let Some(path) = props.take("hoodie.streamer.checkpoint.provider.path") {
        props.problem(format!(
            "`hoodie.streamer.checkpoint.provider.path={path}` is not there: set the cursor once with `--checkpoint` or \
             `--override`"
        ));
    }
}

fn single(props: &mut Props, directory: &Path, path: &str) -> Map<String, Value> {
    let key = |name: &str| format!("{ONE}{name}");
    let path = location(directory, path);
    let name = name_of(&path);
    let mut source = table(&name, &path);
    let strategy = props.take(&key("missing.checkpoint.strategy"));
    let latest = props.flag(&key("read_latest_on_missing_ckpt"));
    let strategy = if latest { Some("READ_LATEST".to_string()) } else { strategy };
    common(
        props,
        &mut source,
        strategy,
        &key("num_instants"),
        &key("partition.fields"),
        &key("partition.extractor.class"),
    );
    props.refuse_unless(&key("file.format"), "parquet", "tables whose base files are Parquet are read");
    if let Some(options) = props.take(&key("data.datasource.options")) {
        props.problem(format!(
            "`{}={options}`: options of Spark's reader have no meaning here",
            key("data.datasource.options")
        ));
    }
    if !props.flag(&key("drop.all.meta.fields.from.source")) {
        props.note(
            "`_hoodie_partition_path`, which Hudi Streamer shows to SQL, is hidden; set \
             `tributary.source.NAME.meta_columns=true` to see all meta columns"
                .to_string(),
        );
    }
    source
}

fn many(props: &mut Props, directory: &Path, tables: &str) -> Vec<Map<String, Value>> {
    let mut sources = Vec::new();
    let mut folded: BTreeMap<String, &str> = BTreeMap::new();
    for name in tables.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if let Some(other) = folded.insert(fold(name), name) {
            props
                .problem(format!("tables `{other}` and `{name}` fold to one key `{}`: rename one of them", fold(name)));
            continue;
        }
        let key = |field: &str| format!("{EACH}{}.{field}", fold(name));
        let Some(path) = props.take(&key("path")) else {
            props.problem(format!("table `{name}` has no `{}`", key("path")));
            continue;
        };
        let mut source = table(name, &location(directory, &path));
        let strategy = props.take(&key("missing_checkpoint_strategy"));
        common(
            props,
            &mut source,
            strategy,
            &key("num_instants"),
            &key("partition.fields"),
            &key("partition.extractor.class"),
        );
        source.insert("skip_on_schema_failure".to_string(), json!(props.flag(&key("skip_on_schema_failure"))));
        sources.push(source);
    }
    sources
}

fn table(name: &str, path: &str) -> Map<String, Value> {
    let described = json!({"name": name, "kind": "hudi", "path": path});
    described.as_object().cloned().unwrap_or_default()
}

/// What both forms have.
fn common(
    props: &mut Props,
    source: &mut Map<String, Value>,
    strategy: Option<String>,
    num_instants: &str,
    partition_fields: &str,
    extractor: &str,
) {
    if let Some(number) = props.number(num_instants) {
        source.insert("num_instants".to_string(), json!(number));
    }
    match strategy.as_deref() {
        None => {}
        // Both names are those of `start`.
        Some(known @ ("READ_LATEST" | "READ_UPTO_LATEST_COMMIT")) => {
            source.insert("start".to_string(), json!(known));
        }
        Some(other) => props.problem(format!(
            "`{other}` is no strategy for a missing checkpoint: READ_LATEST and READ_UPTO_LATEST_COMMIT are"
        )),
    }
    if let Some(fields) = props.take(partition_fields) {
        props.note(format!(
            "`{partition_fields}={fields}`: partition columns are read from the files, and from paths such as \
             `day=2025-01-01` where the files leave them out"
        ));
    }
    if let Some(class) = props.take(extractor)
        && !EXTRACTORS.contains(&class.rsplit('.').next().unwrap_or(&class))
    {
        props.problem(format!("`{extractor}={class}` is not there; there are: {}", EXTRACTORS.join(", ")));
    }
}
