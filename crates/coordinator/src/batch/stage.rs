// SPDX-License-Identifier: Apache-2.0
//! What the writer is asked for.

use std::sync::Arc;

use tributary_api::writer::{FileSizes, StageRequest};

use super::{Batch, Opened, Prepared};
use crate::plan::Opening;
use crate::target::key_settings;

impl Batch<'_> {
    /// The staging of attempt number `attempt`.
    pub(super) fn stage_request(
        &self,
        prepared: &Prepared,
        opening: &Opening,
        opened: &Opened,
        attempt: u32,
    ) -> StageRequest {
        let pipeline = &self.request.pipeline;
        StageRequest {
            url: self.storage.url().to_string(),
            table_name: prepared.target.config.name.clone(),
            table_type: prepared.target.config.table_type,
            instant: opened.instant.clone(),
            attempt,
            schema: Arc::clone(&opening.checked.schema),
            table_schema: Arc::clone(&opening.schema),
            operation: pipeline.target.operation,
            keys: key_settings(&pipeline.target, &prepared.target.config),
            ordering: pipeline.target.ordering.clone(),
            merge: pipeline.target.merge.clone().map(Arc::new),
            deletes_give_way: pipeline.deletes_give_way(),
            on_null_key: pipeline.target.on_null_key,
            files: FileSizes { small: pipeline.target.small_file_limit.0, largest: pipeline.target.max_file_size.0 },
            slices: Arc::clone(&opened.slices),
            budget: self.budget.clone(),
            share: None,
            spill_bytes: pipeline.limits.spill.0,
            stop: self.stop.clone(),
        }
    }
}
