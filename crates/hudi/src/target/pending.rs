// SPDX-License-Identifier: Apache-2.0
//! Pending instants: minting, beginning, heartbeats, completing.

use std::collections::BTreeMap;

use hudi_core::metadata::replace_commit::HoodieRequestedReplaceMetadata;
use serde::{Deserialize, Serialize};
use tributary_types::{InstantTime, PipelineName, Zone};

use crate::commit::CommitMetadata;
use crate::error::{Error, Result};
use crate::storage::{Entry, PutNew, Storage};
use crate::timeline::{Action, completed_path, inflight_path, requested_path};

const HEARTBEATS: &str = ".hoodie/.heartbeat";
const OWNER_KEY: &str = "tributary.owner";

/// Who opened a pending instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The pipeline.
    pub pipeline: PipelineName,
    /// Its epoch then.
    pub epoch: u64,
    /// A random name of the process.
    pub process: String,
}

impl Owner {
    fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::corrupt(OWNER_KEY, e))
    }
}

/// A new instant: now, or just after `latest` when the clock does not lie beyond it.
///
/// Hudi asks that every time on a timeline is later than all that were there when it was taken; the caller holds the
/// table's lock and passes the latest time it sees.
pub fn mint_instant(now_millis: i64, zone: Zone, latest: Option<&InstantTime>) -> InstantTime {
    let now = InstantTime::from_epoch_millis(now_millis, zone);
    match latest {
        Some(latest) if now <= *latest => latest.successor(),
        _ => now,
    }
}

/// Opens an instant: heartbeat first, then the requested and the inflight file, which says who owns it.
pub async fn begin_instant(
    storage: &Storage,
    timeline_dir: &str,
    requested: &InstantTime,
    action: Action,
    operation: &str,
    owner: &Owner,
) -> Result<()> {
    write_heartbeat(storage, requested, owner).await?;
    let path = requested_path(timeline_dir, requested, action);
    // Java asks of a pending replacecommit whether it is a clustering.
    let plan = match action {
        Action::ReplaceCommit => HoodieRequestedReplaceMetadata::for_operation(operation).to_avro_bytes(),
        _ => Ok(Vec::new()),
    };
    let plan = plan.map_err(|e| Error::corrupt(&path, e))?;
    if storage.put_new(&path, plan).await? == PutNew::Exists {
        return Err(Error::Conflict { what: format!("`{path}` exists: another writer took the same instant") });
    }
    let metadata = CommitMetadata {
        operation: operation.to_string(),
        extra: BTreeMap::from([(OWNER_KEY.to_string(), owner.to_json()?)]),
        ..CommitMetadata::default()
    };
    let path = inflight_path(timeline_dir, requested, action);
    match storage.put_new(&path, metadata.encode()?).await? {
        PutNew::Created => Ok(()),
        PutNew::Exists => Err(Error::Conflict { what: format!("`{path}` exists: another writer took the instant") }),
    }
}

/// Who opened a pending instant; `None` for one of a foreign writer.
///
/// The heartbeat names its owner too: it is written before the requested file, so that an instant whose inflight file
/// was never written has an owner all the same.
pub async fn read_owner(
    storage: &Storage,
    timeline_dir: &str,
    requested: &InstantTime,
    action: Action,
) -> Result<Option<Owner>> {
    let path = inflight_path(timeline_dir, requested, action);
    if let Some(bytes) = storage.get(&path).await?.filter(|bytes| !bytes.is_empty()) {
        // A foreign inflight may hold anything; ours always decodes.
        let metadata = CommitMetadata::decode(&path, &bytes).unwrap_or_default();
        if let Some(owner) = metadata.extra.get(OWNER_KEY) {
            return Ok(serde_json::from_str(owner).ok());
        }
    }
    if action == Action::Compaction
        && let Some(owner) = super::compaction::plan_owner(storage, timeline_dir, requested).await?
    {
        return Ok(Some(owner));
    }
    heartbeat_owner(storage, requested).await
}

/// Whose heartbeat an instant has; `None` for none, and for one of a foreign writer. A rollback says only so whose it is.
pub async fn heartbeat_owner(storage: &Storage, requested: &InstantTime) -> Result<Option<Owner>> {
    let heartbeat = storage.get(&format!("{HEARTBEATS}/{requested}")).await?;
    Ok(heartbeat.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Shows other writers that the instant is alive: they read the file's modification time, and we its owner.
pub async fn write_heartbeat(storage: &Storage, requested: &InstantTime, owner: &Owner) -> Result<()> {
    storage.put(&format!("{HEARTBEATS}/{requested}"), owner.to_json()?.into_bytes()).await
}

/// Ends the heartbeat of an instant that is over.
pub async fn delete_heartbeat(storage: &Storage, requested: &InstantTime) -> Result<()> {
    storage.delete(&format!("{HEARTBEATS}/{requested}")).await
}

/// Instants of ours that have a heartbeat, live or dead.
pub async fn own_heartbeats(storage: &Storage) -> Result<Vec<InstantTime>> {
    let (listed, _) = storage.list_level(HEARTBEATS).await?;
    let mut found = Vec::new();
    for entry in &listed {
        let Ok(instant) = entry.name().parse::<InstantTime>() else { continue };
        let bytes = storage.get(&entry.path).await?;
        // Those of other writers are empty.
        if bytes.is_some_and(|bytes| serde_json::from_slice::<Owner>(&bytes).is_ok()) {
            found.push(instant);
        }
    }
    Ok(found)
}

/// The completion time of an instant, if any completed file of it exists. More than one is corruption.
pub async fn find_completion(
    storage: &Storage,
    timeline_dir: &str,
    requested: &InstantTime,
) -> Result<Option<InstantTime>> {
    let (files, _) = storage.list_level(timeline_dir).await?;
    let prefix = format!("{requested}_");
    let mut completions = files
        .iter()
        .map(Entry::name)
        .filter_map(|name| name.strip_prefix(&prefix))
        .filter_map(|rest| rest.split('.').next())
        .filter_map(|text| text.parse::<InstantTime>().ok());
    match (completions.next(), completions.next()) {
        (found, None) => Ok(found),
        (Some(first), Some(second)) => Err(Error::corrupt(
            format!("{timeline_dir}/{requested}_*"),
            format!("instant {requested} is completed twice, at {first} and at {second}"),
        )),
        (None, Some(_)) => Ok(None),
    }
}

/// Completes an instant: the one operation after which readers see the batch. The file's name and bytes are the
/// same at every try, so a try whose answer was lost may be repeated.
pub async fn complete_instant(
    storage: &Storage,
    timeline_dir: &str,
    requested: &InstantTime,
    completed: &InstantTime,
    action: Action,
    metadata: Vec<u8>,
) -> Result<PutNew> {
    storage.put_new(&completed_path(timeline_dir, requested, completed, action), metadata).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_instant_is_after_everything_on_the_timeline_even_when_the_clock_went_back() {
        let now = 1_749_234_506_197;
        let minted = mint_instant(now, Zone::Utc, None);
        assert_eq!(minted.as_str(), "20250606182826197");
        let later: InstantTime = "20250606182831000".parse().unwrap();
        assert_eq!(mint_instant(now, Zone::Utc, Some(&later)).as_str(), "20250606182831001");
        assert_eq!(mint_instant(now, Zone::Utc, Some(&minted)).as_str(), "20250606182826198");
    }
}
