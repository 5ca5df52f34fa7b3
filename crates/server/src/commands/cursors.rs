// SPDX-License-Identifier: Apache-2.0
//! `tributary cursors`: where a pipeline stands, and moving it by hand.

use std::path::Path;
use std::sync::Arc;

use tributary_api::coordinator::RunRequest;
use tributary_hudi::Stores;
use tributary_rpc::Dial;
use tributary_types::{Outcome, Override, OverrideTo, SourceName};

use crate::cli::{CursorsCommand, JobArgs, Output, OverrideArgs, SetArgs};
use crate::commands::run::{asked_by, request_id};
use crate::commands::{Failed, Job, coordinator, load_job};
use crate::output::{self, Progress};

/// Runs the command; answers the exit code.
pub async fn cursors(command: CursorsCommand, stores: Arc<dyn Stores>, dial: &Dial) -> Result<u8, Failed> {
    match command {
        CursorsCommand::Get { job, server, output } => {
            let Job { pipeline, .. } = load_job(&job, &OverrideArgs::default())?;
            let coordinator = coordinator(server.as_deref(), None, stores, dial)?;
            let found = coordinator.get_cursors(&pipeline.name, &pipeline.target.path).await?;
            output::print_cursors(&pipeline, found.as_ref(), output);
            Ok(0)
        }
        CursorsCommand::Set { cursors, how } => set(cursors, how, stores, dial).await,
        CursorsCommand::Reset { sources, how } => {
            let reset = |source: SourceName| Override { source: Some(source), to: OverrideTo::Start, token: None };
            set(sources.into_iter().map(reset).collect(), how, stores, dial).await
        }
        CursorsCommand::History { job, server, data_dir, limit, output } => {
            history(&job, server.as_deref(), data_dir.as_deref(), limit, output, stores, dial).await
        }
    }
}

async fn set(cursors: Vec<Override>, how: SetArgs, stores: Arc<dyn Stores>, dial: &Dial) -> Result<u8, Failed> {
    let Job { pipeline, overrides } = load_job(&how.job, &OverrideArgs::default())?;
    if !overrides.is_empty() {
        let message = "the properties set cursors too (`--checkpoint`, `tributary.override.…`): leave them out here";
        return Err(Failed { message: message.to_string(), exit_code: 2 });
    }
    let request = request_id(how.request_id.as_deref())?;
    let coordinator = coordinator(how.server.as_deref(), how.data_dir.as_deref(), stores, dial)?;
    if how.dry_run {
        let found = coordinator.check_overrides(pipeline, cursors).await?;
        output::print_overrides(&found, how.output);
        return Ok(0);
    }
    let request = RunRequest {
        pipeline,
        request,
        allow_empty: false,
        overrides: cursors,
        cursors_only: true,
        asked_by: asked_by("tributary cursors"),
    };
    let started = coordinator.run_batch(request).await?;
    let ended = output::follow(coordinator.as_ref(), &started.name, Progress::new(how.output)).await?;
    output::print_batch(&ended, how.output);
    Ok(ended.outcome.unwrap_or(Outcome::Failed).exit_code())
}

async fn history(
    job: &JobArgs,
    server: Option<&str>,
    data: Option<&Path>,
    limit: usize,
    output: Output,
    stores: Arc<dyn Stores>,
    dial: &Dial,
) -> Result<u8, Failed> {
    if server.is_none() && data.is_none() {
        let message = "the history of batches is kept by a server, or below a data directory: say which with --server or \
                       --data-dir; the cursors of each commit are shown by `tributary table inspect`";
        return Err(Failed { message: message.to_string(), exit_code: 2 });
    }
    let Job { pipeline, .. } = load_job(job, &OverrideArgs::default())?;
    let found = coordinator(server, data, stores, dial)?.list_batches(Some(&pipeline.name), limit).await?;
    output::print_history(&found, output);
    if found.is_empty() {
        eprintln!("no batches of pipeline `{}` are remembered", pipeline.name);
    }
    Ok(0)
}
