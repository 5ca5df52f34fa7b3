// SPDX-License-Identifier: Apache-2.0

use std::sync::atomic::{AtomicI64, Ordering};

use object_store::memory::InMemory;
use object_store::path::Path;

use super::*;
use crate::target::LockKind;

#[derive(Debug)]
struct At(AtomicI64);

impl Clock for At {
    fn now_millis(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

struct World {
    storage: Storage,
    time: Arc<At>,
    settings: LeaseSettings,
}

impl World {
    fn new() -> Self {
        let storage = Storage::new(Arc::new(InMemory::new()), Path::from("t"), "memory://t", LockKind::Lease);
        World { storage, time: Arc::new(At(AtomicI64::new(1_000_000))), settings: LeaseSettings::default() }
    }

    async fn take(&self, owner: &str) -> Option<Lease> {
        let clock: Arc<dyn Clock> = Arc::clone(&self.time) as Arc<dyn Clock>;
        acquire(&self.storage, LEASE_FILE, &clock, &self.settings, owner, Duration::ZERO).await.unwrap()
    }

    fn advance(&self, by: Duration) {
        self.time.0.fetch_add(by.as_millis() as i64, Ordering::SeqCst);
    }

    async fn file(&self) -> String {
        String::from_utf8(self.storage.read(LEASE_FILE).await.unwrap().to_vec()).unwrap()
    }

    async fn write(&self, text: &str) {
        self.storage.put(LEASE_FILE, text.as_bytes().to_vec()).await.unwrap();
    }
}

#[tokio::test]
async fn one_holder_at_a_time_and_a_released_lease_is_free_at_once() {
    let world = World::new();
    let held = world.take("a").await.unwrap();
    assert!(world.take("b").await.is_none());
    held.release().await.unwrap();
    assert!(world.file().await.contains(r#""expired":true"#));
    assert!(world.take("b").await.is_some());
}

#[tokio::test]
async fn the_lock_among_our_own_batches_and_the_tables_are_two() {
    let world = World::new();
    let _table = world.take("a").await.unwrap();
    let clock: Arc<dyn Clock> = Arc::clone(&world.time) as Arc<dyn Clock>;
    let take = |owner| acquire(&world.storage, TURN_FILE, &clock, &world.settings, owner, Duration::ZERO);
    let _turn = take("b").await.unwrap().unwrap();
    assert!(take("c").await.unwrap().is_none());
    assert!(world.file().await.contains(r#""owner":"a""#));
}

#[tokio::test]
async fn the_file_is_the_one_that_hudi_writes() {
    let world = World::new();
    let _held = world.take("a").await.unwrap();
    assert_eq!(world.file().await, r#"{"expired":false,"validUntil":1180000,"owner":"a"}"#);
    // As Hudi's own writer leaves it, keys in another order.
    let world = World::new();
    world.write(r#"{"owner":"7c0e","validUntil":1000100,"expired":false}"#).await;
    assert!(world.take("b").await.is_none());
    world.write(r#"{"owner":"7c0e","validUntil":1000100,"expired":true}"#).await;
    assert!(world.take("b").await.is_some());
}

#[tokio::test]
async fn a_dead_holders_lease_is_taken_half_a_second_after_its_end() {
    let world = World::new();
    drop(world.take("a").await.unwrap());
    world.advance(world.settings.valid + Duration::from_millis(500));
    assert!(world.take("b").await.is_none(), "clocks may differ by this much");
    world.advance(Duration::from_millis(1));
    let held = world.take("b").await.unwrap();
    assert_eq!(held.left(), world.settings.valid);
}

#[tokio::test(start_paused = true)]
async fn a_held_lease_is_renewed() {
    let world = World::new();
    let held = world.take("a").await.unwrap();
    for _ in 0..100 {
        world.advance(world.settings.renew_every);
        tokio::time::sleep(world.settings.renew_every).await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(held.left() > world.settings.valid - world.settings.renew_every * 2, "{:?}", held.left());
    assert!(world.take("b").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_else_took_is_lost() {
    let world = World::new();
    let held = world.take("a").await.unwrap();
    // As if this process had been stopped for longer than its lease.
    world.advance(world.settings.valid + Duration::from_secs(1));
    assert_eq!(held.left(), Duration::ZERO);
    let other = world.take("b").await.unwrap();
    held.lost().await;
    assert_eq!(held.left(), Duration::ZERO);
    held.release().await.unwrap();
    assert!(!other.left().is_zero(), "releasing a lost lease leaves the new holder's alone");
    assert!(world.file().await.contains(r#""owner":"b""#));
    assert!(world.file().await.contains(r#""expired":false"#));
}

#[tokio::test]
async fn our_own_lease_whose_answer_was_lost_is_found_again() {
    let world = World::new();
    world.write(r#"{"expired":false,"validUntil":1180000,"owner":"a"}"#).await;
    assert!(world.take("b").await.is_none());
    assert!(world.take("a").await.is_some());
}

#[tokio::test]
async fn a_file_that_is_no_lease_is_an_error_and_stays() {
    let world = World::new();
    world.write("not json").await;
    let clock: Arc<dyn Clock> = Arc::clone(&world.time) as Arc<dyn Clock>;
    let refused = acquire(&world.storage, LEASE_FILE, &clock, &world.settings, "a", Duration::ZERO).await;
    let refused = refused.err().unwrap();
    assert!(refused.to_string().contains("table_lock.json"), "{refused}");
    assert_eq!(world.file().await, "not json");
}
