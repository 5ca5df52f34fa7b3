// SPDX-License-Identifier: Apache-2.0
//! Arguments about pipelines that a server keeps.

use clap::{Args, Subcommand};

use super::{JobArgs, Output, OverrideArgs, ServerArgs};

/// What to do with the pipelines that a server keeps.
#[derive(Debug, Subcommand)]
pub enum PipelinesCommand {
    /// Store a pipeline on a server, so that batches of it can be asked for by its name.
    #[command(
        after_help = "Examples:\n  tributary pipelines create --pipeline orders.toml\n  tributary pipelines create \
                            --pipeline orders.toml --dry-run --output json"
    )]
    Create {
        /// Which pipeline.
        #[command(flatten)]
        job: JobArgs,
        /// How it is changed.
        #[command(flatten)]
        how: ChangeArgs,
    },
    /// Replace the definition of a stored pipeline. Batches that were asked for before keep the one they had.
    #[command(
        after_help = "Examples:\n  tributary pipelines update --pipeline orders.toml\n  tributary pipelines update \
                            --pipeline orders.toml --allow-missing\n  tributary pipelines update --pipeline orders.toml \
                            --etag 19a2c-19a2c-1"
    )]
    Update {
        /// Which pipeline.
        #[command(flatten)]
        job: JobArgs,
        /// Create it if it is not stored yet.
        #[arg(long, conflicts_with = "etag")]
        allow_missing: bool,
        /// Change it only if it has this etag still.
        #[arg(long)]
        etag: Option<String>,
        /// How it is changed.
        #[command(flatten)]
        how: ChangeArgs,
    },
    /// Show a stored pipeline.
    #[command(
        after_help = "Examples:\n  tributary pipelines get orders\n  tributary pipelines get orders --output json"
    )]
    Get {
        /// Its name.
        name: String,
        /// Which server to ask.
        #[command(flatten)]
        server: ServerArgs,
        /// How it is printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// List the stored pipelines, in the order of their names.
    #[command(after_help = "Examples:\n  tributary pipelines list\n  tributary pipelines list --server \
                            http://tributary:7373 --output json")]
    List {
        /// Which server to ask.
        #[command(flatten)]
        server: ServerArgs,
        /// Pipelines to list at most; all when absent.
        #[arg(long)]
        limit: Option<usize>,
        /// How they are printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Forget a stored pipeline. Its target with all cursors stays, and so do its batches.
    #[command(after_help = "Examples:\n  tributary pipelines delete orders\n  tributary pipelines delete orders \
                            --allow-missing")]
    Delete {
        /// Its name.
        name: String,
        /// That it is not there is no error.
        #[arg(long)]
        allow_missing: bool,
        /// Delete it only if it has this etag still.
        #[arg(long)]
        etag: Option<String>,
        /// How it is changed.
        #[command(flatten)]
        how: ChangeArgs,
    },
    /// Let a stored pipeline start no batch until it is resumed. One that runs goes on.
    #[command(after_help = "Examples:\n  tributary pipelines pause orders")]
    Pause(PauseArgs),
    /// Let a stored pipeline start batches again.
    #[command(after_help = "Examples:\n  tributary pipelines resume orders")]
    Resume(PauseArgs),
    /// Run one batch of a stored pipeline and follow it to its end; exits as `run` does.
    #[command(
        after_help = "Examples:\n  tributary pipelines run orders\n  tributary pipelines run orders --request-id \
                            nightly-2025-06-06\n  tributary pipelines run orders --override users=snapshot"
    )]
    Run {
        /// Its name.
        name: String,
        /// Cursors that are set by hand.
        #[command(flatten)]
        overrides: OverrideArgs,
        /// Id of the request: the same id again answers with the same batch. Made up when absent.
        #[arg(long)]
        request_id: Option<String>,
        /// Commit even if no source has news.
        #[arg(long)]
        allow_empty: bool,
        /// Which server to ask.
        #[command(flatten)]
        server: ServerArgs,
        /// How the result is printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
}

/// How a stored pipeline is changed.
#[derive(Debug, Clone, Args)]
pub struct ChangeArgs {
    /// Only check, and show what would be stored.
    #[arg(long)]
    pub dry_run: bool,
    /// Id of the request: the same id again has the same answer, so that asking again after a lost reply is safe.
    #[arg(long)]
    pub request_id: Option<String>,
    /// Which server to ask.
    #[command(flatten)]
    pub server: ServerArgs,
    /// How the result is printed.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// Arguments of `pipelines pause` and `resume`.
#[derive(Debug, Clone, Args)]
pub struct PauseArgs {
    /// Its name.
    pub name: String,
    /// Change it only if it has this etag still.
    #[arg(long)]
    pub etag: Option<String>,
    /// Id of the request: the same id again has the same answer.
    #[arg(long)]
    pub request_id: Option<String>,
    /// Which server to ask.
    #[command(flatten)]
    pub server: ServerArgs,
    /// How the result is printed.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}
