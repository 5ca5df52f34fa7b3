// SPDX-License-Identifier: Apache-2.0
//! A server while a heavy query computes: it answers, and what comes after a query that was given up is not held up.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use tributary_api::coordinator::Coordinator;
use tributary_types::{BatchName, Outcome, Stage};

use crate::process::Process;
use crate::server_away::{endless, pipeline_file, until_it_merges};
use crate::support::{Lake, request_of};

/// What an HTTP probe answers.
pub(crate) fn probe(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_answers_while_a_query_computes_and_a_cancelled_one_holds_up_no_other_pipeline() {
    let lake = Lake::new();
    let heavy = endless(&lake).await;
    let light = pipeline_file(&lake, "light", "");
    let load = |file: &str| tributary_server::pipeline_file::load(Path::new(file)).unwrap();
    let server = Process::start(&["--http-listen", "127.0.0.1:0"]);
    let http = server.http.clone().unwrap();

    // As many as there are processors and more, so that no thread of theirs is left.
    let heavies: Vec<BatchName> = (0..3).map(|n| BatchName::new(format!("heavy{n}/r")).unwrap()).collect();
    let coordinator =
        tributary_rpc::CoordinatorClient::new(tributary_rpc::connect_lazily(&server.url).unwrap(), server.url.clone());
    for (n, name) in heavies.iter().enumerate() {
        let mut pipeline = load(&heavy);
        pipeline.name = tributary_types::PipelineName::new(format!("heavy{n}")).unwrap();
        pipeline.target.path = lake.path(&format!("heavy{n}"));
        assert_eq!(&coordinator.run_batch(request_of(&pipeline, "r")).await.unwrap().name, name);
    }
    until_it_merges(&server).await;
    for name in &heavies {
        while coordinator.get_batch(name).await.unwrap().stage != Stage::Merge {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    assert_eq!(coordinator.list_batches(None, 10).await.unwrap().len(), 3);
    for path in ["/livez", "/readyz", "/metrics"] {
        let answer = probe(&http, path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let planned = coordinator.plan_batch(load(&light), Vec::new()).await.unwrap();
    assert!(planned.has_news);
    for name in &heavies {
        let status = coordinator.get_batch(name).await.unwrap();
        assert_eq!((status.outcome, status.stage), (None, Stage::Merge), "all of that while it computed");
    }

    for name in &heavies {
        coordinator.cancel_batch(name).await.unwrap();
        let mut watch = coordinator.watch_batch(name).await.unwrap();
        let ended = watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone();
        assert_eq!(ended.outcome, Some(Outcome::Cancelled), "{:?}", ended.error);
    }
    let started = coordinator.run_batch(request_of(&load(&light), "r")).await.unwrap();
    let mut watch = coordinator.watch_batch(&started.name).await.unwrap();
    let ended = watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone();
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
}
