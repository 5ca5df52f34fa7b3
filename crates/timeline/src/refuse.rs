// SPDX-License-Identifier: Apache-2.0
//! Tables that are not read, each refused by the name of what stands in the way.

use arrow::datatypes::{DataType, SchemaRef};
use tributary_api::timeline::Error;
use tributary_hudi as hudi;
use tributary_hudi::{CommitMetadata, TableConfig};
use tributary_types::IS_DELETED;
use tributary_types::pipeline::TableType;

use crate::fault::fault;

const VERSIONS: &str = "6, 8 and 9";

/// Extra metadata of commits under schema evolution on read.
const SCHEMA_ON_READ: &str = "latest_schema";

/// Refuses a table that cannot be read at all.
pub(crate) fn check_table(url: &str, config: &TableConfig) -> Result<(), Error> {
    if !matches!(config.version, 6 | 8 | 9) {
        return Err(Error::Version { url: url.to_string(), version: config.version, supported: VERSIONS });
    }
    let refuse = |what: String| Err(Error::Unsupported { url: url.to_string(), what });
    if config.table_type == TableType::MergeOnRead {
        hudi::MergeRules::of(config).map_err(fault(url))?;
    }
    if let Some(format) = config.get("hoodie.table.base.file.format")
        && !format.eq_ignore_ascii_case("PARQUET")
    {
        return refuse(format!("base files of format {format} cannot be read, only PARQUET ones"));
    }
    if config.flag("hoodie.table.multiple.base.file.formats.enable", false) {
        return refuse("`hoodie.table.multiple.base.file.formats.enable` is set: only PARQUET can be read".to_string());
    }
    if let Some(source) = config.get("hoodie.bootstrap.base.path") {
        return refuse(format!(
            "it was bootstrapped from `{source}` (`hoodie.bootstrap.base.path`), which cannot be read"
        ));
    }
    if config.drops_partition_columns() && !config.hive_style() && !config.partition_by().is_empty() {
        return refuse(
            "its files leave out the partition columns (`hoodie.datasource.write.drop.partition.columns`) and its \
             partition paths are not `column=value`: their values cannot be restored"
                .to_string(),
        );
    }
    Ok(())
}

/// Refuses to say which rows are deleted records in a column that says something else.
pub(crate) fn check_flag(url: &str, schema: Option<&SchemaRef>) -> Result<(), Error> {
    let Some(field) = schema.and_then(|schema| schema.field_with_name(IS_DELETED).ok()) else { return Ok(()) };
    if field.data_type() == &DataType::Boolean {
        return Ok(());
    }
    Err(Error::Unsupported {
        url: url.to_string(),
        what: format!(
            "its column `{IS_DELETED}` is of type {} and not BOOLEAN, so deleted records cannot be told in it; leave \
             `deletes = \"propagate\"` out",
            field.data_type()
        ),
    })
}

/// Refuses an incremental read of a table whose rows do not say when they were written.
pub(crate) fn check_incremental(url: &str, config: &TableConfig) -> Result<(), Error> {
    if config.has_meta_columns() {
        return Ok(());
    }
    Err(Error::Unsupported {
        url: url.to_string(),
        what: "it has no meta columns (`hoodie.populate.meta.fields=false`), so what changed cannot be told; read it \
               with `read = \"snapshot\"`"
            .to_string(),
    })
}

/// Refuses log files of a table whose rows do not say their keys.
pub(crate) fn check_mergeable(url: &str, config: &TableConfig) -> Result<(), Error> {
    if config.has_meta_columns() {
        return Ok(());
    }
    Err(Error::Unsupported {
        url: url.to_string(),
        what: "it has log files and no meta columns (`hoodie.populate.meta.fields=false`), so rows of one key cannot \
               be found; compact it"
            .to_string(),
    })
}

/// Refuses meta columns of a table that has none.
pub(crate) fn check_meta_columns(url: &str, config: &TableConfig) -> Result<(), Error> {
    if config.has_meta_columns() {
        return Ok(());
    }
    let what = "it has no meta columns (`hoodie.populate.meta.fields=false`): leave `meta_columns` out".to_string();
    Err(Error::Unsupported { url: url.to_string(), what })
}

/// Refuses a schema under evolution on read: a renamed column would silently read as null.
pub(crate) fn check_schema_source(url: &str, metadata: &CommitMetadata) -> Result<(), Error> {
    if metadata.extra.get(SCHEMA_ON_READ).is_none_or(|text| text.is_empty()) {
        return Ok(());
    }
    let what = "it evolves its schema on read (`hoodie.schema.on.read.enable`): renamed columns cannot be followed"
        .to_string();
    Err(Error::Unsupported { url: url.to_string(), what })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn refusal(lines: &[(&str, &str)]) -> String {
        let all = [("hoodie.table.name", "t"), ("hoodie.table.version", "9")].iter().chain(lines);
        let properties: BTreeMap<String, String> =
            all.map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let config = TableConfig::from_properties("p", properties).unwrap();
        check_table("u", &config).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_name() {
        assert_eq!(refusal(&[]), "");
        assert_eq!(refusal(&[("hoodie.table.version", "6")]), "");
        for (key, value, named) in [
            ("hoodie.table.version", "7", "version 7: versions 6, 8 and 9"),
            ("hoodie.table.version", "5", "version 5"),
            ("hoodie.table.base.file.format", "ORC", "ORC"),
            ("hoodie.table.multiple.base.file.formats.enable", "true", "multiple.base.file.formats"),
            ("hoodie.bootstrap.base.path", "s3://old", "s3://old"),
        ] {
            let refused = refusal(&[(key, value)]);
            assert!(refused.contains(named), "{key}: {refused}");
        }
        let dropped =
            [("hoodie.datasource.write.drop.partition.columns", "true"), ("hoodie.table.partition.fields", "d")];
        assert!(refusal(&dropped).contains("drop.partition.columns"));
        let custom = [("hoodie.table.type", "MERGE_ON_READ"), ("hoodie.record.merge.mode", "CUSTOM")];
        assert!(refusal(&custom).contains("CUSTOM"));
        assert_eq!(refusal(&custom[..1]), "");
        assert_eq!(refusal(&custom[1..]), "", "nothing is merged in a table without logs");
        let hive = ("hoodie.datasource.write.hive_style_partitioning", "true");
        assert_eq!(refusal(&[dropped[0], dropped[1], hive]), "");
    }
}
