// SPDX-License-Identifier: Apache-2.0
//! Object stores that do not answer: one clear error, after a limited time.

use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::process::{self, ended};
use crate::support::{Lake, value_table};

/// What does not answer.
enum Endpoint {
    /// Nobody listens at the port.
    Closed,
    /// Connections are accepted, and nothing is ever said.
    Silent(#[expect(dead_code, reason = "it listens as long as it lives")] TcpListener),
}

impl Endpoint {
    fn silent() -> (Endpoint, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        (Endpoint::Silent(listener), url)
    }

    fn closed() -> (Endpoint, String) {
        let (_, url) = Endpoint::silent();
        (Endpoint::Closed, url)
    }
}

/// `tributary` with an S3 store at `endpoint`, which it gives up after seconds.
fn with_store(endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = process::command(arguments);
    let settings = [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("TRIBUTARY_STORE_TIMEOUT", "1s"),
    ];
    command.envs(settings);
    command
}

/// A pipeline from one place to another.
async fn pipeline(lake: &Lake, source: &str, target: &str) -> String {
    let roles = crate::support::roles();
    let table = value_table(&roles, &lake.path("src")).await;
    table.upsert(vec![crate::support::values([("k".to_string(), 1)])]).await.unwrap();
    let file = lake.path("p.toml");
    let text = format!(
        "name = \"p\"\n[[source]]\nname = \"src\"\npath = \"{source}\"\nstart = \"snapshot\"\n[target]\npath = \
         \"{target}\"\ntable_name = \"out\"\nrecord_key = [\"id\"]\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}

/// What a run says whose source or target lies in a store at `endpoint`.
fn failed_run(endpoint: &str, file: &str, url: &str, doing: &str) {
    let run = ended(with_store(endpoint, &["run", "--pipeline", file, "--output", "json"]));
    assert_eq!(run.code, 1, "{run:?}");
    let answer: Value = serde_json::from_str(run.stdout.trim()).unwrap();
    assert_eq!(answer["outcome"], "FAILED", "{run:?}");
    assert_eq!((&answer["error"]["reason"], &answer["error"]["retry"]), (&"STORE_UNAVAILABLE".into(), &"Again".into()));
    let message = answer["error"]["message"].as_str().unwrap();
    for part in [format!("the store of `{url}`").as_str(), doing, "then run again", endpoint] {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
    assert_eq!(message.matches("the store").count(), 1, "said once: {message}");
    assert_eq!(message.matches(doing).count(), 1, "said once: {message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_or_target_whose_store_does_not_answer_fails_the_batch_with_one_clear_error() {
    for make in [Endpoint::closed, Endpoint::silent] {
        let (_endpoint, url) = make();
        let lake = Lake::new();
        let file = pipeline(&lake, "s3://bucket/src", "out").await;
        failed_run(&url, &file, "s3://bucket/src", "reading `.hoodie/hoodie.properties`");
        let file = pipeline(&lake, "src", "s3://bucket/out").await;
        failed_run(&url, &file, "s3://bucket/out", "taking the target's lock");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_at_a_table_whose_store_does_not_answer_says_which_and_what_to_do() {
    let (_endpoint, url) = Endpoint::closed();
    for arguments in [["table", "inspect", "s3://bucket/t"], ["table", "read", "s3://bucket/t"]] {
        let look = ended(with_store(&url, &arguments));
        assert_eq!(look.code, 1, "{look:?}");
        for part in ["error: the store of `s3://bucket/t` failed while reading", "then run again", url.as_str()] {
            assert!(look.stderr.contains(part), "`{part}` is missing in: {}", look.stderr);
        }
    }
}

#[test]
fn a_time_limit_of_nothing_is_refused() {
    let refused = process::tributary(&["--store-timeout", "0s", "table", "inspect", "/t"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("cannot succeed"), "{refused:?}");
}
