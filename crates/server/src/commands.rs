// SPDX-License-Identifier: Apache-2.0
//! The commands of the binary.

pub mod batches;
pub mod bench;
pub mod cursors;
pub mod pipelines;
pub mod plan;
pub mod run;
pub mod serve;
pub mod table;

use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;

use tributary_api::BatchObserver;
use tributary_api::coordinator::{self, Coordinator};
use tributary_api::transform::Transforms;
use tributary_hudi::Stores;
use tributary_rpc::{CoordinatorClient, Dial, Link};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Override, SystemClock, SystemEntropy, with_causes};

use crate::cli::{JobArgs, OverrideArgs};
use crate::embedded::{Embedded, Settings, embed_observed, open_store_of};
use crate::news::ServerNews;
use crate::roles::{Parts, Role};
use crate::{pipeline_file, properties_file};

/// A command that could not do its work.
#[derive(Debug)]
pub struct Failed {
    /// What to print.
    pub message: String,
    /// What to exit with.
    pub exit_code: u8,
}

impl Failed {
    /// A failure whose message is the error with its causes.
    pub(crate) fn new(error: &(dyn StdError + 'static), exit_code: u8) -> Self {
        Failed { message: with_causes(error), exit_code }
    }
}

impl From<coordinator::Error> for Failed {
    fn from(error: coordinator::Error) -> Self {
        let mut message = error.failure().message;
        // Only a coordinator in another process can fail to answer.
        if matches!(error, coordinator::Error::Unreachable { .. }) {
            message.push_str(
                ". Is the server running? Start it with `tributary serve`, or correct --server; `tributary run` \
                 without --server needs none",
            );
        }
        Failed { message, exit_code: error.outcome().exit_code() }
    }
}

/// A pipeline, and the cursors that are to be set by hand.
pub(crate) struct Job {
    pub(crate) pipeline: Pipeline,
    pub(crate) overrides: Vec<Override>,
}

/// Loads a pipeline file, or a properties file of Hudi Streamer; a wrong one is a rejection. Its paths are made absolute:
/// where a process was started makes neither another pipeline nor other tables. What of a properties file is not used is
/// told on standard error.
pub(crate) fn load_job(args: &JobArgs, wanted: &OverrideArgs) -> Result<Job, Failed> {
    let refuse = |e: &dyn std::fmt::Display| Failed { message: e.to_string(), exit_code: 2 };
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut job = match (&args.pipeline, &args.props) {
        (_, Some(props)) => {
            let read = properties_file::load(&absolute(props), args).map_err(|e| refuse(&e))?;
            read.notes.iter().for_each(|note| eprintln!("{}: {note}", props.display()));
            Job { pipeline: read.pipeline, overrides: read.overrides }
        }
        (Some(path), None) => {
            let pipeline = pipeline_file::load(&absolute(path)).map_err(|e| refuse(&e))?;
            Job { pipeline, overrides: Vec::new() }
        }
        (None, None) => return Err(refuse(&"neither --pipeline nor --props is given")),
    };
    job.overrides = overrides_of(job.overrides, wanted)?;
    Ok(job)
}

/// Cursors that are to be set by hand: those of the job, and of the command line.
pub(crate) fn overrides_of(mut known: Vec<Override>, wanted: &OverrideArgs) -> Result<Vec<Override>, Failed> {
    let refuse = |e: &dyn std::fmt::Display| Failed { message: e.to_string(), exit_code: 2 };
    known.extend(wanted.overrides.iter().cloned());
    let Some(token) = &wanted.override_token else { return Ok(known) };
    if known.is_empty() {
        return Err(refuse(&"--override-token is given, and no --override that it could be the token of"));
    }
    let with_token = known.into_iter().map(|wanted| wanted.with_token(token));
    with_token.collect::<Result<_, _>>().map_err(|e| refuse(&e))
}

/// What roles are made of, over `stores` and the system's clock and randomness. Records are kept below `data`.
pub(crate) fn parts(data: Option<&Path>, stores: Arc<dyn Stores>) -> Result<Parts, Failed> {
    parts_of(data, Role::Checkpoint, stores)
}

/// The same of a process whose first role with a memory is `role`.
pub(crate) fn parts_of(data: Option<&Path>, role: Role, stores: Arc<dyn Stores>) -> Result<Parts, Failed> {
    Ok(Parts {
        stores,
        store: open_store_of(data, role).map_err(|e| Failed::new(&e, 1))?,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    })
}

/// The roles, embedded.
pub(crate) fn roles(data: Option<&Path>, stores: Arc<dyn Stores>) -> Result<Embedded, Failed> {
    roles_with(data, stores, Transforms::new(), None)
}

/// The same with steps in Rust, and with somebody who is told of the batches.
pub(crate) fn roles_with(
    data: Option<&Path>,
    stores: Arc<dyn Stores>,
    transforms: Transforms,
    observer: Option<Arc<dyn BatchObserver>>,
) -> Result<Embedded, Failed> {
    let Parts { stores, store, clock, entropy } = parts(data, stores)?;
    let settings = Settings { transforms, ..Settings::default() };
    Ok(embed_observed(stores, store, clock, entropy, settings, observer))
}

/// The coordinator of a command: on `server`, or embedded.
pub(crate) fn coordinator(
    server: Option<&str>,
    data: Option<&Path>,
    stores: Arc<dyn Stores>,
    dial: &Dial,
) -> Result<Arc<dyn Coordinator>, Failed> {
    match server {
        Some(address) => connect(address, dial),
        None => Ok(roles(data, stores)?.coordinator),
    }
}

/// The coordinator at `address`. Connects with the first call.
pub(crate) fn connect(address: &str, dial: &Dial) -> Result<Arc<dyn Coordinator>, Failed> {
    connect_with(address, dial, Arc::new(ServerNews::new(address)))
}

/// The same, telling `link` when a batch that is followed cannot be, and when it can again.
pub(crate) fn connect_with(address: &str, dial: &Dial, link: Arc<dyn Link>) -> Result<Arc<dyn Coordinator>, Failed> {
    let channel = tributary_rpc::connect_with(address, dial).map_err(|e| Failed::new(&e, 2))?;
    Ok(Arc::new(CoordinatorClient::new(channel, address).with_link(link)))
}

/// Waits until the process is asked to stop.
pub(crate) async fn stop_signal() {
    let mut terminate = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(terminate) => terminate,
        // Without the signal only an interrupt stops the process.
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
            return;
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
