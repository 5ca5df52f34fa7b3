// SPDX-License-Identifier: Apache-2.0
//! The history of batches in the local store.
//!
//! `batch/<started>/<pipeline>/<request>` holds a record, so that the order of keys is the order of batches;
//! `request/<pipeline>/<request>` holds the key of the request's record.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tributary_api::boxed_error;
use tributary_api::checkpoint::{BatchRecord, Error};
use tributary_store::KeyValue;
use tributary_types::{PipelineName, RequestId};

const BATCHES: &str = "batch/";
/// Old records that one new one removes at most, beyond the one it takes the place of: after the limits were lowered
/// the history shrinks over the next batches.
const PRUNED_AT_ONCE: usize = 64;

/// The records of one store.
pub(crate) struct Records {
    store: Arc<dyn KeyValue>,
    /// One writer at a time, so that a request has one record.
    writing: Mutex<()>,
    count: usize,
    age: Duration,
}

impl Records {
    /// Keeps at most `count` records, none older than `age`.
    pub(crate) fn new(store: Arc<dyn KeyValue>, count: usize, age: Duration) -> Self {
        Records { store, writing: Mutex::new(()), count, age }
    }

    /// Keeps a record in the place of the one of the same request, and removes what is too much or too old.
    pub(crate) fn put(&self, record: &BatchRecord, now_millis: i64) -> Result<(), Error> {
        let bytes = serde_json::to_vec(record)
            .map_err(|e| Error::Cache { doing: "writing a batch".to_string(), source: boxed_error(e) })?;
        let status = &record.status;
        let key = format!("{}{}/{}", started(status.started_millis), status.pipeline, status.request);
        let request = request_key(&status.pipeline, &status.request);
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.store.get(&request).map_err(cache_error)?;
        self.store.put(&key, &bytes).map_err(cache_error)?;
        self.store.put(&request, key.as_bytes()).map_err(cache_error)?;
        if let Some(before) = before.filter(|before| before != key.as_bytes()) {
            self.store.delete(&String::from_utf8_lossy(&before)).map_err(cache_error)?;
        }
        self.prune(now_millis)
    }

    fn prune(&self, now_millis: i64) -> Result<(), Error> {
        let kept = self.store.scan(BATCHES, true, self.count + PRUNED_AT_ONCE).map_err(cache_error)?;
        let age = i64::try_from(self.age.as_millis()).unwrap_or(i64::MAX);
        let oldest = started(now_millis.saturating_sub(age));
        for (number, (key, bytes)) in kept.iter().enumerate() {
            if number < self.count && *key >= oldest {
                continue;
            }
            if let Ok(record) = serde_json::from_slice::<BatchRecord>(bytes) {
                let request = request_key(&record.status.pipeline, &record.status.request);
                self.store.delete(&request).map_err(cache_error)?;
            }
            self.store.delete(key).map_err(cache_error)?;
        }
        Ok(())
    }

