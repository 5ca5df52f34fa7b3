// SPDX-License-Identifier: Apache-2.0
//! Targets of which a part is gone: to write on would hide or double what is left of them.

use tributary_api::coordinator::Error;
use tributary_hudi::target::METADATA_DIR;
use tributary_hudi::{Storage, Stores, has_file_listing, list_directories};
use tributary_types::pipeline::{Pipeline, SourceKind};

use crate::target::{TargetState, target_error};

/// Refuses a table whose metadata table or timeline is gone.
///
/// A delta put into an empty metadata table would be all that readers find; a batch that begins on an empty timeline
/// would deliver everything once more, beside files that nobody names.
pub(crate) async fn refuse_damaged(storage: &Storage, target: &TargetState) -> Result<(), Error> {
    let fail = |e| target_error(storage.url(), "looking for what belongs to the target", e);
    if has_file_listing(&target.config) {
        let properties = format!("{METADATA_DIR}/.hoodie/hoodie.properties");
        if storage.head(&properties).await.map_err(fail)?.is_none() {
            return Err(damaged(
                storage,
                format!(
                    "its properties name a metadata table, and `{properties}` is missing; restore `{METADATA_DIR}`, or \
                     let Hudi on Spark rebuild it"
                ),
            ));
        }
    }
    if target.timeline.instants().is_empty() {
        let files = list_directories(storage).await.map_err(fail)?;
        if let Some(file) = files.bases.first() {
            return Err(damaged(
                storage,
                format!(
                    "its timeline is empty, but data files such as `{}` are there; restore the timeline",
                    file.path
                ),
            ));
        }
    }
    Ok(())
}

/// Refuses to create a table where another one left a timeline or data.
pub(crate) async fn refuse_remains(storage: &Storage) -> Result<(), Error> {
    let fail = |e| target_error(storage.url(), "looking for what is left of a table", e);
    let (instants, _) = storage.list_level(".hoodie/timeline").await.map_err(fail)?;
    let found = match instants.into_iter().next() {
        Some(instant) => Some(instant.path),
        None => list_directories(storage).await.map_err(fail)?.bases.into_iter().next().map(|file| file.path),
    };
    match found {
        None => Ok(()),
        Some(path) => Err(damaged(
            storage,
            format!(
                "`.hoodie/hoodie.properties` is missing, but `{path}` is there; restore the properties, or choose an \
                 empty directory"
            ),
        )),
    }
}

/// A batch that wrote into a table that it reads would read itself, whichever way the path is written.
pub(crate) fn refuse_reading_the_target(
    stores: &dyn Stores,
    pipeline: &Pipeline,
    target: &Storage,
) -> Result<(), Error> {
    for source in pipeline.sources.iter().filter(|source| source.kind != SourceKind::Kafka) {
        // A location that cannot be opened is reported by whoever reads it.
        let Ok(storage) = stores.open(&source.path) else { continue };
        if storage.is_at(target) {
            return Err(Error::Target {
                url: target.url().to_string(),
                what: format!("it is also source `{}`: a batch would read itself", source.name),
            });
        }
    }
    Ok(())
}

fn damaged(storage: &Storage, what: String) -> Error {
    Error::Target { url: storage.url().to_string(), what: format!("it is damaged: {what}") }
}
