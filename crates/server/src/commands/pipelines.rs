// SPDX-License-Identifier: Apache-2.0
//! `tributary pipelines`: what a server keeps, and batches of it by name.

use std::sync::Arc;

use tracing::Instrument as _;
use tributary_api::coordinator::Coordinator;
use tributary_api::pipelines::{Change, Pipelines, RunStored};
use tributary_rpc::{CoordinatorClient, Dial, connect_with};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Outcome, PipelineName, RequestId};

use super::run::{asked_by, request_id, run_span};
use crate::cli::{ChangeArgs, JobArgs, Output, OverrideArgs, PauseArgs, PipelinesCommand, ServerArgs};
use crate::commands::{Failed, Job, connect, load_job, overrides_of};
use crate::output::{self, Progress};

/// Runs the command; answers the exit code.
pub async fn pipelines(command: PipelinesCommand, dial: &Dial) -> Result<u8, Failed> {
    match command {
        PipelinesCommand::Create { job, how } => {
            let pipeline = definition(&job)?;
            let stored = keeper(&how.server, dial)?.create_pipeline(pipeline, change(None, &how)?).await?;
            output::print_stored(&stored, how.output);
            Ok(0)
        }
        PipelinesCommand::Update { job, allow_missing, etag, how } => {
            let pipeline = definition(&job)?;
            let stored =
                keeper(&how.server, dial)?.update_pipeline(pipeline, allow_missing, change(etag, &how)?).await?;
            output::print_stored(&stored, how.output);
            Ok(0)
        }
        PipelinesCommand::Get { name, server, output } => {
            let stored = keeper(&server, dial)?.get_pipeline(&pipeline_name(name)?).await?;
            output::print_stored(&stored, output);
            Ok(0)
        }
        PipelinesCommand::List { server, limit, output } => {
            let found = keeper(&server, dial)?.list_pipelines(None, limit.unwrap_or(usize::MAX)).await?;
            output::print_stored_list(&found, output);
            if found.is_empty() {
                // Not on standard output, which has one line for each pipeline.
                eprintln!("no pipelines are stored at {}; `tributary pipelines create` stores one", server.server);
            }
            Ok(0)
        }
        PipelinesCommand::Delete { name, allow_missing, etag, how } => {
            let name = pipeline_name(name)?;
            keeper(&how.server, dial)?.delete_pipeline(&name, allow_missing, change(etag, &how)?).await?;
            output::print_deleted(&name, how.dry_run, how.output);
            Ok(0)
        }
        PipelinesCommand::Pause(args) => pause(args, true, dial).await,
        PipelinesCommand::Resume(args) => pause(args, false, dial).await,
        PipelinesCommand::Run { name, overrides, request_id, allow_empty, server, output } => {
            let wanted = Wanted { name, overrides, request_id, allow_empty };
            run(wanted, &server, output, dial).await
        }
    }
}

/// The pipelines at a server. Connects with the first call.
fn keeper(server: &ServerArgs, dial: &Dial) -> Result<Arc<dyn Pipelines>, Failed> {
    let channel = connect_with(&server.server, dial).map_err(|e| Failed::new(&e, 2))?;
    Ok(Arc::new(CoordinatorClient::new(channel, &server.server)))
}

/// A pipeline from its file.
fn definition(job: &JobArgs) -> Result<Pipeline, Failed> {
    let Job { pipeline, overrides } = load_job(job, &OverrideArgs::default())?;
    if !overrides.is_empty() {
        let message = "the properties set cursors too (`--checkpoint`, `tributary.override.…`): leave them out here, and set \
                       them with `tributary cursors set`";
        return Err(Failed { message: message.to_string(), exit_code: 2 });
    }
    Ok(pipeline)
}

fn change(etag: Option<String>, how: &ChangeArgs) -> Result<Change, Failed> {
    Ok(Change { etag, validate_only: how.dry_run, request: given(how.request_id.clone())? })
}

fn given(request: Option<String>) -> Result<Option<RequestId>, Failed> {
    request.map(RequestId::new).transpose().map_err(|e| Failed::new(&e, 2))
}

fn pipeline_name(name: String) -> Result<PipelineName, Failed> {
    PipelineName::new(name).map_err(|e| Failed::new(&e, 2))
}

async fn pause(args: PauseArgs, paused: bool, dial: &Dial) -> Result<u8, Failed> {
    let change = Change { etag: args.etag, validate_only: false, request: given(args.request_id)? };
    let stored = keeper(&args.server, dial)?.pause_pipeline(&pipeline_name(args.name)?, paused, change).await?;
    output::print_stored_list(&[stored], args.output);
    Ok(0)
}

/// A batch that is to be run.
struct Wanted {
    name: String,
    overrides: OverrideArgs,
    request_id: Option<String>,
    allow_empty: bool,
}

async fn run(wanted: Wanted, server: &ServerArgs, output: Output, dial: &Dial) -> Result<u8, Failed> {
    let span = run_span(&pipeline_name(wanted.name.clone())?);
    run_and_follow(wanted, server, output, dial).instrument(span).await
}

async fn run_and_follow(wanted: Wanted, server: &ServerArgs, output: Output, dial: &Dial) -> Result<u8, Failed> {
    let request = RunStored {
        name: pipeline_name(wanted.name)?,
        request: request_id(wanted.request_id.as_deref())?,
        allow_empty: wanted.allow_empty,
        overrides: overrides_of(Vec::new(), &wanted.overrides)?,
        cursors_only: false,
        asked_by: asked_by("tributary pipelines run"),
    };
    let started = keeper(server, dial)?.run_stored(request).await?;
    let coordinator: Arc<dyn Coordinator> = connect(&server.server, dial)?;
    let ended = output::follow(coordinator.as_ref(), &started.name, Progress::new(output)).await?;
    output::print_batch(&ended, output);
    Ok(ended.outcome.unwrap_or(Outcome::Failed).exit_code())
}
