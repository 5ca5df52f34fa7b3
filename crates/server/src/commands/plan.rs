// SPDX-License-Identifier: Apache-2.0
//! `tributary plan`: what the next batch would do.

use std::sync::Arc;

use tributary_hudi::Stores;
use tributary_rpc::Dial;

use crate::cli::PlanArgs;
use crate::commands::{Failed, Job, coordinator, load_job};
use crate::output;

/// Runs the command; answers the exit code.
pub async fn plan(args: PlanArgs, stores: Arc<dyn Stores>, dial: &Dial) -> Result<u8, Failed> {
    let Job { pipeline, overrides } = load_job(&args.job, &args.overrides)?;
    let planned = coordinator(args.server.as_deref(), None, stores, dial)?.plan_batch(pipeline, overrides).await?;
    output::print_plan(&planned, args.output);
    Ok(0)
}
