// SPDX-License-Identifier: Apache-2.0
//! Pulls: batches and targets pinned for whoever reads them, and queries over both.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tributary_api::RowStream;
use tributary_api::coordinator::Error;
use tributary_api::pulls::{FlightName, Listed, PlannedQuery, Pull, Pulls, Query, QueryRows};
use tributary_api::timeline::ReadRequest;
use tributary_types::BatchName;

use crate::pull::{self, Pinned};
use crate::service::{Inner, Service};

mod queries;
mod tables;

#[async_trait]
impl Pulls for Service {
    async fn plan_pull(&self, flight: &FlightName) -> Result<Pull, Error> {
        self.inner.plan_pull(flight).await
    }

    async fn read_split(&self, request: ReadRequest) -> Result<RowStream, Error> {
        Ok(self.inner.roles.timeline.read(request).await?)
    }

    async fn deleted_rows(&self, name: &BatchName) -> Result<RowStream, Error> {
        let (status, storage) = self.inner.find_to_pull(name).await?;
        let timeline = &self.inner.roles.timeline;
        pull::pin_batch(timeline, &storage, &status).await?.deleted_rows(timeline).await
    }

    async fn locations(&self) -> Result<Vec<String>, Error> {
        Ok(self.inner.roles.timeline.locations().await?)
    }

    async fn cancel_pull(&self, pull: &str) -> Result<u64, Error> {
        Ok(self.inner.roles.timeline.cancel_pull(pull).await?)
    }

    async fn relations(&self, with_schemas: bool) -> Result<Vec<Listed>, Error> {
        self.inner.relations(with_schemas).await
    }

    async fn plan_query(&self, query: &Query) -> Result<PlannedQuery, Error> {
        self.inner.plan_query(query).await
    }

    async fn run_query(&self, query: &PlannedQuery) -> Result<QueryRows, Error> {
        self.inner.run_query(query).await
    }
}

/// A pull with what only a query needs of it.
struct Planned {
    pull: Pull,
    /// Of a batch.
    pinned: Option<Pinned>,
}

impl Inner {
    async fn plan_pull(&self, flight: &FlightName) -> Result<Pull, Error> {
        Ok(self.plan_flight(flight).await?.pull)
    }

    async fn plan_flight(&self, flight: &FlightName) -> Result<Planned, Error> {
        match flight {
            FlightName::Batch(name) => self.plan_batch_pull(name).await,
            FlightName::Table { name, at } => {
                let pull = self.plan_table_pull(name, at.as_ref()).await?;
                Ok(Planned { pull, pinned: None })
            }
        }
    }

    async fn plan_batch_pull(&self, name: &BatchName) -> Result<Planned, Error> {
        let (status, storage) = self.find_to_pull(name).await?;
        let pinned = pull::pin_batch(&self.roles.timeline, &storage, &status).await?;
        let mut metadata = BTreeMap::new();
        if let Some(digest) = &pinned.sql_digest {
            metadata.insert("sql_sha256".to_string(), digest.clone());
        }
        let written = &status.written;
        // What a restarted coordinator remembers of a batch does not tell them.
        let known = written.rows == 0 || written.inserts + written.updates > 0;
        let pull = Pull {
            flight: FlightName::Batch(name.clone()),
            schema: pinned.schema(),
            metadata,
            relation: pinned.relation.clone(),
            flags_deletes: pinned.has_losses,
            rows: known.then_some(written.inserts + written.updates).filter(|_| !pinned.has_losses),
            batch_rows: self.settings.pull_batch_rows,
            batch: Some(status),
        };
        Ok(Planned { pull, pinned: Some(pinned) })
    }
}
