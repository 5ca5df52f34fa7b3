// SPDX-License-Identifier: Apache-2.0
//! Sources that are left out of a batch because their files do not fit the table's schema (W9).
//!
//! That is decided before a row is read. The footers of the pinned base files say which columns they have; of log files
//! the commits that wrote them do, as far as they are on the active timeline. Only sources that may be left out are
//! looked at so: elsewhere reading itself finds out, and fails.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use futures::{StreamExt, TryStreamExt};
use tributary_api::timeline::{Begin, Error, PlanRequest, ReadRequest, Relation, Split};
use tributary_hudi::{LogFile, Mismatch, REQUESTS_AT_ONCE, Stores, arrow_schema, is_meta_column, plan_widening};
use tributary_types::{Cursor, InstantTime, MemoryBudget};

use crate::cache::Cache;
use crate::decide::Window;
use crate::facts::Table;
use crate::fault::{fault, schema_error};
use crate::read;
use crate::relations::Relations;
use crate::schema::{Resolved, relation_schema};

/// What is planned of a source that is left out.
pub(crate) struct LeftOut {
    /// From its cursor to its cursor.
    pub(crate) window: Window,
    /// Its cursor, as it was given.
    pub(crate) cursor: Cursor,
    /// The schema that it was read with before.
    pub(crate) schema: SchemaRef,
    /// Empty ones.
    pub(crate) relations: Relations,
}

/// Leaves a source out of which `window` cannot be read. Fails with `why` where that was not asked for, or where nothing
/// says what the source looked like before.
pub(crate) fn leave_out(request: &PlanRequest, window: &Window, why: Error) -> Result<LeftOut, Error> {
    let (Some(schema), Begin::After(cursor)) = (&request.fallback_schema, &request.begin) else { return Err(why) };
    let empty = Relation { schema: relation_schema(Some(schema), request), splits: Vec::new() };
    let views = request.views;
    Ok(LeftOut {
        window: Window {
            begin: Some(cursor.clone()),
            end: cursor.instant().cloned().unwrap_or_else(InstantTime::init),
            whole: false,
            unless: None,
            instants: Vec::new(),
            late: Vec::new(),
            has_news: false,
            // There is more to read, which an aligned batch must know.
            limited: window.has_news || window.limited,
            waits_for: window.waits_for.clone(),
            recent: request.recent.clone(),
        },
        cursor: cursor.clone(),
        schema: Arc::clone(schema),
        relations: Relations {
            changed: views.changed.then(|| empty.clone()),
            at_end: views.end.then(|| empty.clone()),
            at_begin: views.begin.then_some(empty),
        },
    })
}

/// Whether the files of the pinned relations fit their schema.
pub(crate) async fn check_files(
    stores: &dyn Stores,
    table: &Table,
    cache: &Cache,
    window: &Window,
    relations: &Relations,
) -> Result<Resolved<()>, Error> {
    let pinned = [&relations.changed, &relations.at_end, &relations.at_begin];
    let relations: Vec<&Relation> = pinned.into_iter().flatten().collect();
    let Some(schema) = relations.first().map(|relation| &relation.schema) else { return Ok(Ok(())) };
    let splits: Vec<&Split> = relations.iter().flat_map(|relation| &relation.splits).collect();
    let unfit = match first_unfit_commit(table, cache, window, &splits, schema).await? {
        Some(unfit) => Some(unfit),
        None => first_unfit_file(stores, &splits, schema).await?,
    };
    Ok(unfit.map_or(Ok(()), Err))
}

async fn first_unfit_file(stores: &dyn Stores, splits: &[&Split], schema: &SchemaRef) -> Result<Option<Error>, Error> {
    // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
    let based = splits.iter().filter(|split| !split.path.is_empty());
    let checks: Vec<_> = based.map(|split| check_file(stores, split, schema)).collect();
    let found: Vec<Option<Error>> = futures::stream::iter(checks).buffered(REQUESTS_AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().next())
}

/// Opening a split reads the footer of its base file and plans how it is widened; no row is read.
async fn check_file(stores: &dyn Stores, split: &Split, schema: &SchemaRef) -> Result<Option<Error>, Error> {
    let request = ReadRequest {
        split: (*split).clone(),
        schema: Arc::clone(schema),
        projection: None,
        predicate: None,
        batch_rows: 1,
        memory: MemoryBudget::new(0),
    };
    match read::read(stores, request).await {
        Ok(_) => Ok(None),
        Err(error @ Error::Schema { .. }) => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// The first commit that wrote log files, or rows of the window, in a schema that does not fit.
async fn first_unfit_commit(
    table: &Table,
    cache: &Cache,
    window: &Window,
    splits: &[&Split],
    schema: &SchemaRef,
) -> Result<Option<Error>, Error> {
    let logs = splits.iter().flat_map(|split| &split.logs).flat_map(|logs| &logs.files);
    let logs = logs.filter_map(|file| LogFile::from_path(&file.path, file.bytes)).map(|log| log.instant);
    let wrote: BTreeSet<InstantTime> =
        logs.chain(window.instants.iter().map(|write| write.requested.clone())).collect();
    let wrote: Vec<&InstantTime> =
        wrote.iter().filter(|at| table.writes.iter().any(|write| write.requested == **at)).collect();
    let metadata = table.metadata(cache, wrote.iter().copied()).await?;
    for (requested, metadata) in wrote.into_iter().zip(metadata) {
        let Some(text) = metadata.schema() else { continue };
        let file = format!("commit {requested}");
        let found = match arrow_schema(&file, text) {
            Ok(found) => found,
            Err(error) => return Ok(Some(fault(&table.url)(error))),
        };
        for field in schema.fields().iter().filter(|field| !is_meta_column(field.name())) {
            // A column that came later is null, or is found missing where it may not be when the file is opened.
            let Ok(written) = found.field_with_name(field.name()) else { continue };
            if let Err(Mismatch { column, found, expected }) =
                plan_widening(field.name(), written.data_type(), field.data_type())
            {
                return Ok(Some(schema_error(&table.url, file, column, found, expected)));
            }
        }
    }
    Ok(None)
}
