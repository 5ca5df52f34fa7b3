// SPDX-License-Identifier: Apache-2.0
use tributary_store::{MemoryStore, SledStore};
use tributary_types::{Code, Fault as _, Retry};

use super::*;

fn pipeline(name: &str, path: &str) -> Box<Pipeline> {
    let target = serde_json::json!({"path": path, "table_name": "t", "record_key": ["id"]});
    Box::new(serde_json::from_value(serde_json::json!({"name": name, "target": target})).unwrap())
}

fn name(text: &str) -> PipelineName {
    PipelineName::new(text).unwrap()
}

fn catalog() -> Catalog {
    Catalog::new(Arc::new(MemoryStore::default()))
}

fn create(catalog: &Catalog, named: &str) -> StoredPipeline {
    catalog.change(&Wanted::Create(pipeline(named, "/t")), &Change::default(), 1000).unwrap().unwrap()
}

fn update(path: &str) -> Wanted {
    Wanted::Update { pipeline: pipeline("p", path), allow_missing: false }
}

fn with_etag(etag: &str) -> Change {
    Change { etag: Some(etag.to_string()), ..Change::default() }
}

fn with_request(id: &str) -> Change {
    Change { request: Some(RequestId::new(id).unwrap()), ..Change::default() }
}

#[test]
fn a_pipeline_is_created_once_updated_paused_and_forgotten() {
    let catalog = catalog();
    let created = create(&catalog, "p");
    assert_eq!(catalog.get(&name("p")).unwrap(), created);
    let again = catalog.change(&Wanted::Create(pipeline("p", "/u")), &Change::default(), 1001).unwrap_err();
    assert_eq!((again.reason(), again.code()), ("PIPELINE_EXISTS", Code::Exists));
    let updated = catalog.change(&update("/u"), &Change::default(), 2000).unwrap().unwrap();
    assert_eq!(
        (updated.pipeline.target.path.as_str(), updated.created_millis, updated.updated_millis),
        ("/u", 1000, 2000)
    );
    assert_ne!(updated.etag, created.etag);
    let pause = |paused| Wanted::Pause { name: name("p"), paused };
    let paused = catalog.change(&pause(true), &Change::default(), 3000).unwrap().unwrap();
    assert!(paused.paused && catalog.is_paused(&name("p")).unwrap());
    let still = catalog.change(&pause(true), &Change::default(), 4000).unwrap().unwrap();
    assert_eq!(still, paused, "nothing changed");
    let updated = catalog.change(&update("/v"), &Change::default(), 5000).unwrap().unwrap();
    assert!(updated.paused, "a new definition resumes nothing");
    catalog.change(&pause(false), &Change::default(), 6000).unwrap();
    assert!(!catalog.is_paused(&name("p")).unwrap());
    let delete = Wanted::Delete { name: name("p"), allow_missing: false };
    assert_eq!(catalog.change(&delete, &Change::default(), 7000).unwrap(), None);
    for gone in [catalog.get(&name("p")).unwrap_err(), catalog.change(&delete, &Change::default(), 7001).unwrap_err()] {
        assert_eq!((gone.reason(), gone.code()), ("PIPELINE_NOT_FOUND", Code::NotFound));
    }
    let whatever = Wanted::Delete { name: name("p"), allow_missing: true };
    assert_eq!(catalog.change(&whatever, &Change::default(), 7002).unwrap(), None);
}

#[test]
fn a_change_with_an_etag_that_is_not_the_newest_does_nothing() {
    let catalog = catalog();
    let first = create(&catalog, "p");
    let second = catalog.change(&update("/u"), &with_etag(&first.etag), 2000).unwrap().unwrap();
    let delete = Wanted::Delete { name: name("p"), allow_missing: false };
    let pause = Wanted::Pause { name: name("p"), paused: true };
    for wanted in [update("/v"), delete, pause] {
        let refused = catalog.change(&wanted, &with_etag(&first.etag), 3000).unwrap_err();
        assert_eq!((refused.reason(), refused.code()), ("PIPELINE_CHANGED", Code::Conflict));
        assert_eq!(refused.retry(), Retry::Rebase);
        assert!(refused.to_string().contains(&second.etag), "{refused}");
    }
    assert_eq!(catalog.get(&name("p")).unwrap(), second);
}

#[test]
fn a_pipeline_that_was_created_anew_has_another_etag() {
    let catalog = catalog();
    let first = create(&catalog, "p");
    let delete = Wanted::Delete { name: name("p"), allow_missing: false };
    catalog.change(&delete, &Change::default(), 2000).unwrap();
    let second = catalog.change(&Wanted::Create(pipeline("p", "/t")), &Change::default(), 2000).unwrap().unwrap();
    assert_eq!(first.pipeline, second.pipeline);
    assert!(catalog.change(&update("/u"), &with_etag(&first.etag), 3000).is_err());
}

