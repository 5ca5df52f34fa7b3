// SPDX-License-Identifier: Apache-2.0
//! One table's files behind one injectable object store.
//!
//! Every path is relative to the table's base path and is used as it stands: a percent sign in a partition path is
//! part of the directory's name, never an escape.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};

use crate::error::{Error, Result};
use crate::target::LockKind;

/// How many store requests of one kind are under way at once.
pub const REQUESTS_AT_ONCE: usize = 16;

/// Opens the store of a location. Tests inject their own.
pub trait Stores: Send + Sync {
    /// The files below `url`.
    fn open(&self, url: &str) -> Result<Storage>;

    /// Refuses a location that is no store's, a topic say, where locations are restricted.
    fn check(&self, _url: &str) -> Result<()> {
        Ok(())
    }
}

/// The files of one table.
#[derive(Debug, Clone)]
pub struct Storage {
    store: Arc<dyn ObjectStore>,
    base: Path,
    url: Arc<str>,
    lock: LockKind,
}

/// One file of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path relative to the table.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Last modification, milliseconds since the epoch, by the store's clock.
    pub modified_millis: i64,
    /// What the store calls this content, where it says.
    pub e_tag: Option<String>,
}

impl Entry {
    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// What became of a put-if-absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutNew {
    /// The file was not there and is now.
    Created,
    /// A file of that name was there; it was not touched.
    Exists,
}

/// Which writing of a file was read, for a replacement that must not overwrite a later one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    e_tag: Option<String>,
    version: Option<String>,
}

impl Version {
    fn condition(self) -> PutMode {
        PutMode::Update(UpdateVersion { e_tag: self.e_tag, version: self.version })
    }
}

impl Storage {
    /// Files below `base` of `store`; `lock` is how writers of such a table exclude each other.
    pub fn new(store: Arc<dyn ObjectStore>, base: Path, url: impl Into<Arc<str>>, lock: LockKind) -> Self {
        Storage { store, base, url: url.into(), lock }
    }

