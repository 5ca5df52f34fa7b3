// SPDX-License-Identifier: Apache-2.0
//! `tributary batches`: what a server's batches are doing, and their rows.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use arrow::ipc::writer::FileWriter;
use futures::{StreamExt, TryStreamExt};
use tributary_api::coordinator::OpenedBatch;
use tributary_rpc::Dial;
use tributary_types::{BatchName, Fault, Outcome, PipelineName};

use crate::cli::{BatchesCommand, Output, PullArgs};
use crate::commands::{Failed, connect};
use crate::output::{self, Progress};

/// Runs the command; answers the exit code.
pub async fn batches(command: BatchesCommand, dial: &Dial) -> Result<u8, Failed> {
    match command {
        BatchesCommand::List { server, pipeline, limit, output } => {
            let pipeline = pipeline.map(PipelineName::new).transpose().map_err(|e| Failed::new(&e, 2))?;
            let found = connect(&server.server, dial)?.list_batches(pipeline.as_ref(), limit).await?;
            output::print_batches(&found, output);
            if found.is_empty() {
                // Not on standard output, which has one line for each batch.
                eprintln!("{}", nothing_listed(&server.server, pipeline.as_ref()));
            }
            Ok(0)
        }
        BatchesCommand::Get { name, server, output } => {
            let status = connect(&server.server, dial)?.get_batch(&batch_name(name)?).await?;
            output::print_batch(&status, output);
            Ok(0)
        }
        BatchesCommand::Watch { name, server, output } => {
            let coordinator = connect(&server.server, dial)?;
            let ended = output::follow(coordinator.as_ref(), &batch_name(name)?, Progress::new(output)).await?;
            output::print_batch(&ended, output);
            Ok(ended.outcome.unwrap_or(Outcome::Failed).exit_code())
        }
        BatchesCommand::Cancel { name, server, output } => {
            let coordinator = connect(&server.server, dial)?;
            let name = batch_name(name)?;
            coordinator.cancel_batch(&name).await?;
            let ended = output::follow(coordinator.as_ref(), &name, Progress::new(output)).await?;
            output::print_batch(&ended, output);
            match ended.outcome {
                Some(Outcome::Cancelled) => Ok(0),
                other => {
                    let how = other.map_or("nobody knows how", Outcome::as_str);
                    Err(Failed { message: format!("batch `{name}` was not cancelled: it ended {how}"), exit_code: 1 })
                }
            }
        }
        BatchesCommand::Pull(args) => pull(args, dial).await,
    }
}

fn nothing_listed(server: &str, pipeline: Option<&PipelineName>) -> String {
    match pipeline {
        Some(pipeline) => format!("no batches of pipeline `{pipeline}` at {server}"),
        None => format!("no batches at {server} yet; `tributary run --server {server} --pipeline FILE` runs one"),
    }
}

fn batch_name(name: String) -> Result<BatchName, Failed> {
    BatchName::new(name).map_err(|e| Failed::new(&e, 2))
}

async fn pull(args: PullArgs, dial: &Dial) -> Result<u8, Failed> {
    let name = batch_name(args.name)?;
    if let Some(to) = &args.to {
        check_format(to)?;
    }
    let opened = connect(&args.server.server, dial)?.open_batch(&name).await?;
    let rows = match &args.to {
        Some(to) => write_file(opened, to).await?,
        None => print(opened, args.output, args.limit).await?,
    };
    match &args.to {
        Some(to) => eprintln!("{rows} rows of {name} written to {}", to.display()),
        None => eprintln!("{rows} rows of {name}"),
    }
    Ok(0)
}

fn check_format(to: &Path) -> Result<(), Failed> {
    match to.extension().and_then(|extension| extension.to_str()) {
        Some("arrow" | "ipc" | "feather") => Ok(()),
        _ => Err(Failed {
            message: format!("--to {}: rows are written as Arrow IPC; name the file *.arrow", to.display()),
            exit_code: 2,
        }),
    }
}

async fn print(opened: OpenedBatch, output: Output, limit: Option<usize>) -> Result<usize, Failed> {
    let mut left = limit.unwrap_or(usize::MAX);
    let mut printed = 0;
    let mut rows = opened.rows;
    // A table is one piece, so that its columns line up; lines are printed as they come.
    let mut table = vec![arrow::array::RecordBatch::new_empty(opened.schema)];
    while left > 0 {
        let Some(batch) = rows.next().await.transpose().map_err(row_failed)? else { break };
        let batch = batch.slice(0, batch.num_rows().min(left));
        left -= batch.num_rows();
        printed += batch.num_rows();
        match output {
            Output::Text => table.push(batch),
            Output::Json => output::print_rows(&[batch], output).map_err(|e| Failed::new(&e, 1))?,
        }
    }
    if output == Output::Text {
        output::print_rows(&table, output).map_err(|e| Failed::new(&e, 1))?;
    }
    Ok(printed)
}

/// Writes beside the file first, so that a broken pull leaves none that looks whole.
async fn write_file(opened: OpenedBatch, to: &Path) -> Result<usize, Failed> {
    let fail = |what: &str, error: &(dyn std::error::Error + 'static)| {
        let cause = Failed::new(error, 1);
        Failed { message: format!("{what} {}: {}", to.display(), cause.message), exit_code: 1 }
    };
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = std::path::PathBuf::from(partial);
    let file = File::create(&partial).map_err(|e| fail("cannot create the file beside", &e))?;
    let mut writer = FileWriter::try_new(BufWriter::new(file), &opened.schema)
        .map_err(|e| fail("cannot write the schema to", &e))?;
    let mut rows = opened.rows;
    let mut written = 0;
    let copied = loop {
        match rows.try_next().await {
            Ok(Some(batch)) => {
                written += batch.num_rows();
                if let Err(error) = writer.write(&batch) {
                    break Err(fail("cannot write rows to", &error));
                }
            }
            Ok(None) => break writer.finish().map_err(|e| fail("cannot finish", &e)),
            Err(error) => break Err(row_failed(error)),
        }
    };
    drop(writer);
    let moved = copied.and_then(|()| std::fs::rename(&partial, to).map_err(|e| fail("cannot put in place", &e)));
    if moved.is_err() {
        // The failure itself is what matters.
        let _ = std::fs::remove_file(&partial);
    }
    moved.map(|()| written)
}

fn row_failed(error: tributary_api::RowError) -> Failed {
    let mut failed = Failed::new(&error, 1);
    failed.message = format!("{} [{}]", failed.message, error.reason());
    failed
}
