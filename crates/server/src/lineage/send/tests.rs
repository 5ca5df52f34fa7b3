// SPDX-License-Identifier: Apache-2.0

use std::collections::HashMap;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpListener;

use super::*;

fn read(flag: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Receiver>, String> {
    let variables: HashMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
    Receiver::read(flag, &|name| variables.get(name).cloned())
}

#[test]
fn events_go_nowhere_unless_told_where() {
    assert!(read(None, &[]).unwrap().is_none());
    assert!(read(Some("/tmp/events"), &[("OPENLINEAGE_DISABLED", "true")]).unwrap().is_none());
    assert!(matches!(read(Some("events.ndjson"), &[]), Ok(Some(Receiver::File(_)))));
    for (flag, variables, expected) in [
        (Some("http://h:5000"), &[][..], "http://h:5000/api/v1/lineage"),
        (Some("https://h/lineage?x=1"), &[], "https://h/lineage?x=1"),
        (None, &[("OPENLINEAGE_URL", "http://h"), ("OPENLINEAGE_ENDPOINT", "in")], "http://h/in"),
    ] {
        let Some(Receiver::Http { url, .. }) = read(flag, variables).unwrap() else { panic!("{expected}") };
        assert_eq!(url.as_str(), expected);
    }
}

#[test]
fn a_wrong_address_is_refused_without_repeating_it() {
    for bad in ["ftp://me:secret@h/x", "http://me:secret@"] {
        let refused = read(Some(bad), &[]).err().unwrap();
        assert!(refused.contains("--lineage") && refused.contains("http://HOST:PORT"), "{refused}");
        assert!(!refused.contains("secret"), "{refused}");
    }
}

/// Delivers events to a receiver, with metrics of its own.
fn delivered(receiver: impl AsyncFnOnce() -> Receiver, events: &[&str]) -> PrometheusHandle {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            super::super::register();
            let (queue, waiting) = mpsc::channel(events.len());
            let sender = Sender::start(receiver().await, waiting);
            for event in events {
                queue.send((*event).to_string()).await.unwrap();
            }
            drop(queue);
            // All are delivered, or given up, once the queue is at its end.
            sender.task.await.unwrap();
        });
    });
    handle
}

fn counted(handle: &PrometheusHandle) -> (u64, u64) {
    let text = handle.render();
    let value = |series: &str| text.lines().find_map(|line| line.strip_prefix(series)).unwrap().trim().parse().unwrap();
    (value("tributary_lineage_sent_events_total "), value("tributary_lineage_dropped_events_total{why=\"receiver\"} "))
}

#[test]
fn a_file_gets_one_event_a_line_in_order_after_what_is_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("events");
    std::fs::write(&file, "{\"n\":0}\n").unwrap();
    let receiver = Receiver::File(file.clone());
    let handle = delivered(async || receiver, &["{\"n\":1}", "{\"n\":2}"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n");
    assert_eq!(counted(&handle), (2, 0));
}

/// A server that answers each request with the next of these, and keeps what it was sent.
async fn answering(answers: Vec<&'static str>, requests: std::sync::Arc<std::sync::Mutex<Vec<String>>>) -> Url {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/api/v1/lineage", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for answer in answers {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).await.unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.unwrap();
            requests.lock().unwrap().push(format!("{head}{}", String::from_utf8(body).unwrap()));
            let text = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(text.as_bytes()).await.unwrap();
        }
    });
    url.parse().unwrap()
}

#[test]
fn a_server_that_fails_is_asked_again_and_one_that_refuses_is_not() {
    let requests = std::sync::Arc::default();
    let kept = std::sync::Arc::clone(&requests);
    let answers = vec!["503 Away", "200 OK", "422 No", "201 Created"];
    let receiver = async || Receiver::Http {
        client: Client::builder().no_proxy().build().unwrap(),
        url: answering(answers, kept).await,
        token: Some("t0ken".to_string()),
    };
    let handle = delivered(receiver, &["{\"n\":1}", "{\"n\":2}", "{\"n\":3}"]);
    assert_eq!(counted(&handle), (2, 1));
    let requests = requests.lock().unwrap();
    let events: Vec<&str> = requests.iter().map(|request| request.lines().last().unwrap()).collect();
    assert_eq!(events, ["{\"n\":1}", "{\"n\":1}", "{\"n\":2}", "{\"n\":3}"]);
    assert!(requests[0].starts_with("POST /api/v1/lineage "), "{}", requests[0]);
    let head = requests[0].to_ascii_lowercase();
    assert!(head.contains("authorization: bearer t0ken") && head.contains("content-type: application/json"), "{head}");
}

#[test]
fn a_receiver_that_is_away_is_given_up_after_some_tries() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::File(directory.path().join("no such directory/events"));
    let handle = delivered(async || receiver, &["{}"]);
    assert_eq!(counted(&handle), (0, 1));
}
