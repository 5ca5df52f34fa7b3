// SPDX-License-Identifier: Apache-2.0
//! Pulling a batch: the rows it changed, as they stand in the target at its instant.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use tributary_api::coordinator::{BatchStatus, Error, OpenedBatch};
use tributary_api::timeline::{Begin, PlanRequest, ReadRequest, Relation, Timeline, Views};
use tributary_api::{RowError, RowStream};
use tributary_types::pipeline::{OnHole, OnLate};
use tributary_types::{Cursor, InstantTime, MemoryBudget, SourceName};

/// Bytes that merging the log files of a split may take; targets have none today.
const SPLIT_MEMORY: usize = 256 << 20;

/// Opens the rows of a committed batch: the window of the target that holds exactly its commit.
pub(crate) async fn open(
    timeline: &Arc<dyn Timeline>,
    target: &str,
    status: BatchStatus,
    batch_rows: usize,
) -> Result<OpenedBatch, Error> {
    let gone = |what: String| Error::Gone { name: status.name.to_string(), what };
    let (Some(instant), Some(completed)) = (status.instant.clone(), status.completed.clone()) else {
        return Err(gone("it committed nothing".to_string()));
    };
    let relation = changed_rows(timeline, target, &instant, &completed).await.map_err(|error| match error {
        tributary_api::timeline::Error::FileGone { .. } | tributary_api::timeline::Error::Stale { .. } => {
            gone(format!("{error}"))
        }
        other => Error::Timeline(other),
    })?;
    let schema = Arc::clone(&relation.schema);
    Ok(OpenedBatch { schema, rows: rows(Arc::clone(timeline), relation, batch_rows), status })
}

async fn changed_rows(
    timeline: &Arc<dyn Timeline>,
    target: &str,
    instant: &InstantTime,
    completed: &InstantTime,
) -> Result<Relation, tributary_api::timeline::Error> {
    let source = SourceName::new("batch").expect("a plain word is a source name");
    let plan = timeline
        .plan(PlanRequest {
            source,
            url: target.to_string(),
            begin: Begin::After(Cursor::Completed(before(completed))),
            lookup: false,
            num_instants: usize::MAX,
            ceiling_millis: None,
            pinned_end: Some(Cursor::Completed(completed.clone())),
            fingerprint: None,
            recent: Vec::new(),
            on_late: OnLate::Deliver,
            on_hole: OnHole::Block,
            views: Views { changed: true, ..Views::default() },
            meta_columns: false,
        })
        .await?;
    let mut relation =
        plan.changed.unwrap_or(Relation { schema: Arc::new(arrow::datatypes::Schema::empty()), splits: Vec::new() });
    let only = Arc::new(vec![instant.clone()]);
    for split in &mut relation.splits {
        split.instants = Some(Arc::clone(&only));
    }
    Ok(relation)
}

/// The latest instant before `completed`. Completion times on a timeline are all different.
fn before(completed: &InstantTime) -> InstantTime {
    match completed.epoch_millis(tributary_types::Zone::Utc) {
        // The digits are moved back, whatever their zone.
        Some(millis) => InstantTime::from_epoch_millis(millis - 1, tributary_types::Zone::Utc),
        None => InstantTime::init(),
    }
}

fn rows(timeline: Arc<dyn Timeline>, relation: Relation, batch_rows: usize) -> RowStream {
    let schema = relation.schema;
    let streams = futures::stream::iter(relation.splits).then(move |split| {
        let timeline = Arc::clone(&timeline);
        let schema = Arc::clone(&schema);
        async move {
            let memory = MemoryBudget::new(SPLIT_MEMORY);
            let request = ReadRequest { split, schema, projection: None, predicate: None, batch_rows, memory };
            timeline.read(request).await.map_err(RowError::new)
        }
    });
    streams.try_flatten().boxed()
}
