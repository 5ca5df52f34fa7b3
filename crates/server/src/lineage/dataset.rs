// SPDX-License-Identifier: Apache-2.0
//! What a table, a directory or a topic is called in events: its namespace is where it is kept, as OpenLineage names
//! such places.

use tributary_types::pipeline::Source;

/// A dataset by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dataset {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Dataset {
    pub(super) fn of_source(source: &Source) -> Self {
        match source.topic_source() {
            Some(topic) => Dataset {
                // Any broker tells the others: the first one names the cluster.
                namespace: format!("kafka://{}", topic.brokers.split(',').next().unwrap_or_default().trim()),
                name: topic.topic.clone(),
            },
            None => Dataset::of_url(&source.url()),
        }
    }

    /// The dataset at a path or URL. User names, passwords, queries and fragments are no part of it.
    pub(super) fn of_url(url: &str) -> Self {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Dataset { namespace: "file".to_string(), name: url.to_string() };
        };
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // In `abfss://container@account` the first part is no user.
        let host = match scheme {
            "abfs" | "abfss" | "az" | "adl" => authority,
            _ => authority.rsplit('@').next().unwrap_or_default(),
        };
        // A password never is, whatever the scheme.
        let host = match host.split_once('@') {
            Some((first, second)) => format!("{}@{second}", first.split(':').next().unwrap_or_default()),
            None => host.to_string(),
        };
        let path = path.trim_end_matches('/');
        match scheme {
            "file" => Dataset { namespace: "file".to_string(), name: format!("/{path}") },
            "s3a" | "s3n" => Dataset { namespace: format!("s3://{host}"), name: path.to_string() },
            "hdfs" => Dataset { namespace: format!("hdfs://{host}"), name: format!("/{path}") },
            scheme => Dataset { namespace: format!("{scheme}://{host}"), name: path.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_is_named_by_where_it_is_kept_and_no_credential_is_told() {
        for (url, namespace, name) in [
            ("/lake/orders", "file", "/lake/orders"),
            ("file:///lake/orders/", "file", "/lake/orders"),
            ("s3://bucket/lake/orders", "s3://bucket", "lake/orders"),
            ("s3a://key:secret@bucket/lake/orders?token=secret#secret", "s3://bucket", "lake/orders"),
            ("gs://bucket/orders", "gs://bucket", "orders"),
            ("abfss://lake@account.dfs.core.windows.net/orders", "abfss://lake@account.dfs.core.windows.net", "orders"),
            ("abfss://lake:secret@account/orders", "abfss://lake@account", "orders"),
            ("hdfs://user:secret@namenode:8020/lake/orders", "hdfs://namenode:8020", "/lake/orders"),
        ] {
            let dataset = Dataset::of_url(url);
            assert_eq!((dataset.namespace.as_str(), dataset.name.as_str()), (namespace, name), "{url}");
        }
    }
}
