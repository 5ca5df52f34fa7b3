// SPDX-License-Identifier: Apache-2.0
//! `hdfs://` and `viewfs://` locations, for reading.
//!
//! The client finds the cluster as Hadoop's own does: by `HADOOP_CONF_DIR` or `HADOOP_HOME`, and the user by Kerberos or
//! `HADOOP_USER_NAME`.

use std::sync::Arc;

use hdfs_native_object_store::HdfsObjectStoreBuilder;
use object_store::ObjectStore;
use object_store::path::Path;
use url::Url;

use super::location;
use crate::error::Result;

/// The file system that `url` names. Nothing is asked of it yet.
pub(super) fn open(url: &Url) -> Result<Arc<dyn ObjectStore>> {
    let authority = match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_string(),
        (None, _) => return Err(location(url.as_str(), "it names no cluster: write hdfs://name-node:port/path")),
    };
    let address = format!("{}://{authority}", url.scheme());
    let store = HdfsObjectStoreBuilder::new().with_url(address).build().map_err(|e| location(url.as_str(), e))?;
    Ok(Arc::new(store))
}

/// The path within the file system.
pub(super) fn path_of(url: &Url) -> Result<Path> {
    Path::from_url_path(url.path()).map_err(|e| location(url.as_str(), e))
}
