// SPDX-License-Identifier: Apache-2.0
//! Stores by URL: local disks and the object stores of the clouds.

#[cfg(feature = "hdfs")]
mod hdfs;

use std::collections::HashMap;
use std::path::{Component, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

use crate::error::{Error, Result};
use crate::storage::{Storage, Stores};
use crate::target::LockKind;

/// Longest time that making a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How object stores are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSettings {
    /// How long one request may take, and how long a request that fails is repeated. So a store that does not answer
    /// is given up after at most twice this time.
    pub timeout: Duration,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings { timeout: Duration::from_secs(30) }
    }
}

impl StoreSettings {
    /// The library would go on for three minutes, which looks as if a batch had stopped for good.
    fn retry(&self) -> RetryConfig {
        RetryConfig { retry_timeout: self.timeout, ..RetryConfig::default() }
    }

    /// Settings one by one: options as a whole would replace those that the environment gives.
    fn client(&self) -> [(ClientConfigKey, String); 2] {
        let text = |time: Duration| format!("{}ms", time.as_millis());
        [
            (ClientConfigKey::Timeout, text(self.timeout)),
            (ClientConfigKey::ConnectTimeout, text(self.timeout.min(CONNECT_WITHIN))),
        ]
    }
}

/// Why tables on HDFS are sources only. Its files cannot be replaced under a condition, which the lease that
/// shares a table with Hudi's own writers is made of.
const HDFS_READ_ONLY: &str = "tables on HDFS can be read but not written: put the target on a local disk or an object \
                              store";

/// Opens local directories, `s3://`, `gs://`, `az://` and (built with the feature `hdfs`) `hdfs://` locations.
/// Credentials and endpoints come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`, `HADOOP_…`), never from a URL.
#[derive(Debug, Default)]
pub struct SystemStores {
    settings: StoreSettings,
    // One client per bucket: it holds the connections.
    opened: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

impl SystemStores {
    /// No store is opened yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with other settings.
    pub fn with_settings(settings: StoreSettings) -> Self {
        SystemStores { settings, ..Self::default() }
    }

    fn remote(&self, url: &Url) -> Result<(Arc<dyn ObjectStore>, Path)> {
        refuse_credentials(url)?;
        let (scheme, base) = ObjectStoreScheme::parse(url).map_err(|e| location(url.as_str(), e))?;
        let bucket = format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
        let build = || build(scheme, url, &self.settings).map_err(|e| location(url.as_str(), e));
        Ok((self.opened_once(bucket, build)?, base))
    }

    #[cfg(feature = "hdfs")]
    fn cluster(&self, url: &Url) -> Result<(Arc<dyn ObjectStore>, Path)> {
        refuse_credentials(url)?;
        let cluster = url[..url::Position::BeforePath].to_string();
        Ok((self.opened_once(cluster, || hdfs::open(url))?, hdfs::path_of(url)?))
    }

    #[cfg(not(feature = "hdfs"))]
    fn cluster(&self, url: &Url) -> Result<(Arc<dyn ObjectStore>, Path)> {
        Err(location(url.as_str(), "this `tributary` was built without HDFS: build it with the feature `hdfs`"))
    }

