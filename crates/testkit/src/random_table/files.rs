// SPDX-License-Identifier: Apache-2.0
//! The files of a random table.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use tributary_hudi::{
    BaseFileWriter, CommitMetadata, DeletedAt, DeletedKey, LogFileWriter, META_COLUMNS, PROPERTIES, WriteStat,
    avro_schema, base_file_name, base_file_schema, log_schema, table_checksum,
};
use tributary_types::{IS_DELETED, InstantTime};

use super::work::{Change, Work, Written};
use super::{Group, RandomTable, Record};

const NAME: &str = "random";

/// A row: its record, the commit time of it, and whether it deletes.
type Row = (Record, InstantTime, bool);

impl RandomTable {
    pub(super) async fn put_properties(&self) {
        let (layout, version) = (if self.version < 8 { "1" } else { "2" }, self.version.to_string());
        let checksum = table_checksum("", NAME).to_string();
        let mut lines = vec![
            ("hoodie.table.name", NAME),
            ("hoodie.table.type", self.table_type.as_str()),
            ("hoodie.table.version", &version),
            ("hoodie.timeline.layout.version", layout),
            ("hoodie.table.timeline.timezone", "UTC"),
            ("hoodie.table.base.file.format", "PARQUET"),
            ("hoodie.populate.meta.fields", "true"),
            ("hoodie.table.recordkey.fields", "id"),
            ("hoodie.table.partition.fields", "part"),
            ("hoodie.datasource.write.hive_style_partitioning", "true"),
            ("hoodie.datasource.write.partitionpath.urlencode", "false"),
            ("hoodie.table.checksum", &checksum),
        ];
        match self.version {
            6 => {}
            _ => lines.extend([
                ("hoodie.timeline.path", "timeline"),
                ("hoodie.timeline.history.path", "history"),
                ("hoodie.record.merge.mode", "COMMIT_TIME_ORDERING"),
                ("hoodie.record.merge.strategy.id", "ce9acb64-bde0-424c-9b91-f6ebba25356d"),
            ]),
        }
        if self.version < 9 {
            let payload = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload";
            lines.push(("hoodie.compaction.payload.class", payload));
        }
        let text: String = lines.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        self.put(PROPERTIES, text.into_bytes()).await;
    }

    async fn put(&self, path: &str, bytes: Vec<u8>) {
        self.storage.put(path, bytes).await.expect("a file of a random table");
    }

