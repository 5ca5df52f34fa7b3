// SPDX-License-Identifier: Apache-2.0
//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tributary_types::pipeline::Span;

use crate::commands;
use crate::telemetry;

/// Keeps one Apache Hudi table up to date from many.
#[derive(Debug, Parser)]
#[command(
    name = "tributary",
    version,
    about = "Keeps one Apache Hudi table up to date from many, without Spark: rows and all cursors in one commit.",
    after_help = "Examples:\n  tributary run --pipeline orders.toml\n  tributary plan --pipeline orders.toml\n  \
                  tributary table inspect /lake/orders\n\nExit codes of `run`: 0 committed or nothing new, 1 failed, 2 \
                  rejected, 3 conflict, 4 cancelled, 5 outcome unknown."
)]
pub struct Cli {
    /// Logs as JSON lines on standard error; `TRIBUTARY_LOG` filters them.
    #[arg(long, global = true)]
    pub log_json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one batch of a pipeline, or batch after batch.
    Run(RunArgs),
    /// Show windows, plan and result schema of the next batch; reads no data file, writes nothing.
    Plan(PlanArgs),
    /// Look at a table.
    #[command(subcommand)]
    Table(TableCommand),
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The pipeline file.
    #[arg(long, short)]
    pub pipeline: PathBuf,
    /// Go on with batch after batch until stopped.
    #[arg(long)]
    pub continuous: bool,
    /// Pause between batches that found nothing new.
    #[arg(long, default_value = "10s", value_parser = parse_span)]
    pub interval: Span,
    /// Id of the request: the same id again answers with the same batch. Made up when absent.
    #[arg(long)]
    pub request_id: Option<String>,
    /// Commit even if no source has news.
    #[arg(long)]
    pub allow_empty: bool,
    /// Directory that keeps the history of batches; without it the history ends with the process.
    #[arg(long, env = "TRIBUTARY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The pipeline file.
    #[arg(long, short)]
    pub pipeline: PathBuf,
    /// How the plan is printed.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// Ways to look at a table.
#[derive(Debug, Subcommand)]
pub enum TableCommand {
    /// Show what a table is, its commits and the cursors in them.
    Inspect {
        /// Path or URL of the table.
        table: String,
        /// How it is printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Print rows of a table.
    Read {
        /// Path or URL of the table.
        table: String,
        /// Columns to print, in order; all when absent.
        #[arg(long, value_delimiter = ',')]
        columns: Vec<String>,
        /// Rows to print at most.
        #[arg(long, default_value_t = 20)]
        limit: usize,
        /// Show the five meta columns.
        #[arg(long)]
        meta_columns: bool,
        /// How rows are printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
}

fn parse_span(text: &str) -> Result<Span, String> {
    text.parse()
}

/// Runs the command line; the exit code is the process's.
pub fn main(cli: Cli) -> ExitCode {
    telemetry::init_logs(cli.log_json);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime does not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Run(args) => commands::run::run(args).await,
            Command::Plan(args) => commands::plan::plan(args).await,
            Command::Table(command) => commands::table::table(command).await,
        }
    });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failed) => {
            eprintln!("error: {}", failed.message);
            ExitCode::from(failed.exit_code)
        }
    }
}
