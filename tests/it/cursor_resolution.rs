// SPDX-License-Identifier: Apache-2.0
//! Whatever happens around the commits of two pipelines in one target (foreign commits, archiving at any place, restores, a
//! clock that goes back, lost records, arguments and requests that are sent again), each batch goes on from the cursors
//! that the target has: sequence numbers have no gap, windows join, and no request id and no override counts twice.
//!
//! Histories are made of a seed, and a failure says which one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tributary_api::coordinator::{BatchStatus, RunRequest};
use tributary_hudi::SystemStores;
use tributary_server::bench::source::SourceTable;
use tributary_server::embedded::Embedded;
use tributary_store::MemoryStore;
use tributary_testkit::{ManualClock, SeededEntropy, archive_instants};
use tributary_types::pipeline::{Operation, Pipeline};
use tributary_types::{Checkpoint, Clock, Cursor, InstantTime, Outcome, Override, RequestId, SystemClock};

use crate::restored_target::restore_to;
use crate::support::{
    Lake, checkpoints, has_table, open, open_value_table, pipeline, request_of, roles, roles_of, rows, value_table,
    values,
};

const PIPELINES: [&str; 2] = ["p", "q"];
/// Steps of one history.
const STEPS: usize = 24;
/// How far the clock goes back.
const BACK_MILLIS: i64 = -5000;

/// A cursor commit that the target has.
#[derive(Debug, Clone)]
struct Made {
    instant: InstantTime,
    request: String,
    /// The override that it applied.
    applied: Option<String>,
}

/// What one pipeline did.
#[derive(Default)]
struct Side {
    /// Its commits that are still there, oldest first.
    made: Vec<Made>,
    /// Overrides that every run is given again.
    flags: Vec<String>,
}

struct World {
    lake: Lake,
    random: SeededEntropy,
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    sides: BTreeMap<&'static str, Side>,
    next: u64,
    said: Vec<String>,
}

impl World {
    async fn new(seed: u64) -> Self {
        let lake = Lake::new();
        let mut world = World {
            lake,
            random: SeededEntropy::new(seed),
            clock: Arc::new(ManualClock::at(SystemClock.now_millis())),
            store: Arc::new(MemoryStore::default()),
            sides: PIPELINES.iter().map(|name| (*name, Side::default())).collect(),
            next: 0,
            said: Vec::new(),
        };
        for name in PIPELINES {
            value_table(&roles(), &world.lake.path(name)).await;
            world.upsert(name).await;
        }
        world
    }

    fn pick(&self, below: usize) -> usize {
        (self.random.next_u64() % below as u64) as usize
    }

    fn side(&self) -> &'static str {
        PIPELINES[self.pick(PIPELINES.len())]
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn out(&self) -> String {
        self.lake.path("out")
    }

    fn roles(&self) -> Embedded {
        roles_of(Arc::new(SystemStores::new()), self.store.clone(), self.clock.clone(), |_| {})
    }

    /// Services are the test's own here: it archives and restores.
    fn job(&self, name: &str) -> Pipeline {
        pipeline(json!({
            "name": name,
            "source": [{"name": "src", "path": self.lake.path(name), "start": "snapshot", "num_instants": 2}],
            "target": {
                "path": self.out(), "table_name": "out", "record_key": ["id"], "writers": "shared",
                "services": {"clean_commits": 0, "archive_commits": 0, "compact_metadata_commits": 0,
                             "compact_delta_commits": 0},
            },
        }))
    }

    async fn upsert(&mut self, name: &str) {
        let number = self.number();
        let table = open_value_table(&roles(), &self.lake.path(name)).await;
        table.upsert(vec![values([(format!("{name}{number}"), number as i64)])]).await.unwrap();
    }

    /// Where the commits of a pipeline's source stand.
    async fn places(&self, name: &str) -> Vec<Cursor> {
        let (_, _, timeline) = open(&self.lake.path(name)).await;
        let writes = timeline.completed_writes();
        writes.iter().map(|write| Cursor::Completed(write.completed.clone().unwrap())).collect()
    }

    async fn ask(&self, name: &str, id: &str, flags: &[String]) -> BatchStatus {
        let overrides = flags.iter().map(|flag| flag.parse::<Override>().unwrap()).collect();
        let request = RunRequest { overrides, ..request_of(&self.job(name), id) };
        let roles = self.roles();
        let started = roles.coordinator.run_batch(request).await.unwrap();
        let mut watch = roles.coordinator.watch_batch(&started.name).await.unwrap();
        watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone()
    }

