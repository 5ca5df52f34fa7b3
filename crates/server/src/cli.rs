// SPDX-License-Identifier: Apache-2.0
//! The command line.

mod cursors;
mod observing;
mod pipelines;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use tributary_api::transform::Transforms;
use tributary_hudi::{StoreSettings, Stores, SystemStores};
use tributary_types::pipeline::{ByteSize, Span};

use crate::commands;
use crate::roles::Role;
use crate::security::{self, ClientSecurity, ServeSecurity};
use crate::telemetry::Telemetry;

pub use self::cursors::{CursorsCommand, JobArgs, OverrideArgs, SetArgs};
pub use self::observing::{LineageArgs, TelemetryArgs};
pub use self::pipelines::{ChangeArgs, PauseArgs, PipelinesCommand};

/// Keeps one Apache Hudi table up to date from many.
#[derive(Debug, Parser)]
#[command(
    name = "tributary",
    version,
    about = "Keeps one Apache Hudi table up to date from many, without Spark: rows and all cursors in one commit.",
    after_help = "Examples:\n  tributary run --pipeline orders.toml\n  tributary plan --pipeline orders.toml\n  \
                  tributary table inspect /lake/orders\n  tributary serve --data-dir /var/lib/tributary\n  \
                  tributary run --server http://127.0.0.1:7373 --pipeline orders.toml\n  tributary batches pull \
                  orders/REQUEST-ID\n  tributary run --pipeline orders.toml --override users=snapshot\n  tributary cursors \
                  get --pipeline orders.toml\n\nExit codes of `run`: 0 committed or nothing new, 1 failed, 2 \
                  rejected, 3 conflict, 4 cancelled, 5 outcome unknown."
)]
pub struct Cli {
    /// A file with settings, TOML. `TRIBUTARY__SECTION__KEY` in the environment goes before it, a flag before both; see
    /// docs/configuration.md.
    #[arg(long, global = true, value_name = "FILE", env = "TRIBUTARY_CONFIG")]
    pub config: Option<PathBuf>,
    /// Logs and traces.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    /// How long a request to an object store may take, and how long one that fails is repeated: a store that does not
    /// answer is given up after at most twice this time.
    #[arg(long, global = true, default_value = "30s", env = "TRIBUTARY_STORE_TIMEOUT", value_parser = parse_store_timeout)]
    pub store_timeout: Span,
    /// How servers are called.
    #[command(flatten)]
    pub security: ClientSecurity,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one batch of a pipeline, or batch after batch.
    #[command(
        after_help = "Examples:\n  tributary run --pipeline orders.toml\n  tributary run --pipeline orders.toml --continuous --data-dir /var/lib/tributary\n  tributary run --server http://127.0.0.1:7373 --pipeline orders.toml --output json\n  tributary run --pipeline orders.toml --override users=snapshot"
    )]
    Run(RunArgs),
    /// Show windows, plan and result schema of the next batch; reads no data file, writes nothing.
    #[command(
        after_help = "Examples:\n  tributary plan --pipeline orders.toml\n  tributary plan --pipeline orders.toml --output json"
    )]
    Plan(PlanArgs),
    /// Look at a table.
    #[command(subcommand)]
    Table(TableCommand),
    /// Serve the roles over gRPC and Arrow Flight until stopped.
    #[command(
        after_help = "Examples:\n  tributary serve --data-dir /var/lib/tributary\n  tributary serve --config tributary.toml --print-config\n  tributary serve --roles timeline,sources --listen 127.0.0.1:7400"
    )]
    Serve(ServeArgs),
    /// Store pipelines on a server, look at them, change, pause and run them by name.
    #[command(subcommand)]
    Pipelines(PipelinesCommand),
    /// Look at the batches of a server, follow or cancel one, pull its rows.
    #[command(subcommand)]
    Batches(BatchesCommand),
    /// Show the cursors of a pipeline, set them by hand, show their history.
    #[command(subcommand)]
    Cursors(CursorsCommand),
    /// Measure reading and merging as ratios to plain DataFusion, on tables made for it.
    #[command(after_help = "Examples:\n  tributary bench\n  tributary bench --rows 5000000 --runs 1 --memory-only\n  \
                            tributary bench --latency --output json")]
    Bench(BenchArgs),
    /// Print a script that completes commands and flags in a shell.
    #[command(after_help = "Examples:\n  tributary completion bash > /etc/bash_completion.d/tributary\n  tributary \
                            completion zsh > ~/.zfunc/_tributary\n  tributary completion fish > \
                            ~/.config/fish/completions/tributary.fish")]
    Completion {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Its name on the command line.
    fn name(&self) -> &'static str {
        match self {
            Command::Run(_) => "run",
            Command::Plan(_) => "plan",
            Command::Table(_) => "table",
            Command::Serve(_) => "serve",
            Command::Batches(_) => "batches",
            Command::Cursors(_) => "cursors",
            Command::Bench(_) => "bench",
            Command::Pipelines(_) => "pipelines",
            Command::Completion { .. } => "completion",
        }
    }
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Changed rows of each of the two sources.
    #[arg(long, default_value_t = 1_000_000)]
    pub rows: usize,
    /// Counted pairs of runs; one more warms up.
    #[arg(long, default_value_t = 5)]
    pub runs: usize,
    /// Fail for memory over its bound alone. For batches that do not fit into it: they go through temporary files, which
    /// plain DataFusion needs none of.
    #[arg(long)]
    pub memory_only: bool,
    /// Measure planning instead: the first window of a table of `--instants` commits of `--files` files each, and the next
    /// one, as ratios to listing its timeline.
    #[arg(long)]
    pub planning: bool,
    /// With --planning: commits on the timeline.
    #[arg(long, default_value_t = 10_000, requires = "planning", value_parser = clap::value_parser!(i64).range(12..))]
    pub instants: i64,
    /// With --planning: files that each commit wrote.
    #[arg(long, default_value_t = 1000, requires = "planning", value_parser = clap::value_parser!(i64).range(1..))]
    pub files: i64,
    /// Measure instead how long batches of many pipelines wait and take on one process, one pipeline always failing and
    /// one giant.
    #[arg(long, conflicts_with_all = ["memory_only", "runs"])]
    pub latency: bool,
    /// With --latency: pipelines.
    #[arg(long, default_value_t = 50, requires = "latency")]
    pub pipelines: usize,
    /// Measure pulling a batch alone, against a Flight service that sends the same rows back.
    #[arg(long)]
    pub pull: bool,
    /// Directory for the tables, which stay; a temporary one when absent.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// How the ratios are printed.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Which pipeline.
    #[command(flatten)]
    pub job: JobArgs,
    /// Cursors that are set by hand.
    #[command(flatten)]
    pub overrides: OverrideArgs,
    /// Go on with batch after batch until stopped.
    #[arg(long)]
    pub continuous: bool,
    /// Pause between batches that found nothing new.
    #[arg(long, default_value = "10s", value_parser = parse_span)]
    pub interval: Span,
    /// Id of the request: the same id again answers with the same batch. A UUID of version 7, which carries the time, is
    /// made up when absent; an id without a time must not be used again once 200 further commits were made.
    #[arg(long)]
    pub request_id: Option<String>,
    /// Commit even if no source has news.
    #[arg(long)]
    pub allow_empty: bool,
    /// Events of lineage.
    #[command(flatten)]
    pub lineage: LineageArgs,
    /// Directory that keeps the history of batches; without it the history ends with the process.
    #[arg(long, env = "TRIBUTARY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Run the batch on this server, `http://HOST:PORT`, instead of in this process. It reads and writes the tables,
    /// and keeps the history: `--data-dir` is not used then.
    #[arg(long)]
    pub server: Option<String>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
    /// Print a batch in a few lines.
    #[arg(long, conflicts_with = "output")]
    pub brief: bool,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Which pipeline.
    #[command(flatten)]
    pub job: JobArgs,
    /// Cursors that the batch would set by hand.
    #[command(flatten)]
    pub overrides: OverrideArgs,
    /// Plan on this server, `http://HOST:PORT`, instead of in this process.
    #[arg(long)]
    pub server: Option<String>,
    /// How the plan is printed.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// Ways to look at a table.