    fn directory(&self) -> &'static str {
        if self.version < 8 { ".hoodie" } else { ".hoodie/timeline" }
    }

    /// The files that say that `work` is under way.
    pub(super) async fn put_pending(&self, work: &Work) {
        let action = match (work.operation, work.action) {
            ("COMPACT", _) => "compaction",
            ("CLUSTER", _) if self.version >= 8 => "clustering",
            (_, action) => action,
        };
        let at = format!("{}/{}", self.directory(), work.requested);
        self.put(&format!("{at}.{action}.requested"), Vec::new()).await;
        let inflight = if action == "commit" { format!("{at}.inflight") } else { format!("{at}.{action}.inflight") };
        self.put(&inflight, Vec::new()).await;
    }

    pub(super) async fn put_completed(&self, work: &Work, completed: &InstantTime) {
        let mut metadata = CommitMetadata {
            operation: work.operation.to_string(),
            compacted: work.operation == "COMPACT",
            stats: work.files.iter().map(|file| self.stat(work, file)).collect(),
            ..CommitMetadata::default()
        };
        for (partition, id) in &work.replaces {
            metadata.replaced.entry(partition.clone()).or_default().push(id.clone());
        }
        let schema = avro_schema(NAME, &self.schema()).expect("a schema of plain columns");
        metadata.extra.insert("schema".to_string(), schema);
        let (directory, requested, action) = (self.directory(), &work.requested, work.action);
        let path = match self.version {
            6 => format!("{directory}/{requested}.{action}"),
            _ => format!("{directory}/{requested}_{completed}.{action}"),
        };
        self.put(&path, metadata.encode().expect("metadata of a commit")).await;
    }

    fn stat(&self, work: &Work, file: &Written) -> WriteStat {
        let group = self.groups.get(&file.group);
        let previous = group.and_then(|group| group.compacting.as_ref().or(group.base.as_ref()));
        let previous = match work.compacts.contains(&file.group) {
            true => group.and_then(|group| group.base.as_ref()),
            false => previous,
        };
        let gone = file.changes.values().filter(|change| change.is_none()).count();
        WriteStat {
            partition: file.group.0.clone(),
            file_id: file.group.1.clone(),
            path: self.path(work, file),
            previous: previous.map(ToString::to_string),
            rows: (file.changes.len() - gone) as i64,
            deletes: gone as i64,
            bytes: 0,
            ..WriteStat::default()
        }
    }

    fn path(&self, work: &Work, file: &Written) -> String {
        let (partition, id) = &file.group;
        if !file.log {
            return format!("{partition}/{}", base_file_name(id, 0, 0, &work.requested));
        }
        let group = &self.groups[&file.group];
        let (instant, number) = match self.version {
            // Before version 8 it is named by the base file that it lies on, and counts on.
            6 => (group.compacting.as_ref().or(group.base.as_ref()), group.logs + 1),
            _ => (Some(&work.requested), 1),
        };
        let instant = instant.expect("a group begins with a base file");
        // A write that died may have taken the number.
        format!("{partition}/.{id}_{instant}.log.{number}_{}-0-0", work.requested.as_str().trim_start_matches('2'))
    }

    /// The data files of `work`.
    pub(super) async fn put_files(&self, work: &Work) {
        for file in &work.files {
            let path = self.path(work, file);
            if file.log { self.put_log(work, file, &path).await } else { self.put_base(work, file, &path).await }
        }
    }

    /// Every row that the group has after the changes.
    async fn put_base(&self, work: &Work, file: &Written, path: &str) {
        let none = Group::default();
        let group = self.groups.get(&file.group).unwrap_or(&none);
        let mut rows: BTreeMap<&String, Row> = BTreeMap::new();
        for (id, (record, time)) in &group.rows {
            rows.insert(id, (record.clone(), time.clone(), false));
        }
        for (id, change) in &file.changes {
            match row(work, change) {
                Some(row) => rows.insert(id, row),
                None => rows.remove(id),
            };
        }
        let rows: Vec<Row> = rows.into_values().collect();
        let batch = self.batch(&file.group.0, path, &rows);
        let mut writer = BaseFileWriter::create(&self.storage, path, base_file_schema(&self.schema()))
            .expect("a base file of a random table");
        writer.write(&batch).await.expect("rows of a base file");
        writer.close().await.expect("the end of a base file");
    }

    /// The changes: rows, then keys that are deleted; or, in tables that have a column for it, rows that delete.
    async fn put_log(&self, work: &Work, file: &Written, path: &str) {
        let mut rows: Vec<Row> = file.changes.values().filter_map(|change| row(work, change)).collect();
        let mut deleted = Vec::new();
        for (number, id) in file.changes.iter().filter(|(_, change)| change.is_none()).map(|(id, _)| id).enumerate() {
            let known = self.groups[&file.group].rows.get(id);
            match known {
                Some((record, _)) if self.flagged && number % 2 == 0 => {
                    rows.push((record.clone(), work.requested.clone(), true));
                }
                _ => {
                    deleted.push(DeletedKey { key: id.clone(), partition: file.group.0.clone(), at: DeletedAt::Place })
                }
            }
        }
        let schema = log_schema(NAME, &self.schema()).expect("a schema of plain columns");
        let mut writer =
            LogFileWriter::create(&self.storage, path, &work.requested, &schema).expect("a log file of a random table");
        if !rows.is_empty() {
            writer.write(&self.batch(&file.group.0, path, &rows)).await.expect("rows of a log file");
        }
        if !deleted.is_empty() {
            writer.delete(&deleted).await.expect("deletes of a log file");
        }
        writer.close().await.expect("the end of a log file");
    }

    fn schema(&self) -> Schema {
        let texts = ["id", "part", "link"].map(|name| Field::new(name, DataType::Utf8, true));
        let flag = self.flagged.then(|| Field::new(IS_DELETED, DataType::Boolean, true));
        let fields = texts.into_iter().chain([Field::new("n", DataType::Int64, true)]).chain(flag);
        Schema::new(fields.collect::<Vec<_>>())
    }

    fn batch(&self, partition: &str, path: &str, rows: &[Row]) -> RecordBatch {
        let text =
            |of: &dyn Fn(&Row) -> String| -> ArrayRef { Arc::new(StringArray::from_iter_values(rows.iter().map(of))) };
        let meta: Vec<ArrayRef> = vec![
            text(&|row| row.1.to_string()),
            text(&|row| format!("{}_0_{}", row.1, row.0.n)),
            text(&|row| row.0.id.clone()),
            text(&|_| partition.to_string()),
            text(&|_| path.rsplit('/').next().unwrap_or(path).to_string()),
        ];
        let mut columns: Vec<(&str, ArrayRef)> = META_COLUMNS.into_iter().zip(meta).collect();
        columns.extend([
            ("id", text(&|row| row.0.id.clone())),
            ("part", text(&|row| row.0.part.clone())),
            ("link", text(&|row| row.0.link.clone())),
        ]);
        columns.push(("n", Arc::new(rows.iter().map(|row| Some(row.0.n)).collect::<Int64Array>())));
        if self.flagged {
            // Writers leave it null or say false.
            let flag = |row: &Row| if row.2 { Some(true) } else { (row.0.n % 2 == 0).then_some(false) };
            columns.push((IS_DELETED, Arc::new(rows.iter().map(flag).collect::<BooleanArray>())));
        }
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
            .expect("columns of one length")
    }
}

fn row(work: &Work, change: &Change) -> Option<Row> {
    let (record, time) = change.as_ref()?;
    Some((record.clone(), time.clone().unwrap_or_else(|| work.requested.clone()), false))
}
