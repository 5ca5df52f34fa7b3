// SPDX-License-Identifier: Apache-2.0
//! `tributary serve`: the roles behind a port.

use std::net::SocketAddr;

use crate::cli::ServeArgs;
use crate::commands::{Failed, roles, stop_signal};
use crate::serve::{self, Options};
use crate::telemetry;

/// Runs the command; answers the exit code.
pub async fn serve(args: ServeArgs) -> Result<u8, Failed> {
    let listen = resolve("--listen", &args.listen).await?;
    if !listen.ip().is_loopback() && !args.insecure {
        return Err(Failed {
            message: format!(
                "--listen {}: other machines can reach this address, and the server neither encrypts nor asks who \
                 calls, so anybody there could read and write every table it can. Listen on 127.0.0.1, or add \
                 --insecure if the network in front of it takes care of that",
                args.listen
            ),
            exit_code: 2,
        });
    }
    let http = match &args.http_listen {
        Some(address) => Some(resolve("--http-listen", address).await?),
        None => None,
    };
    let metrics = telemetry::record_metrics();
    let roles = roles(args.data_dir.as_deref())?;
    if args.data_dir.is_none() {
        tracing::warn!("no --data-dir is given: the history of batches ends with this process");
    }
    let options = Options { listen, http, metrics };
    let mut server = serve::start(roles.coordinator, options).await.map_err(|e| Failed::new(&e, 1))?;
    println!("listening on {}", server.address());
    if let Some(address) = server.http_address() {
        println!("http on {address}");
    }
    tokio::select! {
        () = stop_signal() => {}
        message = server.ended() => return Err(Failed { message, exit_code: 1 }),
    }
    eprintln!("stopping: running batches have {} to finish; a second signal stops at once", args.drain);
    let stopped = tokio::select! {
        stopped = server.stop(args.drain.0) => stopped?,
        () = stop_signal() => return Err(Failed { message: "stopped at once".to_string(), exit_code: 1 }),
    };
    if stopped.unfinished.is_empty() {
        return Ok(0);
    }
    let names: Vec<String> = stopped.unfinished.iter().map(ToString::to_string).collect();
    Err(Failed {
        message: format!(
            "stopped while {} still ran: no cursor moved; the next batch of the pipeline starts over",
            names.join(", ")
        ),
        exit_code: 1,
    })
}

async fn resolve(option: &str, address: &str) -> Result<SocketAddr, Failed> {
    let fail = |what: String| Failed {
        message: format!("{option} {address}: {what}; write it as HOST:PORT, for example 127.0.0.1:7373"),
        exit_code: 2,
    };
    let mut found = tokio::net::lookup_host(address).await.map_err(|e| fail(e.to_string()))?;
    found.next().ok_or_else(|| fail("the host has no address".to_string()))
}
