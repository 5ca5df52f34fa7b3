// SPDX-License-Identifier: Apache-2.0
//! Table services that stamp the rows they move with their own commit time: what changed cannot be told any more.

use std::fs;

use tributary_testkit::restamp_rows;

use super::oracle::Oracle;
use super::*;

/// The completed file of the table service whose window is `operation`, with its requested time.
fn service_of(oracle: &Oracle, operation: &str) -> (std::path::PathBuf, String) {
    let window = oracle.windows().iter().find(|window| window["operationType"] == operation).unwrap();
    let requested = window["end"].as_str().unwrap().to_string();
    let action = if operation == "CLUSTER" { "replacecommit" } else { "commit" };
    (oracle.fixture.path().join(format!(".hoodie/{requested}.{action}")), requested)
}

#[tokio::test]
async fn a_service_that_does_not_keep_commit_times_is_refused_by_its_name_and_property() {
    for (name, operation, said, property) in [
        ("cow_v6_replace", "CLUSTER", "clustering", "hoodie.clustering.preserve.commit.metadata"),
        ("mor_v6_compaction", "COMPACT", "compaction", "hoodie.compaction.preserve.commit.metadata"),
    ] {
        let oracle = Oracle::unpack(name);
        let (file, requested) = service_of(&oracle, operation);
        let end = Some(super::requested(&requested));
        let window = || PlanRequest { pinned_end: end.clone(), ..request(&oracle.url(), Begin::Earliest) };
        assert!(service().plan(window()).await.is_ok(), "{name}: it keeps them");

        let mut commit: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for stats in commit["partitionToWriteStats"].as_object_mut().unwrap().values_mut() {
            for stat in stats.as_array_mut().unwrap() {
                restamp_rows(&oracle.fixture.path().join(stat["path"].as_str().unwrap()), &requested);
                stat["fileSizeInBytes"] = Value::from(0);
            }
        }
        fs::write(&file, commit.to_string()).unwrap();
        let refused = failure(service().plan(window()).await);
        assert!(matches!(refused, Error::Unsupported { .. }), "{name}: {refused}");
        let text = refused.to_string();
        for part in [said, &requested, property] {
            assert!(text.contains(part), "{part} in {text}");
        }
        // The whole table does not need to know what changed.
        assert!(service().plan(request(&oracle.url(), Begin::Snapshot)).await.is_ok(), "{name}");
    }
}