    /// A batch with an id of its own, with every flag that was ever given, and sometimes one more.
    async fn run(&mut self, name: &'static str) {
        let places = self.places(name).await;
        let before = self.kept(name).await;
        let stood = before.last().map(|kept| kept.sources.values().next().unwrap().cursor.clone().unwrap());
        let news = stood.as_ref() != places.last();
        // Only backwards: whoever sets a cursor forward passes over what lies between.
        let read = places.iter().position(|place| Some(place) == stood.as_ref()).map_or(0, |at| at + 1);
        let side = &self.sides[name];
        let mut flags = side.flags.clone();
        let wanted = format!("src={}", places[self.pick(read.max(1))]);
        let fresh = read > 0 && self.pick(3) == 0 && !flags.contains(&wanted);
        if fresh {
            flags.push(wanted.clone());
        }
        let id = RequestId::at(self.clock.now_millis(), u128::from(self.random.next_u64())).to_string();
        let ended = self.ask(name, &id, &flags).await;
        self.say(format!("run {name} {id}, {} flags, a new one: {fresh}", flags.len()));
        if !news && !fresh {
            self.expect(ended.outcome == Some(Outcome::NoNewData), &ended);
            return;
        }
        self.expect(ended.outcome == Some(Outcome::Committed), &ended);
        let begin = ended.sources[0].window.as_ref().unwrap().begin.clone();
        let applied = fresh.then(|| wanted.clone());
        let expected = applied.as_ref().map(|flag| flag.trim_start_matches("src=").parse().unwrap()).or(stood);
        self.expect(begin == expected, &ended);
        let side = self.sides.get_mut(name).unwrap();
        side.flags = flags;
        side.made.push(Made { instant: ended.instant.unwrap(), request: id, applied });
    }

    /// The cursors in the target's commits; there is no target before the first batch.
    async fn kept(&self, name: &str) -> Vec<Checkpoint> {
        if has_table(&self.out()) { checkpoints(&self.out(), name).await } else { Vec::new() }
    }

    /// A request whose commit is still there is answered by that commit.
    async fn send_again(&mut self, name: &'static str) {
        let made = self.sides[name].made.clone();
        if made.is_empty() {
            return;
        }
        let old = &made[self.pick(made.len())];
        // The flags that it was sent with are part of what it asked for.
        let at = made.iter().position(|it| it.request == old.request).unwrap();
        let flags: Vec<String> = made[..=at].iter().filter_map(|it| it.applied.clone()).collect();
        let ended = self.ask(name, &old.request, &flags).await;
        self.say(format!("send {name} {} again", old.request));
        let answered = ended.instant.as_ref() == Some(&old.instant) && ended.outcome == Some(Outcome::Committed);
        self.expect(answered, &ended);
    }

    async fn foreign_commit(&mut self) {
        let number = self.number();
        let rows = values([(format!("foreign{number}"), number as i64)]);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let writer = roles().writer.clone();
        let table = SourceTable::open(&SystemStores::new(), writer, clock, &self.out(), rows.schema()).await.unwrap();
        table.commit(vec![rows], Operation::Upsert).await.unwrap();
        self.say("foreign commit".to_string());
    }

