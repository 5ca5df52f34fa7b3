// SPDX-License-Identifier: Apache-2.0
//! Whoever reads a source: the timeline role for tables, the sources role for files and topics. Callers see one reader.

use std::sync::Arc;

use async_trait::async_trait;
use tributary_api::RowStream;
use tributary_api::timeline::{Error, InstantInfo, PlanRequest, ReadRequest, SourcePlan, TableInfo, Timeline};
use tributary_types::{Code, InstantTime, Retry};

/// Passes each request to the role it is for.
#[derive(Clone)]
pub struct Readers {
    /// Reads Hudi tables.
    pub tables: Option<Arc<dyn Timeline>>,
    /// Reads directories of files, and topics.
    pub files: Option<Arc<dyn Timeline>>,
}

impl Readers {
    fn for_files(&self, files: bool) -> Result<&Arc<dyn Timeline>, Error> {
        let (reader, role, what) = match files {
            true => (&self.files, "sources", "directories of files and topics"),
            false => (&self.tables, "timeline", "Hudi tables"),
        };
        reader.as_ref().ok_or_else(|| Error::Other {
            code: Code::Unsupported,
            retry: Retry::Never,
            message: format!(
                "nobody here reads {what}: run the role `{role}` in this process too, or say where it is with \
                 --{role}-address http://HOST:PORT"
            ),
        })
    }
}

#[async_trait]
impl Timeline for Readers {
    async fn describe(&self, url: &str) -> Result<TableInfo, Error> {
        self.for_files(false)?.describe(url).await
    }

    async fn list_instants(
        &self,
        url: &str,
        before: Option<&InstantTime>,
        limit: usize,
    ) -> Result<Vec<InstantInfo>, Error> {
        self.for_files(false)?.list_instants(url, before, limit).await
    }

    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, Error> {
        self.for_files(request.files.is_some())?.plan(request).await
    }

    async fn read(&self, request: ReadRequest) -> Result<RowStream, Error> {
        self.for_files(request.split.file.is_some())?.read(request).await
    }

    /// Pulls read tables only.
    async fn locations(&self) -> Result<Vec<String>, Error> {
        self.for_files(false)?.locations().await
    }

    async fn cancel_pull(&self, pull: &str) -> Result<u64, Error> {
        self.for_files(false)?.cancel_pull(pull).await
    }
}

#[cfg(test)]
mod tests {
    use tributary_api::timeline::Begin;
    use tributary_types::SourceName;

    use super::*;

    #[tokio::test]
    async fn a_source_whose_role_is_nowhere_is_refused_with_the_role_to_start() {
        let nobody = Readers { tables: None, files: None };
        let request = PlanRequest::window(SourceName::new("s").unwrap(), "/s", Begin::Earliest);
        let refused = nobody.plan(request).await.unwrap_err().to_string();
        assert!(refused.contains("`timeline`") && refused.contains("--timeline-address"), "{refused}");
    }
}
