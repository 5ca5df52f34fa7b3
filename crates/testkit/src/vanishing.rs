// SPDX-License-Identifier: Apache-2.0
//! A store in which a file goes away between the plan that pins it and the read.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use tributary_hudi::{Storage, Stores};

/// Which reads find nothing, and what happens meanwhile.
pub struct Vanishing {
    fragment: String,
    times: usize,
    missed: AtomicUsize,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Vanishing {
    /// The first `times` reads of data files whose path holds `fragment` find nothing; before the first of them answers,
    /// `meanwhile` happens. Listings and questions for a file's size are answered as ever.
    pub fn new(fragment: &str, times: usize, meanwhile: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Arc::new(Vanishing {
            fragment: fragment.to_string(),
            times,
            missed: AtomicUsize::new(0),
            meanwhile: Mutex::new(Some(Box::new(meanwhile))),
        })
    }

    /// How many reads found nothing.
    pub fn missed(&self) -> usize {
        self.missed.load(Ordering::SeqCst)
    }

    fn misses(&self, location: &Path) -> bool {
        let path = location.as_ref();
        if !path.ends_with(".parquet") || path.contains("/.hoodie/") || !path.contains(&self.fragment) {
            return false;
        }
        let within = |missed: usize| (missed < self.times).then_some(missed + 1);
        if self.missed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, within).is_err() {
            return false;
        }
        let meanwhile = self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(happens) = meanwhile {
            happens();
        }
        true
    }
}

/// Opens the stores of another [`Stores`] with files vanishing in them.
pub struct VanishingStores {
    inner: Arc<dyn Stores>,
    vanishing: Arc<Vanishing>,
}

impl VanishingStores {
    /// Stores of `inner`.
    pub fn new(inner: Arc<dyn Stores>, vanishing: Arc<Vanishing>) -> Self {
        VanishingStores { inner, vanishing }
    }
}

impl Stores for VanishingStores {
    fn open(&self, url: &str) -> tributary_hudi::Result<Storage> {
        let storage = self.inner.open(url)?;
        let store = VanishingStore { inner: storage.store(), vanishing: Arc::clone(&self.vanishing) };
        Ok(storage.with_store(Arc::new(store)))
    }
}

struct VanishingStore {
    inner: Arc<dyn ObjectStore>,
    vanishing: Arc<Vanishing>,
}

impl fmt::Debug for VanishingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vanishing {:?}", self.inner)
    }
}

impl fmt::Display for VanishingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vanishing {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for VanishingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !options.head && self.vanishing.misses(location) {
            return Err(object_store::Error::NotFound { path: location.to_string(), source: "vanished".into() });
        }
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
}
