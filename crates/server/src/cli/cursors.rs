// SPDX-License-Identifier: Apache-2.0
//! Arguments about cursors, and about the job whose cursors they are.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tributary_types::{Override, SourceName};

use super::Output;

/// Which pipeline.
#[derive(Debug, Clone, Default, Args)]
pub struct JobArgs {
    /// The pipeline file.
    #[arg(long, short, required_unless_present = "props", conflicts_with = "props")]
    pub pipeline: Option<PathBuf>,
    /// A properties file of Hudi Streamer instead of a pipeline file; see docs/migration.md.
    #[arg(long)]
    pub props: Option<PathBuf>,
    /// A property, `KEY=VALUE`, in place of the file's; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", requires = "props", conflicts_with = "pipeline")]
    pub hoodie_conf: Vec<String>,
    /// With --props: base path or URL of the target, as Hudi Streamer takes it.
    #[arg(long, requires = "props", conflicts_with = "pipeline")]
    pub target_base_path: Option<String>,
    /// With --props: name of the target.
    #[arg(long, requires = "props", conflicts_with = "pipeline")]
    pub target_table: Option<String>,
    /// With --props: COPY_ON_WRITE or MERGE_ON_READ.
    #[arg(long, requires = "props", conflicts_with = "pipeline")]
    pub table_type: Option<String>,
    /// With --props: how rows enter the target, such as UPSERT.
    #[arg(long, requires = "props", conflicts_with = "pipeline")]
    pub op: Option<String>,
    /// With --props: columns of which the greatest value wins.
    #[arg(long, requires = "props", conflicts_with = "pipeline", alias = "source-ordering-fields")]
    pub source_ordering_field: Option<String>,
    /// With --props: the source's class.
    #[arg(long, requires = "props", conflicts_with = "pipeline")]
    pub source_class: Option<String>,
    /// With --props: classes of the transformers, in order.
    #[arg(long, requires = "props", conflicts_with = "pipeline")]
    pub transformer_class: Option<String>,
    /// With --props: as `--override`, for a job of one source; of files a modification time, of a topic
    /// `TOPIC,PARTITION:OFFSET,…`.
    #[arg(long, requires = "props", conflicts_with = "pipeline")]
    pub checkpoint: Option<String>,
    /// With --props: what provides the schema of files and messages, FilebasedSchemaProvider.
    #[arg(long, requires = "props", conflicts_with = "pipeline")]
    pub schemaprovider_class: Option<String>,
    /// With --props: what one batch reads at most: bytes of files, messages of a topic.
    #[arg(long, requires = "props", conflicts_with = "pipeline")]
    pub source_limit: Option<u64>,
}

/// Cursors that a batch sets by hand.
#[derive(Debug, Clone, Default, Args)]
pub struct OverrideArgs {
    /// Begin a source there instead of at its cursor, once: `orders=requested:20250606182826197`, `users=completed:…`,
    /// `clicks=file:…`, `orders=latest`, `earliest`, `snapshot`, or `start` (where the pipeline says). A later run with the
    /// same argument finds that it was applied. May be given for several sources; the others keep their cursors.
    #[arg(long = "override", value_name = "SOURCE=PLACE", value_parser = parse_override)]
    pub overrides: Vec<Override>,
    /// Makes these overrides other ones than those applied before, so that the same places can be set once more.
    #[arg(long, value_name = "TOKEN")]
    pub override_token: Option<String>,
}

/// What to do with the cursors of a pipeline.
#[derive(Debug, Subcommand)]
pub enum CursorsCommand {
    /// Show the cursors in the target's newest commit.
    #[command(
        after_help = "Examples:\n  tributary cursors get --pipeline orders.toml\n  tributary cursors get --pipeline orders.toml --output json"
    )]
    Get {
        /// Which pipeline.
        #[command(flatten)]
        job: JobArgs,
        /// Ask this server, `http://HOST:PORT`; the target is read by this process when absent.
        #[arg(long)]
        server: Option<String>,
        /// How they are printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Set cursors, in a commit of their own without rows; the next batch goes on from there.
    #[command(
        after_help = "Examples:\n  tributary cursors set orders=requested:20250606182826197 --pipeline orders.toml --dry-run"
    )]
    Set {
        /// `SOURCE=PLACE`, as `run --override` takes it.
        #[arg(required = true, value_parser = parse_override)]
        cursors: Vec<Override>,
        /// How it is done.
        #[command(flatten)]
        how: SetArgs,
    },
    /// Set cursors back to where the pipeline's `start` says.
    #[command(after_help = "Examples:\n  tributary cursors reset orders --pipeline orders.toml")]
    Reset {
        /// The sources.
        #[arg(required = true, value_parser = parse_source)]
        sources: Vec<SourceName>,
        /// How it is done.
        #[command(flatten)]
        how: SetArgs,
    },
    /// Show what the last batches did to the cursors, newest first.
    #[command(
        after_help = "Examples:\n  tributary cursors history --pipeline orders.toml --server http://127.0.0.1:7373"
    )]
    History {
        /// Which pipeline.
        #[command(flatten)]
        job: JobArgs,
        /// Ask this server, `http://HOST:PORT`.
        #[arg(long)]
        server: Option<String>,
        /// Directory that keeps the history, without a server.
        #[arg(long, env = "TRIBUTARY_DATA_DIR")]
        data_dir: Option<PathBuf>,
        /// Batches to show at most.
        #[arg(long, default_value_t = 20)]
        limit: usize,
        /// How they are printed.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
}

/// How cursors are set.
#[derive(Debug, Clone, Args)]
pub struct SetArgs {
    /// Which pipeline.
    #[command(flatten)]
    pub job: JobArgs,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// Id of the request: the same id again answers with the same batch. Made up when absent.
    #[arg(long)]
    pub request_id: Option<String>,
    /// Let this server do it, `http://HOST:PORT`.
    #[arg(long)]
    pub server: Option<String>,
    /// Directory that keeps the history of batches, without a server.
    #[arg(long, env = "TRIBUTARY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

fn parse_override(text: &str) -> Result<Override, String> {
    text.parse().map_err(|error: tributary_types::OverrideError| error.to_string())
}

fn parse_source(text: &str) -> Result<SourceName, String> {
    SourceName::new(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::{Cli, Command};

    fn overrides(arguments: &[&str]) -> Result<Vec<String>, String> {
        let parsed = Cli::try_parse_from([&["tributary", "run", "--pipeline", "p.toml"], arguments].concat());
        match parsed.map_err(|error| error.to_string())?.command {
            Command::Run(args) => Ok(args.overrides.overrides.iter().map(ToString::to_string).collect()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_flag_is_one_override_and_a_wrong_one_says_what_would_be_right() {
        let both = ["--override", "orders=requested:20250606182826197", "--override", "clicks=file:name:-:a=b,c.csv"];
        assert_eq!(overrides(&both).unwrap(), [both[1], both[3]]);
        let refused = overrides(&["--override", "orders=newest"]).unwrap_err();
        assert!(refused.contains("`newest` is no place") && refused.contains("`start`"), "{refused}");
    }

    #[test]
    fn a_job_is_a_pipeline_file_or_a_properties_file() {
        let parse = |arguments: &[&str]| Cli::try_parse_from([&["tributary", "run"], arguments].concat());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--pipeline", "p.toml", "--props", "p.properties"]).is_err());
        assert!(parse(&["--pipeline", "p.toml", "--target-table", "t"]).is_err());
        assert!(parse(&["--props", "p.properties", "--target-table", "t", "--op", "UPSERT"]).is_ok());
    }
}
