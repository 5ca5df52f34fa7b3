// SPDX-License-Identifier: Apache-2.0
//! `tributary plan`: what the next batch would do.

use std::sync::Arc;

use tributary_api::transform::Transforms;
use tributary_hudi::Stores;
use tributary_rpc::Dial;

use crate::cli::PlanArgs;
use crate::commands::{Failed, Job, connect, load_job, roles_with};
use crate::output;

/// Runs the command; answers the exit code.
pub async fn plan(args: PlanArgs, stores: Arc<dyn Stores>, transforms: Transforms, dial: &Dial) -> Result<u8, Failed> {
    let Job { pipeline, overrides } = load_job(&args.job, &args.overrides)?;
    let coordinator = match args.server.as_deref() {
        Some(server) => connect(server, dial)?,
        None => roles_with(None, stores, transforms, None)?.coordinator,
    };
    let planned = coordinator.plan_batch(pipeline, overrides).await?;
    output::print_plan(&planned, args.output);
    Ok(0)
}
