// SPDX-License-Identifier: Apache-2.0
//! A store that writes down what is asked of it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tributary_hudi::{Storage, Stores};

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// Reads bytes of a file.
    Read,
    /// Asks whether a file is there, and how large.
    Look,
    /// Lists files.
    List,
    /// Changes something.
    Change,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub does: Does,
    /// To which file, or below which directory.
    pub path: String,
}

impl Operation {
    /// Whether it reads bytes of a data file: of one that is neither on a timeline nor of a metadata table.
    pub fn reads_data(&self) -> bool {
        self.does == Does::Read && !self.path.contains("/.hoodie/")
    }
}

/// What was asked of all stores of one run.
#[derive(Debug, Default)]
pub struct Recording {
    operations: Mutex<Vec<Operation>>,
}

impl Recording {
    /// Nothing was asked yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What was asked since this was called last.
    pub fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut *self.operations.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, does: Does, path: Option<&Path>) {
        let operation = Operation { does, path: path.map(ToString::to_string).unwrap_or_default() };
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
    }
}

/// Opens the stores of another [`Stores`], recorded.
pub struct RecordedStores {
    inner: Arc<dyn Stores>,
    recording: Arc<Recording>,
}

impl RecordedStores {
    /// Stores of `inner`.
    pub fn new(inner: Arc<dyn Stores>, recording: Arc<Recording>) -> Self {
        RecordedStores { inner, recording }
    }
}

impl Stores for RecordedStores {
    fn open(&self, url: &str) -> tributary_hudi::Result<Storage> {
        let storage = self.inner.open(url)?;
        let store = RecordedStore { inner: storage.store(), recording: Arc::clone(&self.recording) };
        Ok(storage.with_store(Arc::new(store)))
    }
}

#[derive(Debug)]
struct RecordedStore {
    inner: Arc<dyn ObjectStore>,
    recording: Arc<Recording>,
}

impl fmt::Display for RecordedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recorded {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for RecordedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.recording.note(Does::Change, Some(location));
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.recording.note(Does::Change, Some(location));
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.recording.note(if options.head { Does::Look } else { Does::Read }, Some(location));
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let recording = Arc::clone(&self.recording);
        let noted = locations.inspect(move |location| recording.note(Does::Change, location.as_ref().ok()));
        self.inner.delete_stream(noted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.recording.note(Does::List, prefix);
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.recording.note(Does::List, prefix);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.recording.note(Does::Change, Some(to));
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.recording.note(Does::Change, Some(to));
        self.inner.rename_opts(from, to, options).await
    }
}
