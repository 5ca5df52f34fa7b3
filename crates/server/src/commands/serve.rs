// SPDX-License-Identifier: Apache-2.0
//! `tributary serve`: the roles behind a port.

use std::net::SocketAddr;
use std::sync::Arc;

use tributary_api::timeline::Timeline;
use tributary_api::transform::Transforms;
use tributary_hudi::Stores;
use tributary_rpc::{
    Channel, CheckpointClient, Dial, MergeClient, PullSettings, TimelineClient, WriterClient, connect_with,
};
use tributary_types::pipeline::Span;
use tributary_types::{SystemClock, SystemEntropy};

use crate::cli::ServeArgs;
use crate::commands::{Failed, parts_of, stop_signal};
use crate::embedded::Settings;
use crate::lineage::Lineage;
use crate::peers::Peer;
use crate::replicas::{self, WriterReplica};
use crate::roles::{Elsewhere, Hosted, Role, host};
use crate::security::{self, ClientSecurity, FencedStores, Plan, Security};
use crate::serve::{self, Options, PullOptions, Server};
use crate::telemetry;

/// Runs the command; answers the exit code.
pub async fn serve(
    args: ServeArgs,
    client: &ClientSecurity,
    stores: Arc<dyn Stores>,
    transforms: Transforms,
) -> Result<u8, Failed> {
    let (hosted, options, security) = prepare(&args, client, stores, transforms).await?;
    let lineage = Lineage::start(&args.lineage)?;
    if let Some(lineage) = &lineage {
        hosted.observe(lineage.observer());
    }
    let starting = hosted.clone();
    let mut server = serve::start_secured(hosted, options, security).await.map_err(|e| Failed::new(&e, 1))?;
    println!("listening on {}", server.address());
    if let Some(address) = server.http_address() {
        println!("http on {address}");
    }
    // Beside serving: a target that does not answer must not keep the server from the others.
    tokio::spawn(async move {
        for said in starting.start_up().await {
            eprintln!("start-up: {said}");
        }
    });
    tokio::select! {
        () = stop_signal() => {}
        message = server.ended() => return Err(Failed { message, exit_code: 1 }),
    }
    let stopped = stop(server, args.drain).await;
    if let Some(lineage) = lineage {
        lineage.finish().await;
    }
    stopped
}

/// The roles, and where to serve them.
async fn prepare(
    args: &ServeArgs,
    client: &ClientSecurity,
    stores: Arc<dyn Stores>,
    transforms: Transforms,
) -> Result<(Hosted, Options, Security), Failed> {
    let listen = resolve("--listen", &args.listen).await?;
    let http = match &args.http_listen {
        Some(address) => Some(resolve("--http-listen", address).await?),
        None => None,
    };
    let advertise = args.advertise_address.as_deref();
    let plan = Plan { listen, http, roles: &args.roles, insecure: args.insecure, advertise };
    let (clock, environment) = (Arc::new(SystemClock), |name: &str| std::env::var(name).ok());
    let secured = security::server(client, &args.security, &plan, clock, &SystemEntropy, environment);
    let secured = secured.map_err(|message| Failed { message, exit_code: 2 })?;
    let metrics = telemetry::record_metrics();
    let (elsewhere, peers) = elsewhere(args, &secured.dial)?;
    let remembers = [Role::Checkpoint, Role::Coordinator].into_iter().find(|role| args.roles.contains(role));
    if remembers.is_some() && args.data_dir.is_none() {
        tracing::warn!("no --data-dir is given: the history of batches and stored pipelines end with this process");
    }
    let directory = args.data_dir.as_deref().filter(|_| remembers.is_some());
    let parts =
        parts_of(directory, remembers.unwrap_or(Role::Checkpoint), FencedStores::around(stores, secured.prefixes))?;
    let mut settings = Settings { transforms, ..Settings::default() };
    settings.coordinator.batches_at_once = args.max_batches as usize;
    settings.coordinator.memory = args.memory.map(|memory| memory.0);
    let hosted = host(&args.roles, &elsewhere, &parts, settings).map_err(|e| Failed::new(&e, 2))?;
    let settings = PullSettings {
        tickets_valid: args.security.ticket_lifetime.0,
        endpoints: args.pull_endpoints as usize,
        ..PullSettings::default()
    };
    let pulls = PullOptions { advertise: args.advertise_address.clone(), settings };
    Ok((hosted, Options { listen, http, metrics, peers, pulls }, secured.security))
}