    /// The same files behind another store: how tests put faults between.
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn ObjectStore>) -> Self {
        self.store = store;
        self
    }

    /// Base path or URL of the table, as it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How writers of the table exclude each other.
    pub fn lock_kind(&self) -> LockKind {
        self.lock.clone()
    }

    /// Fails where tables cannot be written, so that a batch need not begin to find out.
    pub fn check_writable(&self) -> Result<()> {
        match &self.lock {
            LockKind::Unavailable(why) => Err(Error::ReadOnly { url: self.url.to_string(), why }),
            LockKind::File(_) | LockKind::Process(_) | LockKind::Lease => Ok(()),
        }
    }

    /// Whether it is certain that there is no directory: on a local disk, where that differs from an empty one.
    pub fn lacks_directory(&self) -> bool {
        matches!(&self.lock, LockKind::File(directory) if !directory.is_dir())
    }

    /// Whether an empty directory differs from one that is not there.
    pub fn tells_directories(&self) -> bool {
        matches!(&self.lock, LockKind::File(_))
    }

    /// Whether both are one place: symbolic links, `.` and trailing slashes make no difference.
    pub fn is_at(&self, other: &Storage) -> bool {
        match (&self.lock, &other.lock) {
            (LockKind::File(left), LockKind::File(right)) => {
                left == right
                    || std::fs::canonicalize(left)
                        .is_ok_and(|left| std::fs::canonicalize(right).is_ok_and(|right| left == right))
            }
            _ => self.url == other.url,
        }
    }

    /// The store itself, for parquet readers and writers.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.store)
    }

    /// The store's path of a file of the table.
    pub fn path(&self, relative: &str) -> Result<Path> {
        let full = match (self.base.as_ref().is_empty(), relative.is_empty()) {
            (true, _) => relative.to_string(),
            (false, true) => self.base.to_string(),
            (false, false) => format!("{}/{relative}", self.base),
        };
        Path::parse(&full).map_err(|e| Error::Location { url: full.clone(), detail: e.to_string() })
    }

    /// A whole file; `None` when it does not exist.
    pub async fn get(&self, relative: &str) -> Result<Option<Bytes>> {
        let path = self.path(relative)?;
        let doing = || format!("reading `{relative}`");
        match self.store.get_opts(&path, GetOptions::default()).await {
            Ok(found) => Ok(Some(found.bytes().await.map_err(|source| Error::Store { doing: doing(), source })?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(Error::Store { doing: doing(), source }),
        }
    }

    /// A part of a file, and what the file was when it was read; `None` when it does not exist. A part beyond the file's
    /// end is an error of the store.
    pub async fn get_part(&self, relative: &str, range: Range<u64>) -> Result<Option<(Bytes, Entry)>> {
        let path = self.path(relative)?;
        let failed = |source| Error::Store { doing: format!("reading `{relative}`"), source };
        let options = GetOptions { range: Some(range.into()), ..GetOptions::default() };
        match self.store.get_opts(&path, options).await {
            Ok(found) => {
                let entry = self.entry(&found.meta);
                Ok(Some((found.bytes().await.map_err(failed)?, entry)))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(failed(source)),
        }
    }

    /// A whole file that must exist.
    pub async fn read(&self, relative: &str) -> Result<Bytes> {
        self.get(relative).await?.ok_or_else(|| Error::Gone { file: relative.to_string() })
    }

    /// Size and time of a file; `None` when it does not exist.
    pub async fn head(&self, relative: &str) -> Result<Option<Entry>> {
        let path = self.path(relative)?;
        match self.store.head(&path).await {
            Ok(meta) => Ok(Some(self.entry(&meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(Error::Store { doing: format!("looking for `{relative}`"), source }),
        }
    }

    /// Writes a file, replacing what was there.
    pub async fn put(&self, relative: &str, bytes: impl Into<Bytes>) -> Result<()> {
        let path = self.path(relative)?;
        self.store
            .put(&path, PutPayload::from_bytes(bytes.into()))
            .await
            .map(drop)
            .map_err(|source| Error::Store { doing: format!("writing `{relative}`"), source })
    }

    /// Writes a file only if none of that name exists; the store decides atomically.
    pub async fn put_new(&self, relative: &str, bytes: impl Into<Bytes>) -> Result<PutNew> {
        let path = self.path(relative)?;
        let options = PutOptions::from(PutMode::Create);
        match self.store.put_opts(&path, PutPayload::from_bytes(bytes.into()), options).await {
            Ok(_) => Ok(PutNew::Created),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(PutNew::Exists)
            }
            Err(source) => Err(Error::Store { doing: format!("creating `{relative}`"), source }),
        }
    }

    /// A whole file and its version; `None` when it does not exist.
    pub async fn get_versioned(&self, relative: &str) -> Result<Option<(Bytes, Version)>> {
        let path = self.path(relative)?;
        let failed = |source| Error::Store { doing: format!("reading `{relative}`"), source };
        match self.store.get_opts(&path, GetOptions::default()).await {
            Ok(found) => {
                let version = Version { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
                Ok(Some((found.bytes().await.map_err(failed)?, version)))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(failed(source)),
        }
    }

    /// Writes a file only over the version that was read, or where there was none; the store decides atomically.
    /// `None`: somebody else wrote or removed it meanwhile, and nothing was written.
    pub async fn put_over(
        &self,
        relative: &str,
        bytes: impl Into<Bytes>,
        over: Option<Version>,
    ) -> Result<Option<Version>> {
        let path = self.path(relative)?;
        let options = PutOptions::from(over.map_or(PutMode::Create, Version::condition));
        match self.store.put_opts(&path, PutPayload::from_bytes(bytes.into()), options).await {
            Ok(put) => Ok(Some(Version { e_tag: put.e_tag, version: put.version })),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. }
                | object_store::Error::NotFound { .. },
            ) => Ok(None),
            Err(source) => Err(Error::Store { doing: format!("replacing `{relative}`"), source }),
        }
    }

    /// Deletes a file; one that does not exist is fine.
    pub async fn delete(&self, relative: &str) -> Result<()> {
        let path = self.path(relative)?;
        match self.store.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(Error::Store { doing: format!("deleting `{relative}`"), source }),
        }
    }

    /// Every file below a directory, at any depth, in no order. A directory that does not exist has none.
    pub async fn list(&self, directory: &str) -> Result<Vec<Entry>> {
        let path = self.path(directory)?;
        let listed: Vec<ObjectMeta> = self
            .store
            .list(Some(&path))
            .try_collect()
            .await
            .map_err(|source| Error::Store { doing: format!("listing `{directory}`"), source })?;
        Ok(listed.iter().map(|meta| self.entry(meta)).collect())
    }

    /// Files and sub-directories directly in a directory: paths relative to the table.
    pub async fn list_level(&self, directory: &str) -> Result<(Vec<Entry>, Vec<String>)> {
        let path = self.path(directory)?;
        let listed = match self.store.list_with_delimiter(Some(&path)).await {
            Ok(listed) => listed,
            Err(object_store::Error::NotFound { .. }) => return Ok((Vec::new(), Vec::new())),
            Err(source) => {
                return Err(Error::Store { doing: format!("listing `{directory}`"), source });
            }
        };
        let files = listed.objects.iter().map(|meta| self.entry(meta)).collect();
        let directories = listed.common_prefixes.iter().map(|prefix| self.relative(prefix)).collect();
        Ok((files, directories))
    }

    /// Reads many files at once; the order of the answers is the order of the names.
    pub async fn read_all(&self, files: &[String]) -> Result<Vec<Option<Bytes>>> {
        // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
        let reads: Vec<_> = files.iter().map(|file| self.get(file)).collect();
        futures::stream::iter(reads).buffered(REQUESTS_AT_ONCE).try_collect().await
    }

    fn entry(&self, meta: &ObjectMeta) -> Entry {
        Entry {
            path: self.relative(&meta.location),
            bytes: meta.size,
            modified_millis: meta.last_modified.timestamp_millis(),
            e_tag: meta.e_tag.clone(),
        }
    }

    fn relative(&self, path: &Path) -> String {
        let full = path.as_ref();
        let base = self.base.as_ref();
        let rest = if base.is_empty() { full } else { full.strip_prefix(base).unwrap_or(full) };
        rest.trim_start_matches('/').to_string()
    }
}
