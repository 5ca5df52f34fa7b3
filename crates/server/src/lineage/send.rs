// SPDX-License-Identifier: Apache-2.0
//! Delivering events: where they go, and the task that takes them there, in order.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Client, Url};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tributary_types::with_causes;

use super::{DROPPED, RECEIVER, SENT};

/// Where OpenLineage has events posted, below the address of a server.
const DEFAULT_PATH: &str = "api/v1/lineage";
/// Time that one request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Requests for the same event.
const TRIES: u32 = 3;
/// Pause before a second try; doubled with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Where events go.
pub(super) enum Receiver {
    /// To a server, by POST.
    Http { client: Client, url: Url, token: Option<String> },
    /// Into a file, one a line.
    File(PathBuf),
}

/// What became of an event.
struct NotTaken {
    message: String,
    /// Whether it may be taken later.
    again: bool,
}

impl Receiver {
    /// Reads where events go; `None`: nowhere.
    ///
    /// # Errors
    /// Says which setting is wrong and what it should be.
    pub(super) fn read(
        flag: Option<&str>,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        if environment("OPENLINEAGE_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let (name, wanted) = match flag {
            Some(flag) => ("--lineage", flag.to_string()),
            None => match environment("OPENLINEAGE_URL") {
                Some(url) => ("OPENLINEAGE_URL", url),
                None => return Ok(None),
            },
        };
        if !wanted.contains("://") && flag.is_some() {
            return Ok(Some(Receiver::File(PathBuf::from(wanted))));
        }
        // The address may hold a password: it is not repeated.
        let refuse = |what: &str| format!("{name}: {what}; write it as http://HOST:PORT or https://HOST");
        let mut url: Url = wanted.parse().map_err(|e| refuse(&format!("it is no address: {e}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refuse("events are posted to `http` and `https` only"));
        }
        if matches!(url.path(), "" | "/") {
            let path = environment("OPENLINEAGE_ENDPOINT").unwrap_or_else(|| DEFAULT_PATH.to_string());
            url.set_path(&path);
        }
        let client = Client::builder().timeout(TIMEOUT).build();
        let client = client.map_err(|e| format!("{name}: no connection can be made: {}", with_causes(&e)))?;
        Ok(Some(Receiver::Http { client, url, token: environment("OPENLINEAGE_API_KEY") }))
    }

    async fn take(&self, event: &str) -> Result<(), NotTaken> {
        match self {
            Receiver::File(path) => append(path, event).await.map_err(|e| {
                let message = format!("{} cannot be written: {e}", path.display());
                NotTaken { message, again: true }
            }),
            Receiver::Http { client, url, token } => {
                let mut request = client.post(url.clone()).header("content-type", "application/json");
                if let Some(token) = token {
                    request = request.bearer_auth(token);
                }
                // Without the address, which may hold a password.
                let answer = request
                    .body(event.to_string())
                    .send()
                    .await
                    .map_err(|e| NotTaken { message: with_causes(&e.without_url()), again: true })?;
                let status = answer.status();
                match status.is_success() {
                    true => Ok(()),
                    false => Err(NotTaken {
                        message: format!("it answers {status}"),
                        again: status.is_server_error() || status.as_u16() == 429,
                    }),
                }
            }
        }
    }
}

/// Opened each time, so that the file may be moved away.
async fn append(path: &PathBuf, event: &str) -> io::Result<()> {
    let mut file = tokio::fs::OpenOptions::new().create(true).append(true).open(path).await?;
    // One write: several processes may append to one file.
    file.write_all(format!("{event}\n").as_bytes()).await?;
    file.flush().await
}

/// The task that delivers.
pub(super) struct Sender {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Sender {
    pub(super) fn start(receiver: Receiver, events: mpsc::Receiver<String>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let sending = Sending { receiver, events, stopped, trouble: false };
        Sender { stop, task: tokio::spawn(sending.run()) }
    }

    /// Delivers what is left, at most for so long.
    pub(super) async fn finish(self, within: Duration) {
        self.stop.send_replace(true);
        let abort = self.task.abort_handle();
        if tokio::time::timeout(within, self.task).await.is_err() {
            abort.abort();
        }
    }
}

struct Sending {
    receiver: Receiver,
    events: mpsc::Receiver<String>,
    stopped: watch::Receiver<bool>,
    /// Whether it was said that the receiver takes nothing.
    trouble: bool,
}

impl Sending {
    async fn run(mut self) {
        loop {
            let mut stopped = self.stopped.clone();
            let event = tokio::select! {
                biased;
                event = self.events.recv() => event,
                _ = stopped.wait_for(|stop| *stop) => None,
            };
            let Some(event) = event else { return };
            self.deliver(&event).await;
        }
    }

    async fn deliver(&mut self, event: &str) {
        let mut pause = FIRST_PAUSE;
        for number in 1..=TRIES {
            match self.receiver.take(event).await {
                Ok(()) => {
                    metrics::counter!(SENT).increment(1);
                    if std::mem::take(&mut self.trouble) {
                        tracing::warn!("events of lineage are delivered again");
                    }
                    return;
                }
                Err(NotTaken { message, again }) => {
                    // Once for each outage, however long it lasts.
                    if !std::mem::replace(&mut self.trouble, true) {
                        tracing::warn!(error = message, "events of lineage cannot be delivered");
                    }
                    if !again || number == TRIES || *self.stopped.borrow() {
                        break;
                    }
                }
            }
            let mut stopped = self.stopped.clone();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
            pause *= 2;
        }
        metrics::counter!(DROPPED, "why" => RECEIVER).increment(1);
    }
}

#[cfg(test)]
mod tests;
