// SPDX-License-Identifier: Apache-2.0
//! One suite of behaviour, passed by a checkpoint role called directly and by the same one behind gRPC.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tonic::service::Routes;
use tributary_api::checkpoint::CursorCommit;
use tributary_types::pipeline::Start;
use tributary_types::{
    BatchName, Checkpoint, CheckpointError, Fault, FileState, Outcome, Retry, SourceCheckpoint, SourceName,
};

use super::*;
use crate::testing::{behaviours, connect};

#[derive(Default)]
struct Memory {
    records: Mutex<Vec<BatchRecord>>,
}

fn direct() -> Arc<dyn Checkpoints> {
    Arc::new(Memory::default())
}

fn remote() -> Arc<dyn Checkpoints> {
    Arc::new(CheckpointClient::new(connect(Routes::new(CheckpointServer::new(direct()))), "http://in-memory"))
}

fn pipeline(name: &str) -> PipelineName {
    PipelineName::new(name).unwrap()
}

fn resolved() -> Resolved {
    let cursor = "completed:20250606182826197".parse().unwrap();
    let mut checkpoint = Checkpoint::first("binding".to_string());
    checkpoint.seq = 7;
    checkpoint.sources = BTreeMap::from([(
        SourceName::new("db.orders").unwrap(),
        SourceCheckpoint {
            kind: "hudi".to_string(),
            cursor: Some(cursor),
            restart: Some(Start::Snapshot),
            window: None,
            as_of: None,
            fingerprint: "f".to_string(),
            path: Some("/lake/orders".to_string()),
            schema: Some("{}".to_string()),
            recent: vec!["20250606182826197".parse().unwrap()],
            files: Some(FileState { older: vec![1, 2], ..FileState::default() }),
        },
    )]);
    let instant = "20250606182826197".parse().unwrap();
    Resolved {
        newest: Some(CursorCommit { instant, completed: None, checkpoint }),
        shared_target: true,
        next_epoch: 9,
        repaired: Some("the cache".to_string()),
    }
}

fn record(pipeline_name: &str, id: &str) -> BatchRecord {
    let mut status = crate::convert::tests::status(Some(Outcome::Unknown));
    status.name = BatchName::new(format!("{pipeline_name}/{id}")).unwrap();
    status.pipeline = pipeline(pipeline_name);
    status.request = RequestId::new(id).unwrap();
    BatchRecord { status, target: "/t".to_string(), definition: "0f".to_string(), process: "a process".to_string() }
}

fn known_cursor() -> KnownCursor {
    let CursorCommit { instant, checkpoint, .. } = resolved().newest.unwrap();
    let (source, entry) = checkpoint.sources.into_iter().next().unwrap();
    KnownCursor { source, instant, entry }
}

fn legacy() -> LegacyCheckpoint {
    let instant = "20250606182826197".parse().unwrap();
    LegacyCheckpoint { instant, key: tributary_types::FLAT_KEY.to_string(), value: "20250101000000000".to_string() }
}

fn found() -> CommitFound {
    CommitFound {
        instant: "20250606182826197".parse().unwrap(),
        completed: None,
        seq: Some(0),
        definition: Some("0f".to_string()),
    }
}

#[async_trait]
impl Checkpoints for Memory {
    async fn resolve(&self, name: &PipelineName, target: &str) -> Result<Resolved, Error> {
        match target {
            "/new" => Ok(Resolved { newest: None, shared_target: false, next_epoch: 1, repaired: None }),
            "/bad" => Err(Error::Checkpoint(CheckpointError::Malformed {
                pipeline: name.clone(),
                instant: "20250606182826197".parse().unwrap(),
                detail: "x".to_string(),
            })),
            _ => Ok(resolved()),
        }
    }

    async fn look_up(&self, name: &PipelineName, target: &str) -> Result<Resolved, Error> {
        let resolved = self.resolve(name, target).await?;
        Ok(Resolved { repaired: Some("only a look".to_string()), ..resolved })
    }

    async fn find_cursors(
        &self,
        _: &PipelineName,
        target: &str,
        sources: &[SourceName],
    ) -> Result<Vec<KnownCursor>, Error> {
        let known = known_cursor();
        Ok(Some(known).filter(|known| target == "/t" && sources.contains(&known.source)).into_iter().collect())
    }

    async fn find_legacy(&self, target: &str) -> Result<Option<LegacyCheckpoint>, Error> {
        Ok(Some(legacy()).filter(|_| target == "/t"))
    }

    async fn record(&self, record: BatchRecord) -> Result<(), Error> {
        self.records.lock().unwrap().insert(0, record);
        Ok(())
    }