#[derive(Debug, Subcommand)]
pub enum TableCommand {
    /// Show what a table is, its commits and the cursors in them.
    #[command(
        after_help = "Examples:\n  tributary table inspect /lake/orders\n  tributary table inspect s3://lake/orders --output json"
    )]
    Inspect {
        /// Path or URL of the table.
        table: String,
        /// How it is printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Print rows of a table.
    #[command(
        after_help = "Examples:\n  tributary table read /lake/orders --limit 5\n  tributary table read /lake/orders --columns order_id,amount --output json"
    )]
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

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address of gRPC and Flight; port 0 takes a free one. The address taken is printed.
    #[arg(long, default_value = "127.0.0.1:7373")]
    pub listen: String,
    /// Address of `/livez`, `/readyz` and `/metrics`; not served when absent.
    #[arg(long)]
    pub http_listen: Option<String>,
    /// Roles that run in this process.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["timeline", "sources", "checkpoint", "merge", "writer", "coordinator"])]
    pub roles: Vec<Role>,
    /// Where the timeline role is, when it does not run here: `http://HOST:PORT`. Of several, separated by commas, each takes
    /// its turn, and one that does not answer is passed over.
    #[arg(long, value_delimiter = ',')]
    pub timeline_address: Vec<String>,
    /// Where the sources role is, which reads directories of files and topics, when it does not run here.
    #[arg(long)]
    pub sources_address: Option<String>,
    /// Where the checkpoint role is, when it does not run here.
    #[arg(long)]
    pub checkpoint_address: Option<String>,
    /// Where the merge role is, when it does not run here.
    #[arg(long)]
    pub merge_address: Option<String>,
    /// Where the writer role is, when it does not run here; of several, separated by commas, each takes its turn.
    #[arg(long, value_delimiter = ',')]
    pub writer_address: Vec<String>,
    /// Where those who pull rows reach this process, `grpc://HOST:PORT`; a coordinator elsewhere hands it out for a timeline
    /// role here. Without it they go on with the address that they asked, through which all rows then pass.
    #[arg(long, value_parser = parse_flight_uri)]
    pub advertise_address: Option<String>,
    /// Endpoints that a pull is divided into at most.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pull_endpoints: u32,
    /// Print the settings that would be used, as a file with their origins, and exit. Secrets are not shown.
    #[arg(long)]
    pub print_config: bool,
    /// Listen where other machines can reach it, although nothing is encrypted or nobody is asked who they are.
    #[arg(long)]
    pub insecure: bool,
    /// Directory that keeps the history of batches, and stored pipelines; without it both end with the process.
    #[arg(long, env = "TRIBUTARY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Time that running batches have to finish when the server is told to stop; those that have not are cancelled.
    #[arg(long, visible_alias = "shutdown-timeout", default_value = "30s", value_parser = parse_span)]
    pub drain: Span,
    /// Batches that run at once; further ones wait, and pipelines take turns.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_batches: u32,
    /// Memory that the limits of all running batches may add up to, `8GiB`; no limit when absent. A batch that needs more
    /// by itself runs alone.
    #[arg(long, value_parser = parse_size)]
    pub memory: Option<ByteSize>,
    /// What it lets in.
    #[command(flatten)]
    pub security: ServeSecurity,
    /// Events of lineage.
    #[command(flatten)]
    pub lineage: LineageArgs,
}

