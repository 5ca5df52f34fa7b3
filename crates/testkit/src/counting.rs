// SPDX-License-Identifier: Apache-2.0
//! A store that remembers what was asked of it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use tributary_hudi::{Storage, Stores};

/// What kind of request it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// For the content of a file, or a part of it.
    Read,
    /// Whether a file is there, and how large.
    Head,
    /// For the files in a directory; many pages count as one.
    List,
    /// A change of any kind.
    Change,
}

/// Every request to the stores of one run, in order, with the path that it was about.
#[derive(Debug, Default)]
pub struct Requests {
    seen: Mutex<Vec<(Asked, String)>>,
}

impl Requests {
    /// None yet.
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    /// What was asked since the last call.
    pub fn take(&self) -> Vec<(Asked, String)> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, asked: Asked, path: &str) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push((asked, path.to_string()));
    }
}

/// Opens the stores of another [`Stores`] and notes every request to them.
pub struct CountingStores {
    inner: Arc<dyn Stores>,
    requests: Arc<Requests>,
}

impl CountingStores {
    /// Stores of `inner`.
    pub fn new(inner: Arc<dyn Stores>, requests: Arc<Requests>) -> Self {
        CountingStores { inner, requests }
    }
}

impl Stores for CountingStores {
    fn open(&self, url: &str) -> tributary_hudi::Result<Storage> {
        let storage = self.inner.open(url)?;
        let store = CountingStore { inner: storage.store(), requests: Arc::clone(&self.requests) };
        Ok(storage.with_store(Arc::new(store)))
    }
}

#[derive(Debug)]
struct CountingStore {
    inner: Arc<dyn ObjectStore>,
    requests: Arc<Requests>,
}

impl fmt::Display for CountingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counting {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for CountingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.requests.note(Asked::Change, location.as_ref());
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.requests.note(Asked::Change, location.as_ref());
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.requests.note(if options.head { Asked::Head } else { Asked::Read }, location.as_ref());
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let requests = Arc::clone(&self.requests);
        let noted = locations.inspect(move |location| {
            if let Ok(location) = location {
                requests.note(Asked::Change, location.as_ref());
            }
        });
        self.inner.delete_stream(noted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.requests.note(Asked::List, prefix.map_or("", AsRef::as_ref));
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.requests.note(Asked::List, prefix.map_or("", AsRef::as_ref));
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.requests.note(Asked::Change, to.as_ref());
        self.inner.copy_opts(from, to, options).await
    }
}
