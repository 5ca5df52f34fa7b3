// SPDX-License-Identifier: Apache-2.0
//! A store whose operations can be made to fail one by one.
//!
//! Every operation that changes the store has a number, counted from 0 in the order in which they begin. A plan says
//! at which number what goes wrong. After a crash every further operation fails, reads included, as for a process
//! that is dead; opening the same data through a fresh plan is the restart.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tributary_hudi::{Storage, Stores};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies before the operation reaches the store.
    CrashBefore,
    /// The operation is done, then the process dies.
    CrashAfter,
    /// The operation is done, and its answer is lost; the process lives on.
    ReplyLost,
    /// The operation fails without being done; once.
    FailOnce,
    /// This operation and all later changes fail without being done.
    FailAlways,
}

/// Every fault, for exhaustive exploration.
pub const FAULTS: [Fault; 5] =
    [Fault::CrashBefore, Fault::CrashAfter, Fault::ReplyLost, Fault::FailOnce, Fault::FailAlways];

/// Which operation goes wrong, and how. Shared by all stores of one run.
#[derive(Debug, Default)]
pub struct FaultPlan {
    at: Option<(u64, Fault)>,
    next: AtomicU64,
    dead: AtomicBool,
}

impl FaultPlan {
    /// Nothing goes wrong; operations are counted.
    pub fn none() -> Arc<Self> {
        Arc::new(FaultPlan::default())
    }

    /// Operation `number` goes wrong.
    pub fn at(number: u64, fault: Fault) -> Arc<Self> {
        Arc::new(FaultPlan { at: Some((number, fault)), ..FaultPlan::default() })
    }

    /// Changing operations so far.
    pub fn operations(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    fn check_alive(&self) -> Result<()> {
        if self.dead.load(Ordering::SeqCst) { Err(injected("the process is dead")) } else { Ok(()) }
    }

    /// What happens to the next changing operation.
    fn next(&self) -> Result<Verdict> {
        self.check_alive()?;
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let Some((at, fault)) = self.at else { return Ok(Verdict::Do) };
        match fault {
            Fault::FailAlways if number >= at => Err(injected("the store refuses every change")),
            _ if number != at => Ok(Verdict::Do),
            Fault::CrashBefore => {
                self.dead.store(true, Ordering::SeqCst);
                Err(injected("crash before the operation"))
            }
            Fault::FailOnce | Fault::FailAlways => Err(injected("the operation failed")),
            Fault::CrashAfter => Ok(Verdict::DoThenCrash),
            Fault::ReplyLost => Ok(Verdict::DoThenLose),
        }
    }

    fn after<T>(&self, verdict: Verdict, result: Result<T>) -> Result<T> {
        match verdict {
            Verdict::Do => result,
            Verdict::DoThenLose => result.and_then(|_| Err(injected("the answer was lost"))),
            Verdict::DoThenCrash => {
                self.dead.store(true, Ordering::SeqCst);
                result.and_then(|_| Err(injected("crash after the operation")))
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Verdict {
    Do,
    DoThenLose,
    DoThenCrash,
}

fn injected(what: &str) -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: what.to_string().into() }
}

/// Opens the stores of another [`Stores`] behind a fault plan.
pub struct FaultyStores {
    inner: Arc<dyn Stores>,
    plan: Arc<FaultPlan>,
}

impl FaultyStores {
    /// Stores of `inner` under `plan`.
    pub fn new(inner: Arc<dyn Stores>, plan: Arc<FaultPlan>) -> Self {
        FaultyStores { inner, plan }
    }
}

impl Stores for FaultyStores {
    fn open(&self, url: &str) -> tributary_hudi::Result<Storage> {
        let storage = self.inner.open(url)?;
        let store = FaultyStore { inner: storage.store(), plan: Arc::clone(&self.plan) };
        Ok(storage.with_store(Arc::new(store)))
    }
}

#[derive(Debug)]
struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    plan: Arc<FaultPlan>,
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let verdict = self.plan.next()?;
        let result = self.inner.put_opts(location, payload, opts).await;
        self.plan.after(verdict, result)
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.plan.check_alive()?;
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(FaultyUpload { inner, plan: Arc::clone(&self.plan) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.plan.check_alive()?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, plan) = (Arc::clone(&self.inner), Arc::clone(&self.plan));
        locations
            .then(move |location| {
                let (inner, plan) = (Arc::clone(&inner), Arc::clone(&plan));
                async move {
                    let location = location?;
                    let verdict = plan.next()?;
                    let one = futures::stream::once(async move { Ok(location) }).boxed();
                    let result = match inner.delete_stream(one).next().await {
                        Some(result) => result,
                        None => Err(injected("the store did not answer")),
                    };
                    plan.after(verdict, result)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if let Err(dead) = self.plan.check_alive() {
            return futures::stream::once(async move { Err(dead) }).boxed();
        }
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.plan.check_alive()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let verdict = self.plan.next()?;
        let result = self.inner.copy_opts(from, to, options).await;
        self.plan.after(verdict, result)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let verdict = self.plan.next()?;
        let result = self.inner.rename_opts(from, to, options).await;
        self.plan.after(verdict, result)
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    plan: Arc<FaultPlan>,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> object_store::UploadPart {
        // Parts are invisible until the upload completes: only that is a change.
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let verdict = self.plan.next()?;
        let result = self.inner.complete().await;
        self.plan.after(verdict, result)
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

/// Reads everything of a store below its base, for comparisons.
pub async fn all_files(storage: &Storage) -> Vec<(String, Bytes)> {
    let mut files = Vec::new();
    for entry in storage.list("").await.expect("the table can be listed") {
        let bytes = storage.read(&entry.path).await.expect("a listed file can be read");
        files.push((entry.path, bytes));
    }
    files.sort();
    files
}
