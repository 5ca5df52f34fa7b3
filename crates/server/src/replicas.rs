// SPDX-License-Identifier: Apache-2.0
//! Several processes with one role: each takes its turn, and one that does not answer is passed over.
//!
//! Every call of a timeline role can be repeated, so the next one is asked where one does not answer. Rows that go to a
//! writer are gone once they are sent: so a writer is asked whether it serves before it gets any, and one that goes away
//! later fails the batch, whose next attempt goes elsewhere.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::BoxFuture;
use tributary_api::RowStream;
use tributary_api::timeline::{Error, InstantInfo, PlanRequest, ReadRequest, SourcePlan, TableInfo, Timeline};
use tributary_api::writer::{self, StageRequest, Staged, Writer};

use tributary_types::InstantTime;

use crate::peers::{Peer, ask};

/// How long one that did not answer is asked last.
const PASSED_OVER: Duration = Duration::from_secs(10);

/// Replicas of a role.
struct Replicas<T: ?Sized> {
    members: Vec<Member<T>>,
    next: AtomicUsize,
}

struct Member<T: ?Sized> {
    role: Arc<T>,
    /// When it did not answer.
    failed: Mutex<Option<Instant>>,
}

impl<T: ?Sized> Member<T> {
    fn mark(&self, failed: bool) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = failed.then(Instant::now);
    }

    fn is_passed_over(&self) -> bool {
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|failed| failed.elapsed() < PASSED_OVER)
    }
}

impl<T: ?Sized> Replicas<T> {
    fn new(roles: Vec<Arc<T>>) -> Self {
        let members = roles.into_iter().map(|role| Member { role, failed: Mutex::default() });
        Replicas { members: members.collect(), next: AtomicUsize::new(0) }
    }

    /// All of them, begun with the one whose turn it is; those that did not answer lately come last.
    fn in_turn(&self) -> Vec<&Member<T>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.members.len();
        let mut turn: Vec<&Member<T>> = (0..count).map(|step| &self.members[(first + step) % count]).collect();
        turn.sort_by_key(|member| member.is_passed_over());
        turn
    }
}

/// One timeline role over several processes; `None`: there is none.
pub(crate) fn timelines(mut replicas: Vec<Arc<dyn Timeline>>) -> Option<Arc<dyn Timeline>> {
    match replicas.len() {
        0 | 1 => replicas.pop(),
        _ => Some(Arc::new(Timelines(Replicas::new(replicas)))),
    }
}

struct Timelines(Replicas<dyn Timeline>);

impl Timelines {
    /// Asks one after the other until one answers.
    async fn ask<'a, T>(
        &'a self,
        call: impl Fn(&'a Arc<dyn Timeline>) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut lost = None;
        for member in self.0.in_turn() {
            match call(&member.role).await {
                Err(error @ Error::Unreachable { .. }) => {
                    member.mark(true);
                    tracing::warn!(error = &error as &dyn std::error::Error, "a replica is passed over");
                    lost = Some(error);
                }
                answer => {
                    member.mark(false);
                    return answer;
                }
            }
        }
        Err(lost.expect("there are at least two replicas"))
    }
}

#[async_trait]
impl Timeline for Timelines {
    async fn describe(&self, url: &str) -> Result<TableInfo, Error> {
        let url = url.to_string();
        self.ask(|replica| {
            let url = url.clone();
            Box::pin(async move { replica.describe(&url).await })
        })
        .await
    }

    async fn list_instants(
        &self,
        url: &str,
        before: Option<&InstantTime>,
        limit: usize,
    ) -> Result<Vec<InstantInfo>, Error> {
        let (url, before) = (url.to_string(), before.cloned());
        self.ask(|replica| {
            let (url, before) = (url.clone(), before.clone());
            Box::pin(async move { replica.list_instants(&url, before.as_ref(), limit).await })
        })
        .await
    }

    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, Error> {
        self.ask(|replica| replica.plan(request.clone())).await
    }

    async fn read(&self, request: ReadRequest) -> Result<RowStream, Error> {
        self.ask(|replica| replica.read(request.clone())).await
    }

    /// Of all that answer.
    async fn locations(&self) -> Result<Vec<String>, Error> {
        let mut all = Vec::new();
        let mut lost = None;
        for member in &self.0.members {
            match member.role.locations().await {
                Ok(locations) => all.extend(locations),
                Err(error @ Error::Unreachable { .. }) => lost = Some(error),
                Err(error) => return Err(error),
            }
        }
        match lost {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(all),
        }
    }

