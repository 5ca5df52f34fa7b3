// SPDX-License-Identifier: Apache-2.0
//! Says on standard error when the server of a command goes away, and when it is back: once each.

use std::sync::atomic::{AtomicBool, Ordering};

use tributary_rpc::Link;

use crate::telemetry::bars;

/// What is known of a server.
pub(crate) struct ServerNews {
    address: String,
    away: AtomicBool,
}

impl ServerNews {
    pub(crate) fn new(address: &str) -> Self {
        ServerNews { address: address.to_string(), away: AtomicBool::new(false) }
    }

    /// What to say now that it does not answer; `None` when that was said before.
    fn on_lost(&self, why: &str) -> Option<String> {
        let known = self.away.swap(true, Ordering::SeqCst);
        (!known).then(|| format!("the server at {} does not answer, asking again until it does: {why}", self.address))
    }

    /// What to say now that it answers; `None` when it was not missed.
    fn on_back(&self) -> Option<String> {
        let away = self.away.swap(false, Ordering::SeqCst);
        away.then(|| format!("the server at {} answers again", self.address))
    }
}

impl Link for ServerNews {
    fn lost(&self, why: &str) {
        if let Some(said) = self.on_lost(why) {
            bars::say(&said);
        }
    }

    fn back(&self) {
        if let Some(said) = self.on_back() {
            bars::say(&said);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_said_once() {
        let news = ServerNews::new("http://s");
        assert_eq!(news.on_back(), None, "it was never missed");
        assert!(news.on_lost("refused").is_some_and(|said| said.contains("http://s") && said.contains("refused")));
        assert_eq!(news.on_lost("refused"), None);
        assert!(news.on_back().is_some_and(|said| said.contains("answers again")));
        assert_eq!(news.on_back(), None);
        assert!(news.on_lost("refused").is_some());
    }
}
