// SPDX-License-Identifier: Apache-2.0
//! How far a run elsewhere is, as its caller hears it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Notify;
use tonic::service::Routes;
use tributary_api::merge::{Bound, CheckRequest, Checked, Error, Merge, MergeRequest, Merged};
use tributary_api::{Progress, SourceRead};
use tributary_types::{MemoryBudget, SourceName};

use super::tests::{merged, request};
use super::{MergeClient, MergeServer};
use crate::testing::connect;

/// Reads a little, and the rest once it is let.
#[derive(Default)]
struct Held(Arc<Notify>);

fn read(source: &str, rows: u64, bytes: u64) -> SourceRead {
    SourceRead { source: SourceName::new(source).unwrap(), rows, bytes }
}

#[async_trait]
impl Merge for Held {
    async fn bind(&self, _: Option<String>, _: Vec<SourceName>) -> Result<Vec<Bound>, Error> {
        Ok(Vec::new())
    }

    async fn check(&self, _: CheckRequest) -> Result<Checked, Error> {
        Err(Error::Stopped)
    }

    async fn run(&self, request: MergeRequest) -> Result<Merged, Error> {
        let sources = ["a", "b"].map(|name| SourceName::new(name).unwrap());
        let counters = request.limits.progress.begin(&sources);
        counters[0].add(1, 100);
        self.0.notified().await;
        counters[1].add(2, 200);
        Ok(merged())
    }
}

#[tokio::test]
async fn a_run_elsewhere_tells_how_far_it_is_while_it_runs_and_when_it_ended() {
    let held = Held::default();
    let let_go = Arc::clone(&held.0);
    let client = MergeClient::new(connect(Routes::new(MergeServer::new(Arc::new(held)))), "x");
    let request = request(None, &MemoryBudget::new(1 << 20));
    let progress: Progress = request.limits.progress.clone();
    let run = tokio::spawn(async move { client.run(request).await });
    while progress.reads() != [read("a", 1, 100), read("b", 0, 0)] {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let_go.notify_one();
    run.await.unwrap().unwrap();
    assert_eq!(progress.reads(), [read("a", 1, 100), read("b", 2, 200)]);
}
