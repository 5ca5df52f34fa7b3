// SPDX-License-Identifier: Apache-2.0
//! Whether the roles that this process calls elsewhere serve.
//!
//! Each is asked in the background for its gRPC health, at most one request at a time and each within a limit, and what
//! it said last is what `/readyz` tells.

use std::time::Duration;

use tokio::task::JoinHandle;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tributary_rpc::Channel;

use crate::http::Readiness;
use crate::roles::Role;
use crate::serve::{FLIGHT_SERVICE, service_of};

/// Pause between two questions to one role.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Time that an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A role elsewhere.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Which.
    pub role: Role,
    /// Where, `http://HOST:PORT`.
    pub address: String,
    /// A channel to it.
    pub channel: Channel,
}

/// Asks until it is dropped.
pub(crate) struct Probing(Vec<JoinHandle<()>>);

impl Probing {
    /// Every role counts as down until it answered once.
    pub(crate) fn start(peers: Vec<Peer>, readiness: Readiness) -> Self {
        for peer in &peers {
            readiness.set_peer(peer.role, &peer.address, Some(format!("{}: not asked yet", peer.address)));
        }
        Probing(peers.into_iter().map(|peer| tokio::spawn(probe(peer, readiness.clone()))).collect())
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

async fn probe(peer: Peer, readiness: Readiness) {
    loop {
        let problem = ask(&peer).await.map(|problem| format!("{}: {problem}", peer.address));
        readiness.set_peer(peer.role, &peer.address, problem);
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// What keeps the role from serving; `None`: nothing.
pub(crate) async fn ask(peer: &Peer) -> Option<String> {
    // The writer has no service of its own: it is served over Flight.
    let service = service_of(peer.role).unwrap_or(FLIGHT_SERVICE).to_string();
    let mut health = HealthClient::new(peer.channel.clone());
    let answer = tokio::time::timeout(ANSWER_WITHIN, health.check(HealthCheckRequest { service })).await;
    match answer {
        Err(_) => Some(format!("no answer within {ANSWER_WITHIN:?}")),
        Ok(Err(status)) => Some(tributary_types::with_causes(&status)),
        Ok(Ok(answer)) => {
            let serves = answer.into_inner().status == ServingStatus::Serving as i32;
            (!serves).then(|| "it is stopping".to_string())
        }
    }
}