    async fn find_commit(
        &self,
        _: &PipelineName,
        target: &str,
        request: &RequestId,
    ) -> Result<Option<CommitFound>, Error> {
        Ok(Some(found()).filter(|_| target == "/t" && request.as_str() == "known"))
    }

    async fn history(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchRecord>, Error> {
        let records = self.records.lock().unwrap();
        let asked = records.iter().filter(|record| pipeline.is_none_or(|name| &record.status.pipeline == name));
        Ok(asked.take(limit).cloned().collect())
    }

    async fn find_request(&self, pipeline: &PipelineName, request: &RequestId) -> Result<Option<BatchRecord>, Error> {
        let records = self.records.lock().unwrap();
        Ok(records
            .iter()
            .map(|record| (record, &record.status))
            .find(|(_, status)| &status.pipeline == pipeline && &status.request == request)
            .map(|(record, _)| record.clone()))
    }
}

behaviours! {
    cursors_are_found_whole,
    a_pipeline_that_never_committed_has_none,
    malformed_cursors_are_an_error_of_their_kind,
    records_are_kept_and_found,
    the_commit_of_a_request_is_found,
    cursors_of_sources_are_found_in_any_commit,
    what_another_program_left_is_found,
    a_look_is_no_resolve,
}

async fn cursors_of_sources_are_found_in_any_commit(role: Arc<dyn Checkpoints>) {
    let names = ["db.orders", "users"].map(|name| SourceName::new(name).unwrap());
    assert_eq!(role.find_cursors(&pipeline("p"), "/t", &names).await.unwrap(), [known_cursor()]);
    assert_eq!(role.find_cursors(&pipeline("p"), "/t", &names[1..]).await.unwrap(), []);
}

async fn what_another_program_left_is_found(role: Arc<dyn Checkpoints>) {
    assert_eq!(role.find_legacy("/t").await.unwrap(), Some(legacy()));
    assert_eq!(role.find_legacy("/new").await.unwrap(), None);
}

async fn a_look_is_no_resolve(role: Arc<dyn Checkpoints>) {
    let looked = role.look_up(&pipeline("p"), "/t").await.unwrap();
    assert_eq!(looked, Resolved { repaired: Some("only a look".to_string()), ..resolved() });
}

async fn cursors_are_found_whole(role: Arc<dyn Checkpoints>) {
    assert_eq!(role.resolve(&pipeline("p"), "/t").await.unwrap(), resolved());
}

async fn a_pipeline_that_never_committed_has_none(role: Arc<dyn Checkpoints>) {
    let found = role.resolve(&pipeline("p"), "/new").await.unwrap();
    assert_eq!((found.newest, found.repaired, found.next_epoch), (None, None, 1));
}

async fn malformed_cursors_are_an_error_of_their_kind(role: Arc<dyn Checkpoints>) {
    let refused = role.resolve(&pipeline("p"), "/bad").await.unwrap_err();
    assert!(matches!(&refused, Error::Checkpoint(CheckpointError::Malformed { .. })), "{refused:?}");
}

async fn records_are_kept_and_found(role: Arc<dyn Checkpoints>) {
    for (name, id) in [("a", "1"), ("b", "1"), ("a", "2")] {
        role.record(record(name, id)).await.unwrap();
    }
    assert_eq!(role.history(Some(&pipeline("a")), 10).await.unwrap(), [record("a", "2"), record("a", "1")]);
    assert_eq!(role.history(None, 2).await.unwrap(), [record("a", "2"), record("b", "1")]);
    let (known, unknown) = (RequestId::new("1").unwrap(), RequestId::new("9").unwrap());
    assert_eq!(role.find_request(&pipeline("b"), &known).await.unwrap(), Some(record("b", "1")));
    assert_eq!(role.find_request(&pipeline("b"), &unknown).await.unwrap(), None);
}

async fn the_commit_of_a_request_is_found(role: Arc<dyn Checkpoints>) {
    let (known, unknown) = (RequestId::new("known").unwrap(), RequestId::new("9").unwrap());
    assert_eq!(role.find_commit(&pipeline("p"), "/t", &known).await.unwrap(), Some(found()));
    assert_eq!(role.find_commit(&pipeline("p"), "/t", &unknown).await.unwrap(), None);
}

#[tokio::test]
async fn a_role_that_is_not_there_is_named_and_asking_again_is_safe() {
    let client = CheckpointClient::new(crate::connect_lazily("http://127.0.0.1:1").unwrap(), "http://127.0.0.1:1");
    let refused = client.resolve(&pipeline("p"), "/t").await.unwrap_err();
    assert!(matches!(refused, Error::Unreachable { .. }) && refused.retry() == Retry::Again, "{refused:?}");
    assert!(refused.to_string().contains("http://127.0.0.1:1"), "{refused}");
}