/// Which server to ask.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// Address of the server, `http://HOST:PORT`.
    #[arg(long, env = "TRIBUTARY_SERVER", default_value = "http://127.0.0.1:7373")]
    pub server: String,
}

/// What to do with the batches of a server.
#[derive(Debug, Subcommand)]
pub enum BatchesCommand {
    /// List the newest batches, newest first.
    #[command(
        after_help = "Examples:\n  tributary batches list\n  tributary batches list --pipeline orders --limit 100 --output json"
    )]
    List {
        /// Which server to ask.
        #[command(flatten)]
        server: ServerArgs,
        /// Only batches of this pipeline.
        #[arg(long)]
        pipeline: Option<String>,
        /// Batches to list at most.
        #[arg(long, default_value_t = 20)]
        limit: usize,
        /// How they are printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Show one batch.
    #[command(after_help = "Examples:\n  tributary batches get orders/REQUEST-ID")]
    Get {
        /// Name of the batch, `<pipeline>/<request id>`.
        name: String,
        /// Which server to ask.
        #[command(flatten)]
        server: ServerArgs,
        /// How it is printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Follow one batch to its end; exits as `run` does.
    #[command(after_help = "Examples:\n  tributary batches watch orders/REQUEST-ID")]
    Watch {
        /// Name of the batch, `<pipeline>/<request id>`.
        name: String,
        /// Which server to ask.
        #[command(flatten)]
        server: ServerArgs,
        /// How it is printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Cancel one batch that has not begun its commit, and wait for its end: exits with 0 when it was cancelled, with 1
    /// when it had ended or went on to its commit. Its `run` and `watch` exit with 4.
    #[command(after_help = "Examples:\n  tributary batches cancel orders/REQUEST-ID")]
    Cancel {
        /// Name of the batch, `<pipeline>/<request id>`.
        name: String,
        /// Which server to ask.
        #[command(flatten)]
        server: ServerArgs,
        /// How it is printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Print or save the rows that a committed batch changed, fetched over Arrow Flight.
    #[command(
        after_help = "Examples:\n  tributary batches pull orders/REQUEST-ID --to rows.arrow\n  tributary batches pull orders/REQUEST-ID --output json"
    )]
    Pull(PullArgs),
}

/// Arguments of `batches pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// Name of the batch, `<pipeline>/<request id>`.
    pub name: String,
    /// Which server to ask.
    #[command(flatten)]
    pub server: ServerArgs,
    /// File to write the rows to, as Arrow IPC: `rows.arrow`. Printed when absent.
    #[arg(long)]
    pub to: Option<PathBuf>,
    /// Rows to print at most; all when absent.
    #[arg(long, conflicts_with = "to")]
    pub limit: Option<usize>,
    /// How rows are printed.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

fn parse_size(text: &str) -> Result<ByteSize, String> {
    text.parse()
}

fn parse_store_timeout(text: &str) -> Result<Span, String> {
    match parse_span(text)? {
        span if span.0.is_zero() => Err("a request that may take no time cannot succeed".to_string()),
        span => Ok(span),
    }
}

fn parse_span(text: &str) -> Result<Span, String> {
    text.parse()
}

fn parse_flight_uri(text: &str) -> Result<String, String> {
    let rest = ["grpc://", "grpc+tcp://", "grpc+tls://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let port = rest.and_then(|rest| rest.rsplit_once(':')).filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    match port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0)) {
        true => Ok(text.to_string()),
        false => Err("write it as grpc://HOST:PORT, or grpc+tls://HOST:PORT where that is encrypted".to_string()),
    }
}

/// Runs the command line; the exit code is the process's.
pub fn main(cli: Cli) -> ExitCode {
    run(cli, Transforms::new())
}

/// The `main` of a program that has steps in Rust of its own, which pipelines name as `rust = "name"`: it takes the same
/// arguments as `tributary`.
pub fn main_with(transforms: Transforms) -> ExitCode {
    run(Cli::parse(), transforms)
}

fn run(cli: Cli, transforms: Transforms) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime does not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let settings = StoreSettings { timeout: cli.store_timeout.0 };
    let stores: Arc<dyn Stores> = Arc::new(SystemStores::with_settings(settings));
    let client = cli.security;
    let result = runtime.block_on(async {
        let telemetry = Telemetry::start(&cli.telemetry, cli.command.name())
            .map_err(|message| commands::Failed { message, exit_code: 2 })?;
        let dial = security::client(&client, |name| std::env::var(name).ok());
        let dial = dial.map_err(|message| commands::Failed { message, exit_code: 2 })?;
        let result = match cli.command {
            Command::Run(args) => commands::run::run(args, stores, transforms, &dial).await,
            Command::Plan(args) => commands::plan::plan(args, stores, transforms, &dial).await,
            Command::Table(command) => commands::table::table(command, stores).await,
            Command::Serve(args) => commands::serve::serve(args, &client, stores, transforms).await,
            Command::Pipelines(command) => commands::pipelines::pipelines(command, &dial).await,
            Command::Batches(command) => commands::batches::batches(command, &dial).await,
            Command::Cursors(command) => commands::cursors::cursors(command, stores, &dial).await,
            Command::Bench(args) => commands::bench::bench(args, stores).await,
            Command::Completion { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "tributary", &mut script);
                // Whoever reads only a part of it closes the pipe.
                Ok(u8::from(std::io::stdout().write_all(&script).is_err()))
            }
        };
        telemetry.finish().await;
        result
    });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failed) => {
            eprintln!("error: {}", failed.message);
            ExitCode::from(failed.exit_code)
        }
    }
}
