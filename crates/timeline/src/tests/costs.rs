// SPDX-License-Identifier: Apache-2.0
//! What planning costs (W15): requests to the store, on a table of 10,000 commits.
//!
//! Memory is bounded by how it is made: of an instant that is not in the window only its name is kept, about a hundred
//! bytes; metadata is read for the window's commits and one more, and kept in a cache of a fixed weight. The tests run
//! with a cache for almost nothing too, so that no figure hangs on what is remembered.

use tributary_hudi::target::{NewTable, create_table};
use tributary_hudi::{
    Action, CommitMetadata, Storage, Stores, WriteStat, completed_path, inflight_path, requested_path,
};
use tributary_testkit::{Asked, CountingStores, MemoryStores, Requests};
use tributary_types::pipeline::TableType;
use tributary_types::{InstantTime, Zone};

use super::*;

const URL: &str = "memory://lake/many";
const TIMELINE: &str = ".hoodie/timeline";
const COMMITS: i64 = 10_000;
const SCHEMA: &str = r#"{"type":"record","name":"r","fields":[{"name":"id","type":["null","string"],"default":null}]}"#;

/// Requested time of a commit; it completes half a second later, and the next one begins after another half.
fn at(number: i64) -> InstantTime {
    InstantTime::from_epoch_millis(1_700_000_000_000 + number * 1000, Zone::Utc)
}

fn completion(number: i64) -> InstantTime {
    InstantTime::from_epoch_millis(1_700_000_000_500 + number * 1000, Zone::Utc)
}

fn data_file(number: i64) -> String {
    format!("f{number}-0_0-0-0_{}.parquet", at(number))
}

/// What a commit says of itself: one new file group of one file.
fn metadata(number: i64) -> Vec<u8> {
    let stat =
        WriteStat { file_id: format!("f{number}-0"), path: data_file(number), rows: 1, bytes: 1, ..Default::default() };
    let mut metadata = CommitMetadata { operation: "UPSERT".to_string(), stats: vec![stat], ..Default::default() };
    metadata.extra.insert("schema".to_string(), SCHEMA.to_string());
    metadata.encode().unwrap()
}

/// A table whose timeline holds all its commits, each with its three files. Only those in `real` have data files and
/// metadata of their own: whoever reads another one, reads something that is none.
async fn table(real: std::ops::Range<i64>) -> MemoryStores {
    let stores = MemoryStores::new();
    let storage: Storage = stores.open(URL).unwrap();
    let table = NewTable {
        name: "many".to_string(),
        table_type: TableType::CopyOnWrite,
        version: 9,
        record_key: vec!["id".to_string()],
        partition_by: Vec::new(),
        ordering: Vec::new(),
        hive_style: true,
        url_encode: false,
    };
    create_table(&storage, &table, &at(-1)).await.unwrap();
    for number in 0..COMMITS {
        let is_real = real.contains(&number);
        let content = if is_real { metadata(number) } else { b"not to be read".to_vec() };
        let requested = at(number);
        storage.put(&requested_path(TIMELINE, &requested, Action::Commit), Vec::new()).await.unwrap();
        storage.put(&inflight_path(TIMELINE, &requested, Action::Commit), Vec::new()).await.unwrap();
        let completed = completed_path(TIMELINE, &requested, &completion(number), Action::Commit);
        storage.put(&completed, content).await.unwrap();
        if is_real {
            storage.put(&data_file(number), b"x".to_vec()).await.unwrap();
        }
    }
    stores
}

/// What one plan asked of the store.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    listings: usize,
    commits: usize,
    heads: usize,
    others: usize,
}

fn cost(requests: &Requests) -> Cost {
    let seen = requests.take();
    let count = |wanted: &dyn Fn(&Asked, &str) -> bool| seen.iter().filter(|(asked, path)| wanted(asked, path)).count();
    let is_commit = |path: &str| path.ends_with(".commit") && path.contains("/timeline/");
    assert_eq!(count(&|asked, _| *asked == Asked::Change), 0, "{seen:?}");
    Cost {
        listings: count(&|asked, _| *asked == Asked::List),
        commits: count(&|asked, path| *asked == Asked::Read && is_commit(path)),
        heads: count(&|asked, _| *asked == Asked::Head),
        others: count(&|asked, path| *asked == Asked::Read && !is_commit(path)),
    }
}

fn over(stores: &MemoryStores, cached_files: usize) -> (Service, Arc<Requests>) {
    let requests = Requests::none();
    let stores = CountingStores::new(Arc::new(stores.clone()), Arc::clone(&requests));
    let settings = Settings { cached_files, ..Settings::default() };
    (Service::new(Arc::new(stores), Arc::new(FixedClock), settings), requests)
}

#[tokio::test]
async fn a_plan_on_ten_thousand_commits_is_one_listing_and_the_commits_of_its_window() {
    let stores = table(5000..5011).await;
    let begin = || request(URL, Begin::After(Cursor::Completed(completion(4999))));
    let (service, requests) = over(&stores, 1000);
    let first = service.plan(begin()).await.unwrap();
    let delivered: Vec<&InstantTime> = first.instants.iter().map(|instant| &instant.requested).collect();
    assert_eq!(delivered, (5000..5005).map(at).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    assert_eq!((first.limited, first.report.lag_instants), (true, 4995));
    // Five commits and the one that shows that there are more; whether the five files of the window are still there;
    // the properties of the table, and the version of its archive.
    assert_eq!(cost(&requests), Cost { listings: 1, commits: 6, heads: 5, others: 2 });

    let second = service.plan(resume(&first, 5)).await.unwrap();
    assert_eq!(second.instants.len(), 5);
    assert_eq!(cost(&requests), Cost { listings: 1, commits: 5, heads: 5, others: 2 }, "one was read before");

    // Nothing is remembered: the window's commits are read again for its schema and for its files.
    let (service, requests) = over(&stores, 0);
    assert_eq!(service.plan(begin()).await.unwrap().instants, first.instants);
    assert_eq!(cost(&requests), Cost { listings: 1, commits: 12, heads: 5, others: 2 });
}

#[tokio::test]
async fn a_plan_that_finds_nothing_new_reads_one_commit_for_its_schema() {
    let stores = table(COMMITS - 1..COMMITS).await;
    let (service, requests) = over(&stores, 1000);
    let newest = Begin::After(Cursor::Completed(completion(COMMITS - 1)));
    let plan = service.plan(request(URL, newest)).await.unwrap();
    assert!(!plan.has_news);
    assert_eq!(cost(&requests), Cost { listings: 1, commits: 1, heads: 0, others: 2 });
    // The newest commit decides what `latest` delivers, and was read just now.
    let latest = service.plan(request(URL, Begin::Latest)).await.unwrap();
    assert_eq!(latest.instants.len(), 1);
    assert_eq!(cost(&requests), Cost { listings: 1, commits: 0, heads: 0, others: 2 });
}
