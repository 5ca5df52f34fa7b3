// SPDX-License-Identifier: Apache-2.0
//! The files of an Apache Hudi table: the only crate that knows them, and the only one that names `hudi-core`.
//!
//! Everything goes through one injectable object store per table ([`Storage`]), so that a test can fail, delay or
//! lose the answer of any single operation. What decides is a pure function over facts already read; `hudi-core`
//! lends its Avro, HFile and log-block encodings, and never its write verbs, which roll back every other writer's
//! pending instants.

mod avro;
mod avro_file;
mod base_file;
mod commit;
mod config;
mod error;
mod history;
mod keys;
mod properties;
mod storage;
mod stores;
pub mod target;
mod timeline;

mod archive;
mod archive_v1;
mod avro_names;
mod avro_rows;
mod block_order;
mod compaction_plan;
mod delete_block;
mod delete_encode;
mod listing;
mod log_blocks;
mod log_file;
mod log_keys;
mod log_rows;
mod log_writer;
mod mdt_read;
mod mdt_timeline;
mod merge_rules;
mod merged_scan;
mod ordering;
mod parquet_file;
mod pending_changes;
mod planned_groups;
mod row_groups;
mod scan;
mod shape;
mod slices;
mod widen;

pub use avro::{
    META_COLUMNS, arrow_schema, avro_schema, check_name, is_meta_column, meta_fields, with_meta_columns,
    without_meta_columns,
};
pub use base_file::{BaseFileWriter, base_file_name, base_file_schema, parse_base_file_name};
pub use commit::{CommitMetadata, NO_PREVIOUS_COMMIT, WriteStat};
pub use config::{PROPERTIES, PROPERTIES_BACKUP, TableConfig, table_checksum};
pub use error::{Error, Result};
pub use history::{ArchivedInstant, find_archived_metadata, load_history};
pub use keys::{KeyError, KeyRules, RowKeys};
pub use properties::{format_property, parse_properties};
pub use storage::{Entry, PutNew, REQUESTS_AT_ONCE, Storage, Stores, Version};
pub use stores::{StoreSettings, SystemStores};
pub use timeline::{Action, Instant, Timeline, completed_path, inflight_path, requested_path};

pub use archive::{HistoryFile, archived_metadata, history_files, history_version, read_history_file};
pub use block_order::BlockInstants;
pub use compaction_plan::log_compaction_originals;
pub use delete_encode::{DeletedAt, DeletedKey};
pub use listing::{DataFiles, has_file_listing, list_directories, list_files, list_partitions};
pub use log_blocks::Torn;
pub use log_file::{LogFile, LogNames};
pub use log_keys::for_each_log_key;
pub use log_writer::{LogFileWriter, log_file_name, log_schema};
pub use mdt_read::read_file_listing;
pub use merge_rules::MergeRules;
pub use merged_scan::{LogScan, open_slice};
pub use parquet_file::{commit_time_range, file_schema};
pub use pending_changes::pending_changes;
pub use planned_groups::planned_groups;
pub use row_groups::{Bound, ColumnRange, Prune};
pub use scan::{BatchStream, FileScan, open_scan};
pub use slices::{
    BaseFile, Completions, FileSlice, GroupKey, Standing, completed_replacements, completions_for, current_file_slices,
    current_slices, read_metadata, replaced_groups, select_slices,
};
pub use widen::{Mismatch, Widening, plan_widening};
