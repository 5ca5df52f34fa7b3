// SPDX-License-Identifier: Apache-2.0
//! A store that lists a file which is not there any more: what a reader sees whose listing an archiver overtook.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tributary_hudi::Storage;

/// A file that is listed whether it is there or not.
#[derive(Debug)]
pub struct Ghost(ObjectMeta);

impl Ghost {
    /// Remembers a file of a table as it is now.
    ///
    /// # Panics
    /// When it is not there.
    pub async fn of(storage: &Storage, relative: &str) -> Arc<Self> {
        let path = storage.path(relative).unwrap_or_else(|e| panic!("{relative}: {e}"));
        Arc::new(Ghost(storage.store().head(&path).await.unwrap_or_else(|e| panic!("{relative}: {e}"))))
    }

    /// The same table, with the file in its listing.
    pub fn haunt(self: &Arc<Self>, storage: Storage) -> Storage {
        let store = HauntedStore { inner: storage.store(), ghost: Arc::clone(self) };
        storage.with_store(Arc::new(store))
    }
}

#[derive(Debug)]
struct HauntedStore {
    inner: Arc<dyn ObjectStore>,
    ghost: Arc<Ghost>,
}

impl fmt::Display for HauntedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "haunted {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for HauntedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
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
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        let ghost = &self.ghost.0;
        let parent = ghost.location.as_ref().rsplit_once('/').map(|(parent, _)| parent);
        let here = prefix.map(AsRef::<str>::as_ref) == parent;
        if here && !listed.objects.iter().any(|object| object.location == ghost.location) {
            listed.objects.push(ghost.clone());
        }
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}