    /// Commits on the active timeline that neither a savepoint nor its being the last keeps there.
    async fn archivable(&self) -> Vec<String> {
        let (_, _, timeline) = open(&self.out()).await;
        let saved = std::fs::read_dir(Path::new(&self.out()).join(".hoodie/timeline")).unwrap().flatten();
        let saved = saved.filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.ends_with(".savepoint").then(|| name.split('_').next().unwrap_or_default().to_string())
        });
        let first_saved = saved.min();
        let mut writes: Vec<String> = timeline.completed_writes().iter().map(|it| it.requested.to_string()).collect();
        writes.sort();
        writes.pop();
        writes.into_iter().take_while(|at| first_saved.as_ref().is_none_or(|saved| at < saved)).collect()
    }

    async fn archive(&mut self) {
        let all = self.archivable().await;
        if all.is_empty() {
            return;
        }
        let taken = 1 + self.pick(all.len());
        let taken: Vec<&str> = all[..taken].iter().map(String::as_str).collect();
        archive_instants(Path::new(&self.out()), &taken);
        self.say(format!("archive up to {}", taken[taken.len() - 1]));
    }

    /// Restores the target to one of the commits on its active timeline.
    async fn restore(&mut self) {
        let (_, _, timeline) = open(&self.out()).await;
        let writes = timeline.completed_writes();
        if writes.len() < 2 {
            return;
        }
        let kept = self.pick(writes.len() - 1);
        let lost: BTreeSet<InstantTime> = writes[kept + 1..].iter().map(|write| write.requested.clone()).collect();
        restore_to(&self.out(), kept).await;
        for side in self.sides.values_mut() {
            side.made.retain(|made| !lost.contains(&made.instant));
            let left: BTreeSet<&String> = side.made.iter().filter_map(|made| made.applied.as_ref()).collect();
            // Whoever restores a target takes the arguments back that belong to what is lost.
            side.flags.retain(|flag| left.contains(flag));
        }
        self.say(format!("restore, {} commits are lost", lost.len()));
    }

    async fn step(&mut self) {
        match self.pick(16) {
            0..=3 => {
                let name = self.side();
                self.upsert(name).await;
                self.say(format!("upsert {name}"));
            }
            4..=8 => {
                let name = self.side();
                self.run(name).await;
            }
            9 | 10 => {
                let name = self.side();
                self.send_again(name).await;
            }
            11 => self.foreign_commit().await,
            12 | 13 => self.archive().await,
            14 => self.restore().await,
            _ if self.pick(2) == 0 => {
                self.clock.advance(BACK_MILLIS);
                self.say("the clock goes back".to_string());
            }
            _ => {
                self.store = Arc::new(MemoryStore::default());
                self.say("a new disk".to_string());
            }
        }
    }

    fn say(&mut self, what: String) {
        self.said.push(what);
    }

    fn expect(&self, holds: bool, ended: &BatchStatus) {
        assert!(holds, "{ended:#?}\nafter {:#?}", self.said);
    }

    /// What must hold after each step, whatever happened.
    async fn check(&self) {
        for (name, side) in &self.sides {
            let kept = checkpoints(&self.out(), name).await;
            let told = |what: &str| format!("{name}: {what} in {kept:#?}\nafter {:#?}", self.said);
            let numbers: Vec<u64> = kept.iter().map(|checkpoint| checkpoint.seq).collect();
            assert_eq!(numbers, (1..=side.made.len() as u64).collect::<Vec<_>>(), "{}", told("sequence numbers"));
            assert!(kept.windows(2).all(|pair| pair[0].epoch <= pair[1].epoch), "{}", told("epochs"));
            let mut cursor = None;
            for (checkpoint, made) in kept.iter().zip(&side.made) {
                check_commit(checkpoint, made, &side.made, cursor.as_ref(), &told("a commit"));
                cursor = checkpoint.sources.values().next().unwrap().cursor.clone();
            }
        }
    }
}

/// One commit of a pipeline: it answers its own request and no other, its window begins where the one before ended or where
/// the override says that it applied, and it carries every override of its past once.
fn check_commit(checkpoint: &Checkpoint, made: &Made, all: &[Made], before: Option<&Cursor>, told: &str) {
    let own: Vec<&str> =
        checkpoint.requests.iter().filter(|it| it.instant == made.instant).map(|it| it.id.as_str()).collect();
    assert_eq!(own, [made.request.as_str()], "{told}");
    let ids: BTreeSet<&str> = checkpoint.requests.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids.len(), checkpoint.requests.len(), "an id twice: {told}");
    let window = checkpoint.sources.values().next().unwrap().window.as_ref().unwrap();
    let expected = made.applied.as_ref().map(|flag| flag.trim_start_matches("src=").parse::<Cursor>().unwrap());
    assert_eq!(window.begin, expected.or(before.cloned()), "{told}");
    let past = all.iter().take_while(|it| it.instant != made.instant).chain([made]);
    let applied: BTreeMap<&String, &InstantTime> =
        past.filter_map(|it| it.applied.as_ref().map(|flag| (flag, &it.instant))).collect();
    assert_eq!(checkpoint.tokens.iter().collect::<BTreeMap<_, _>>(), applied, "{told}");
}

async fn explore(seed: u64) {
    let mut world = World::new(seed).await;
    for name in PIPELINES {
        world.run(name).await;
    }
    for _ in 0..STEPS {
        world.step().await;
        world.check().await;
    }
    // In the end everything arrives, and once more changes nothing.
    for name in PIPELINES {
        // Windows of two commits.
        for _ in 0..world.next / 2 + 2 {
            world.run(name).await;
        }
        world.check().await;
        let source: BTreeSet<String> = rows(&roles(), &world.lake.path(name)).await.into_iter().collect();
        let target: BTreeSet<String> = rows(&roles(), &world.out()).await.into_iter().collect();
        assert!(source.is_subset(&target), "seed {seed}, {name}: {:?}", source.difference(&target));
    }
}

/// One test each, so that a failure names its seed and they run side by side.
macro_rules! seeds {
    ($($name:ident: $seed:literal),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            explore($seed).await;
        })*
    };
}

seeds! {
    cursors_resolve_whatever_happens_around_them_seed_1: 1,
    cursors_resolve_whatever_happens_around_them_seed_2: 2,
    cursors_resolve_whatever_happens_around_them_seed_3: 3,
}

/// As many more histories as asked for: for nights.
#[tokio::test(flavor = "multi_thread")]
async fn cursors_resolve_in_as_many_more_histories_as_asked_for() {
    let wanted = std::env::var("TRIBUTARY_TEST_SEEDS").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    for seed in 100..100 + wanted {
        println!("seed {seed}");
        explore(seed).await;
    }
}