    fn opened_once(
        &self,
        place: String,
        build: impl FnOnce() -> Result<Arc<dyn ObjectStore>>,
    ) -> Result<Arc<dyn ObjectStore>> {
        let mut opened = self.opened.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(store) = opened.get(&place) {
            return Ok(Arc::clone(store));
        }
        let store = build()?;
        opened.insert(place, Arc::clone(&store));
        Ok(store)
    }
}

fn refuse_credentials(url: &Url) -> Result<()> {
    if url.password().is_some() || !url.username().is_empty() {
        return Err(location(url.as_str(), "credentials do not belong into a URL: set them in the environment"));
    }
    Ok(())
}

/// Settings come from variables of the store's own prefix only: a variable like `TOKEN` of somebody else's must not
/// become a credential.
fn build(scheme: ObjectStoreScheme, url: &Url, settings: &StoreSettings) -> object_store::Result<Arc<dyn ObjectStore>> {
    let url = url.as_str();
    let retry = settings.retry();
    Ok(match scheme {
        ObjectStoreScheme::GoogleCloudStorage => {
            let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(retry);
            for (key, value) in settings.client() {
                builder = builder.with_config(GoogleConfigKey::Client(key), value);
            }
            Arc::new(builder.build()?)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_url(url).with_retry(retry);
            for (key, value) in settings.client() {
                builder = builder.with_config(AzureConfigKey::Client(key), value);
            }
            Arc::new(builder.build()?)
        }
        _ => {
            let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(retry);
            for (key, value) in settings.client() {
                builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
            }
            Arc::new(builder.build()?)
        }
    })
}

impl Stores for SystemStores {
    fn open(&self, url: &str) -> Result<Storage> {
        match Url::parse(url) {
            Ok(parsed) if parsed.scheme() == "file" => {
                let path = parsed.to_file_path().map_err(|()| location(url, "it is no local path"))?;
                open_local(url, path)
            }
            Ok(parsed) if matches!(parsed.scheme(), "s3" | "s3a" | "gs" | "az" | "abfs" | "abfss") => {
                let (store, base) = self.remote(&parsed)?;
                Ok(Storage::new(store, base, url.trim_end_matches('/'), LockKind::Lease))
            }
            Ok(parsed) if matches!(parsed.scheme(), "hdfs" | "viewfs") => {
                let (store, base) = self.cluster(&parsed)?;
                Ok(Storage::new(store, base, url.trim_end_matches('/'), LockKind::Unavailable(HDFS_READ_ONLY)))
            }
            Ok(parsed) => Err(location(
                url,
                format!(
                    "scheme `{}` is not supported: use a path, file://, s3://, gs://, az:// or hdfs://",
                    parsed.scheme()
                ),
            )),
            Err(url::ParseError::RelativeUrlWithoutBase) => open_local(url, PathBuf::from(url)),
            Err(e) => Err(location(url, e)),
        }
    }
}

fn open_local(url: &str, path: PathBuf) -> Result<Storage> {
    if url.trim().is_empty() {
        return Err(location(url, "it is empty"));
    }
    let absolute = std::path::absolute(&path)
        .map_err(|source| Error::Disk { doing: format!("resolving `{}`", path.display()), source })?;
    if absolute.components().any(|part| part == Component::ParentDir) {
        return Err(location(url, "`..` is not allowed in a table's path"));
    }
    let base = Path::from_absolute_path(&absolute).map_err(|e| location(url, e))?;
    // A directory of markers is left empty by each batch: without this they would pile up.
    let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new().with_automatic_cleanup(true));
    Ok(Storage::new(store, base, url.trim_end_matches('/'), LockKind::File(absolute)))
}

fn location(url: &str, detail: impl std::fmt::Display) -> Error {
    Error::Location { url: without_secrets(url), detail: detail.to_string() }
}

/// The URL without user and password: messages end up in logs.
fn without_secrets(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            match authority.rsplit_once('@') {
                Some((_, host)) => format!("{scheme}://***@{host}{path}"),
                None => url.to_string(),
            }
        }
        None => url.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        let refused = SystemStores::new().open("s3://key:secretpw@bucket/table").unwrap_err().to_string();
        assert!(refused.contains("s3://***@bucket/table") && refused.contains("environment"), "{refused}");
        assert!(!refused.contains("secretpw"), "{refused}");
        let refused = SystemStores::new().open("hdfs://me:secretpw@name-node/table").unwrap_err().to_string();
        assert!(refused.contains("hdfs://***@name-node/table") && !refused.contains("secretpw"), "{refused}");
    }

    #[cfg(feature = "hdfs")]
    #[test]
    fn tables_on_hdfs_can_be_read_and_not_written() {
        let storage = SystemStores::new().open("hdfs://name-node:9000/lake/orders").unwrap();
        assert_eq!(storage.path(".hoodie").unwrap().as_ref(), "lake/orders/.hoodie");
        let refused = storage.check_writable().unwrap_err().to_string();
        assert!(refused.contains("can be read but not written"), "{refused}");
    }
}
