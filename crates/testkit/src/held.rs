// SPDX-License-Identifier: Apache-2.0
//! A store on which some operations take as long as the test wants.
//!
//! An operation that began is on its way: it is done once it is let go, also when whoever waited for it has gone.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tokio::sync::watch;
use tributary_hudi::{Storage, Stores};

/// Which writes are held back, and until when. Shared by all stores of one run.
#[derive(Debug)]
pub struct Hold {
    suffix: String,
    held: watch::Sender<usize>,
    released: watch::Sender<bool>,
}

impl Hold {
    /// Holds every write back whose path ends with `suffix`.
    pub fn of(suffix: &str) -> Arc<Self> {
        Arc::new(Hold { suffix: suffix.to_string(), held: watch::channel(0).0, released: watch::channel(false).0 })
    }

    /// Waits until so many writes are held back.
    pub async fn reached(&self, writes: usize) {
        let mut held = self.held.subscribe();
        // The sender lives as long as `self`.
        let _ = held.wait_for(|held| *held >= writes).await;
    }

    /// Lets all writes go, those that are held back and those to come.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    async fn pass(&self, path: &Path) {
        if !path.as_ref().ends_with(&self.suffix) {
            return;
        }
        self.held.send_modify(|held| *held += 1);
        let mut released = self.released.subscribe();
        let _ = released.wait_for(|released| *released).await;
    }
}

/// Opens the stores of another [`Stores`] behind a hold.
pub struct HeldStores {
    inner: Arc<dyn Stores>,
    hold: Arc<Hold>,
}

impl HeldStores {
    /// Stores of `inner` whose writes `hold` may hold back.
    pub fn new(inner: Arc<dyn Stores>, hold: Arc<Hold>) -> Self {
        HeldStores { inner, hold }
    }
}

impl Stores for HeldStores {
    fn open(&self, url: &str) -> tributary_hudi::Result<Storage> {
        let storage = self.inner.open(url)?;
        let store = HeldStore { inner: storage.store(), hold: Arc::clone(&self.hold) };
        Ok(storage.with_store(Arc::new(store)))
    }
}

#[derive(Debug)]
struct HeldStore {
    inner: Arc<dyn ObjectStore>,
    hold: Arc<Hold>,
}

impl fmt::Display for HeldStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "held {}", self.inner)
    }
}

fn lost(error: tokio::task::JoinError) -> Error {
    Error::Generic { store: "held", source: Box::new(error) }
}

#[async_trait]
impl ObjectStore for HeldStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let (inner, hold, location) = (Arc::clone(&self.inner), Arc::clone(&self.hold), location.clone());
        let put = async move {
            hold.pass(&location).await;
            inner.put_opts(&location, payload, opts).await
        };
        tokio::spawn(put).await.map_err(lost)?
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.hold.pass(location).await;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}
