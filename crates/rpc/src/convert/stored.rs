// SPDX-License-Identifier: Apache-2.0
//! Stored pipelines.

use tributary_api::pipelines::StoredPipeline;

use super::{Malformed, millis_from_proto, millis_to_proto, pipeline_from_proto, pipeline_to_proto, required};
use crate::proto::coordinator as proto;

/// A stored pipeline for the wire.
pub fn stored_to_proto(stored: &StoredPipeline) -> proto::StoredPipeline {
    let state = match stored.paused {
        true => proto::PipelineState::Paused,
        false => proto::PipelineState::Active,
    };
    proto::StoredPipeline {
        name: stored.pipeline.name.to_string(),
        pipeline: Some(pipeline_to_proto(&stored.pipeline)),
        state: state as i32,
        etag: stored.etag.clone(),
        create_time: Some(millis_to_proto(stored.created_millis)),
        update_time: Some(millis_to_proto(stored.updated_millis)),
    }
}

/// A stored pipeline from the wire.
pub fn stored_from_proto(stored: proto::StoredPipeline) -> Result<StoredPipeline, Malformed> {
    let paused = match proto::PipelineState::try_from(stored.state) {
        Ok(proto::PipelineState::Active) => false,
        Ok(proto::PipelineState::Paused) => true,
        Ok(proto::PipelineState::Unspecified) | Err(_) => {
            return Err(Malformed::new("state", "is no state known here"));
        }
    };
    let pipeline = required(stored.pipeline, "pipeline")?;
    Ok(StoredPipeline {
        pipeline: pipeline_from_proto(pipeline).map_err(|e| e.within("pipeline"))?,
        paused,
        etag: stored.etag,
        created_millis: millis_from_proto(required(stored.create_time, "create_time")?),
        updated_millis: millis_from_proto(required(stored.update_time, "update_time")?),
    })
}