/// Stops a server that was told to; answers the exit code.
async fn stop(server: Server, drain: Span) -> Result<u8, Failed> {
    eprintln!("stopping: running batches have {drain} to finish; a second signal stops at once");
    let stopped = tokio::select! {
        stopped = server.stop(drain.0) => stopped,
        () = stop_signal() => return Err(Failed { message: "stopped at once".to_string(), exit_code: 1 }),
    };
    if stopped.unfinished.is_empty() {
        return Ok(0);
    }
    let names: Vec<String> = stopped.unfinished.iter().map(ToString::to_string).collect();
    Err(Failed {
        message: format!(
            "stopped while {} still ran: no cursor of it moved; the next batch of the pipeline starts over",
            names.join(", ")
        ),
        exit_code: 1,
    })
}

/// Adapters over the addresses that are given, and whom to ask whether they serve. One for a role that runs here would
/// never be called.
fn elsewhere(args: &ServeArgs, dial: &Dial) -> Result<(Elsewhere, Vec<Peer>), Failed> {
    let mut peers = Vec::new();
    let mut channel = |role: Role, address: &Option<String>| -> Result<Option<(Channel, String)>, Failed> {
        let Some(address) = address else { return Ok(None) };
        if args.roles.contains(&role) {
            let name = role.as_str();
            let message = format!("the role `{name}` runs here: leave it out of --roles, or drop --{name}-address");
            return Err(Failed { message, exit_code: 2 });
        }
        let channel = connect_with(address, dial).map_err(|e| Failed::new(&e, 2))?;
        peers.push(Peer { role, address: address.clone(), channel: channel.clone() });
        Ok(Some((channel, format!("the {} role, {address}", role.as_str()))))
    };
    let mut elsewhere = Elsewhere::default();
    let mut timelines = Vec::new();
    for address in &args.timeline_address {
        if let Some((channel, at)) = channel(Role::Timeline, &Some(address.clone()))? {
            timelines.push(Arc::new(TimelineClient::new(channel, at)) as Arc<dyn Timeline>);
        }
    }
    elsewhere.timeline = replicas::timelines(timelines);
    let mut writers = Vec::new();
    for address in &args.writer_address {
        if let Some((channel, at)) = channel(Role::Writer, &Some(address.clone()))? {
            let peer = Some(Peer { role: Role::Writer, address: address.clone(), channel: channel.clone() });
            writers.push(Arc::new(WriterReplica { writer: Arc::new(WriterClient::new(channel, at)), peer }));
        }
    }
    elsewhere.writer = replicas::writers(writers);
    if let Some((channel, at)) = channel(Role::Sources, &args.sources_address)? {
        elsewhere.sources = Some(Arc::new(TimelineClient::new(channel, at)));
    }
    if let Some((channel, at)) = channel(Role::Checkpoint, &args.checkpoint_address)? {
        elsewhere.checkpoints = Some(Arc::new(CheckpointClient::new(channel, at)));
    }
    if let Some((channel, at)) = channel(Role::Merge, &args.merge_address)? {
        elsewhere.merge = Some(Arc::new(MergeClient::new(channel, at)));
    }
    Ok((elsewhere, peers))
}

async fn resolve(option: &str, address: &str) -> Result<SocketAddr, Failed> {
    let fail = |what: String| Failed {
        message: format!("{option} {address}: {what}; write it as HOST:PORT, for example 127.0.0.1:7373"),
        exit_code: 2,
    };
    let mut found = tokio::net::lookup_host(address).await.map_err(|e| fail(e.to_string()))?;
    found.next().ok_or_else(|| fail("the host has no address".to_string()))
}