    /// Of all: one that does not answer may still read.
    async fn cancel_pull(&self, pull: &str) -> Result<u64, Error> {
        let mut streams = 0;
        let mut lost = None;
        for member in &self.0.members {
            match member.role.cancel_pull(pull).await {
                Ok(ended) => streams += ended,
                Err(error) => lost = Some(error),
            }
        }
        lost.map_or(Ok(streams), Err)
    }
}

/// A writer in another process, and whether it serves.
pub(crate) struct WriterReplica {
    pub(crate) writer: Arc<dyn Writer>,
    pub(crate) peer: Option<Peer>,
}

impl WriterReplica {
    async fn serves(&self) -> bool {
        match &self.peer {
            Some(peer) => ask(peer).await.is_none(),
            None => true,
        }
    }
}

/// One writer role over several processes; `None`: there is none.
pub(crate) fn writers(mut replicas: Vec<Arc<WriterReplica>>) -> Option<Arc<dyn Writer>> {
    match replicas.len() {
        0 | 1 => replicas.pop().map(|replica| Arc::clone(&replica.writer)),
        _ => Some(Arc::new(Writers(Replicas::new(replicas)))),
    }
}

struct Writers(Replicas<WriterReplica>);

#[async_trait]
impl Writer for Writers {
    async fn stage(&self, request: StageRequest, rows: RowStream) -> Result<Staged, writer::Error> {
        let turn = self.0.in_turn();
        let mut chosen = turn[0];
        for member in &turn {
            let serves = member.role.serves().await;
            member.mark(!serves);
            if serves {
                chosen = member;
                break;
            }
        }
        let staged = chosen.role.writer.stage(request, rows).await;
        if matches!(staged, Err(writer::Error::Unreachable { .. })) {
            chosen.mark(true);
        }
        staged
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tributary_api::boxed_error;

    use super::*;

    /// Says its name in an error, so that who answered can be told.
    struct Named {
        name: &'static str,
        away: AtomicBool,
    }

    fn named(name: &'static str) -> Arc<Named> {
        Arc::new(Named { name, away: AtomicBool::new(false) })
    }

    #[async_trait]
    impl Timeline for Named {
        async fn describe(&self, url: &str) -> Result<TableInfo, Error> {
            if self.away.load(Ordering::Relaxed) {
                let source = boxed_error(std::io::Error::other("refused"));
                return Err(Error::Unreachable { doing: format!("asking {}", self.name), source });
            }
            Err(Error::NoTable { url: url.to_string(), what: self.name.to_string() })
        }

        async fn list_instants(&self, url: &str, _: Option<&InstantTime>, _: usize) -> Result<Vec<InstantInfo>, Error> {
            Err(self.describe(url).await.unwrap_err())
        }

        async fn plan(&self, _: PlanRequest) -> Result<SourcePlan, Error> {
            Err(self.describe("").await.unwrap_err())
        }

        async fn read(&self, _: ReadRequest) -> Result<RowStream, Error> {
            Err(self.describe("").await.unwrap_err())
        }
    }

    async fn answers(timeline: &Arc<dyn Timeline>) -> String {
        match timeline.describe("/t").await.unwrap_err() {
            Error::NoTable { what, .. } => what,
            other => other.to_string(),
        }
    }

    #[tokio::test]
    async fn replicas_take_turns_and_one_that_is_away_is_passed_over() {
        let (a, b) = (named("a"), named("b"));
        let both = timelines(vec![a.clone() as Arc<dyn Timeline>, b.clone()]).unwrap();
        let turn = [answers(&both).await, answers(&both).await, answers(&both).await];
        assert_eq!(turn, ["a", "b", "a"]);
        a.away.store(true, Ordering::Relaxed);
        for _ in 0..4 {
            assert_eq!(answers(&both).await, "b");
        }
        b.away.store(true, Ordering::Relaxed);
        assert!(answers(&both).await.contains("did not answer"));
        a.away.store(false, Ordering::Relaxed);
        assert_eq!(answers(&both).await, "a", "one that is back is found, though it was passed over");
    }

    #[tokio::test]
    async fn instants_are_listed_by_whichever_replica_answers() {
        let (a, b) = (named("a"), named("b"));
        let both = timelines(vec![a.clone() as Arc<dyn Timeline>, b]).unwrap();
        a.away.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let answered = both.list_instants("/t", None, 1).await.unwrap_err();
            assert!(matches!(answered, Error::NoTable { ref what, .. } if what == "b"), "{answered:?}");
        }
    }

    #[tokio::test]
    async fn a_single_address_is_that_role_itself_and_none_is_none() {
        let alone = timelines(vec![named("a") as Arc<dyn Timeline>]).unwrap();
        assert_eq!(answers(&alone).await, "a");
        assert!(timelines(Vec::new()).is_none());
        assert!(writers(Vec::new()).is_none());
    }
}
