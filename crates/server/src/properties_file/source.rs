// SPDX-License-Identifier: Apache-2.0
//! Sources: one Hudi table (`HoodieIncrSource`), or several (RFC-108).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Props, fold, location};

const ONE: &str = "hoodie.streamer.source.hoodieincr.";
const MANY: &str = "hoodie.streamer.source.multi.hudi.";
const EACH: &str = "hoodie.streamer.source.hudi.";

/// How partition values are taken out of paths; by the last part of the class's name.
const EXTRACTORS: [&str; 2] = ["HiveStylePartitionValueExtractor", "NonPartitionedExtractor"];

pub(super) fn read(props: &mut Props, directory: &Path, class: Option<&str>) -> Vec<Map<String, Value>> {
    check_class(props, class);
    check_checkpoint_keys(props);
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
                "neither `{ONE}path` nor `{MANY}tables` is given: only jobs over Hudi tables are read from properties; \
                 describe others in a pipeline file"
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

fn check_class(props: &mut Props, class: Option<&str>) {
    let Some(class) = class else { return };
    let name = class.rsplit('.').next().unwrap_or(class);
    if !matches!(name, "HoodieIncrSource" | "HoodieIncrMultiSource") {
        props.problem(format!(
            "`--source-class {class}` is not read from properties: HoodieIncrSource and HoodieIncrMultiSource are; describe \
             other sources in a pipeline file"
        ));
    }
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
    let plain = "the checkpoint for Java jobs is written as `name=instant,…` where there are several sources";
    props.refuse_unless(&format!("{MANY}checkpoint.enable"), "true", plain);
}

fn single(props: &mut Props, directory: &Path, path: &str) -> Map<String, Value> {
    let key = |name: &str| format!("{ONE}{name}");
    let path = location(directory, path);
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(&path);
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
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
