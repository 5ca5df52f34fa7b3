// SPDX-License-Identifier: Apache-2.0
//! `tributary plan`: what the next batch would do.

use crate::cli::PlanArgs;
use crate::commands::{Failed, coordinator, load_pipeline};
use crate::output;

/// Runs the command; answers the exit code.
pub async fn plan(args: PlanArgs) -> Result<u8, Failed> {
    let pipeline = load_pipeline(&args.pipeline, args.server.as_deref())?;
    let planned = coordinator(args.server.as_deref(), None)?.plan_batch(pipeline).await?;
    output::print_plan(&planned, args.output);
    Ok(0)
}