    /// The newest records, newest first, of one pipeline or of all.
    pub(crate) fn newest(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchRecord>, Error> {
        let wanted = if pipeline.is_none() { limit } else { usize::MAX };
        let found = self.store.scan(BATCHES, true, wanted).map_err(cache_error)?;
        // A record that cannot be read is no record: it is of another version, and only history.
        let records = found.iter().filter_map(|(_, bytes)| serde_json::from_slice::<BatchRecord>(bytes).ok());
        Ok(records.filter(|record| pipeline.is_none_or(|name| &record.status.pipeline == name)).take(limit).collect())
    }

    /// The record of one request.
    pub(crate) fn find(&self, pipeline: &PipelineName, request: &RequestId) -> Result<Option<BatchRecord>, Error> {
        let Some(key) = self.store.get(&request_key(pipeline, request)).map_err(cache_error)? else { return Ok(None) };
        let bytes = self.store.get(&String::from_utf8_lossy(&key)).map_err(cache_error)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}

/// Begins the keys of batches that started then.
fn started(millis: i64) -> String {
    format!("{BATCHES}{:020}/", millis.max(0))
}

fn request_key(pipeline: &PipelineName, request: &RequestId) -> String {
    format!("request/{pipeline}/{request}")
}

/// An error of the local store as this role tells it.
pub(crate) fn cache_error(error: tributary_store::Error) -> Error {
    Error::Cache { doing: error.doing.clone(), source: boxed_error(error) }
}

#[cfg(test)]
mod tests {
    use tributary_api::coordinator::{BatchStatus, Written};
    use tributary_store::MemoryStore;
    use tributary_types::{BatchName, Outcome, Stage};

    use super::*;

    const DAY: i64 = 86_400_000;

    fn record(pipeline: &str, request: &str, started_millis: i64, outcome: Option<Outcome>) -> BatchRecord {
        let status = BatchStatus {
            name: BatchName::new(format!("{pipeline}/{request}")).unwrap(),
            pipeline: PipelineName::new(pipeline).unwrap(),
            request: RequestId::new(request).unwrap(),
            asked_by: "a test".to_string(),
            stage: Stage::Done,
            outcome,
            instant: None,
            completed: None,
            seq: None,
            sources: Vec::new(),
            overrides: Vec::new(),
            written: Written::default(),
            refused: Default::default(),
            timings: vec![(Stage::Merge, 7)],
            peak_memory: 0,
            error: None,
            started_millis,
        };
        BatchRecord { status, target: "/t".to_string(), definition: "d".to_string(), process: "p".to_string() }
    }

    fn records(count: usize) -> (Arc<MemoryStore>, Records) {
        let store = Arc::new(MemoryStore::default());
        (Arc::clone(&store), Records::new(store, count, Duration::from_secs(30 * 86_400)))
    }

    fn names(found: &[BatchRecord]) -> Vec<&str> {
        found.iter().map(|record| record.status.name.as_str()).collect()
    }

    #[test]
    fn records_are_listed_newest_first_of_one_pipeline_or_of_all_and_found_by_request() {
        let (_, records) = records(10);
        for (pipeline, request, at) in [("a", "1", 100), ("b", "1", 200), ("a", "2", 300)] {
            records.put(&record(pipeline, request, at, Some(Outcome::Committed)), 400).unwrap();
        }
        assert_eq!(names(&records.newest(None, 10).unwrap()), ["a/2", "b/1", "a/1"]);
        assert_eq!(names(&records.newest(None, 1).unwrap()), ["a/2"]);
        let b = PipelineName::new("b").unwrap();
        assert_eq!(names(&records.newest(Some(&b), 10).unwrap()), ["b/1"]);
        let found = records.find(&b, &RequestId::new("1").unwrap()).unwrap();
        assert_eq!(found, Some(record("b", "1", 200, Some(Outcome::Committed))));
        assert_eq!(records.find(&b, &RequestId::new("2").unwrap()).unwrap(), None);
    }

    #[test]
    fn a_request_has_one_record_also_when_it_ran_again_later() {
        let (store, records) = records(10);
        for (at, outcome) in [(100, None), (100, Some(Outcome::Failed)), (200, Some(Outcome::Committed))] {
            records.put(&record("p", "r", at, outcome), 300).unwrap();
        }
        let kept = records.newest(None, 10).unwrap();
        assert_eq!(kept, [record("p", "r", 200, Some(Outcome::Committed))]);
        assert_eq!(store.scan("", false, 10).unwrap().len(), 2, "one record and where it is");
    }

    #[test]
    fn old_records_go_by_count_and_by_age_with_their_requests() {
        let (store, records) = records(3);
        for n in 0..5 {
            records.put(&record("p", &format!("r{n}"), DAY + n, Some(Outcome::Committed)), DAY + n).unwrap();
        }
        assert_eq!(names(&records.newest(None, 10).unwrap()), ["p/r4", "p/r3", "p/r2"]);
        records.put(&record("p", "late", 40 * DAY, Some(Outcome::Committed)), 40 * DAY).unwrap();
        assert_eq!(names(&records.newest(None, 10).unwrap()), ["p/late"]);
        assert_eq!(store.scan("", false, 10).unwrap().len(), 2);
    }

    #[test]
    fn a_record_of_another_version_is_passed_over() {
        let (store, records) = records(10);
        store.put("batch/00000000000000000100/p/old", b"{\"name\":\"p/old\"}").unwrap();
        records.put(&record("p", "r", 200, None), 300).unwrap();
        assert_eq!(names(&records.newest(None, 10).unwrap()), ["p/r"]);
    }
}