#[test]
fn an_update_of_a_missing_pipeline_is_refused_unless_it_may_create_it() {
    let catalog = catalog();
    assert_eq!(catalog.change(&update("/t"), &Change::default(), 1).unwrap_err().reason(), "PIPELINE_NOT_FOUND");
    let upsert = Wanted::Update { pipeline: pipeline("p", "/t"), allow_missing: true };
    let refused = catalog.change(&upsert, &with_etag("1-1-1"), 2).unwrap_err();
    assert_eq!(refused.reason(), "PIPELINE_NOT_FOUND", "whoever has an etag of it saw it");
    assert!(catalog.change(&upsert, &Change::default(), 3).unwrap().is_some());
}

#[test]
fn what_is_only_validated_is_not_stored_and_has_no_etag() {
    let catalog = catalog();
    let look = Change { validate_only: true, ..with_request("r") };
    let seen = catalog.change(&Wanted::Create(pipeline("p", "/t")), &look, 1).unwrap().unwrap();
    assert_eq!(seen.etag, "");
    assert!(catalog.get(&name("p")).is_err());
    create(&catalog, "p");
    let refused = catalog.change(&Wanted::Create(pipeline("p", "/t")), &look, 2).unwrap_err();
    assert_eq!(refused.reason(), "PIPELINE_EXISTS", "the id was not used up");
    let delete = Wanted::Delete { name: name("p"), allow_missing: false };
    assert_eq!(catalog.change(&delete, &Change { validate_only: true, ..Change::default() }, 3).unwrap(), None);
    assert!(catalog.get(&name("p")).is_ok());
}

#[test]
fn the_same_request_again_has_the_same_answer_and_another_under_its_id_is_refused() {
    let catalog = catalog();
    let wanted = Wanted::Create(pipeline("p", "/t"));
    let first = catalog.change(&wanted, &with_request("r"), 1000).unwrap();
    catalog.change(&update("/u"), &Change::default(), 2000).unwrap();
    assert_eq!(catalog.change(&wanted, &with_request("r"), 3000).unwrap(), first, "as it was answered then");
    let refused = catalog.change(&update("/v"), &with_request("r"), 4000).unwrap_err();
    assert_eq!((refused.reason(), refused.code()), ("REQUEST_TAKEN", Code::Exists));
    let delete = Wanted::Delete { name: name("p"), allow_missing: false };
    for at in [5000, 6000] {
        assert_eq!(catalog.change(&delete, &with_request("gone"), at).unwrap(), None);
    }
}

#[test]
fn the_oldest_answers_are_forgotten_first() {
    let catalog = catalog();
    create(&catalog, "p");
    for number in 0..REMEMBERED + 3 {
        // Names that sort in another order than the times.
        let request = with_request(&format!("r{}", 9_999 - number));
        let pause = Wanted::Pause { name: name("p"), paused: number % 2 == 0 };
        catalog.change(&pause, &request, number as i64).unwrap();
    }
    let kept = catalog.store.scan(CHANGES, false, usize::MAX).unwrap();
    assert_eq!(kept.len(), REMEMBERED);
    assert!(catalog.answer(&RequestId::new("r9999").unwrap()).unwrap().is_none());
    assert!(catalog.answer(&RequestId::new("r9996").unwrap()).unwrap().is_some());
}

#[test]
fn pipelines_are_listed_by_name_page_after_page() {
    let catalog = catalog();
    for named in ["b", "a.x", "c", "a"] {
        create(&catalog, named);
    }
    let names = |after: Option<&str>, limit| {
        let listed = catalog.list(after, limit).unwrap();
        listed.iter().map(|stored| stored.pipeline.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(None, 10), ["a", "a.x", "b", "c"]);
    assert_eq!(names(None, 2), ["a", "a.x"]);
    assert_eq!(names(Some("a.x"), 2), ["b", "c"]);
    assert_eq!(names(Some("aa"), 1), ["b"], "the last of a page may be gone by then");
}

#[test]
fn stored_pipelines_and_answers_outlive_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Catalog::new(Arc::new(SledStore::open(directory.path()).unwrap()));
    let before = open();
    let wanted = Wanted::Create(pipeline("p", "/t"));
    let first = before.change(&wanted, &with_request("r"), 1000).unwrap();
    drop(before);
    let after = open();
    assert_eq!(Some(after.get(&name("p")).unwrap()), first);
    assert_eq!(after.change(&wanted, &with_request("r"), 2000).unwrap(), first);
}
