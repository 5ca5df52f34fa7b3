// SPDX-License-Identifier: Apache-2.0
//! Queries of pullers: planned and run as merges are, with their rows going to whoever asked.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::datatypes::SchemaRef;
use futures::{Stream, StreamExt};
use tokio::time::Instant;
use tributary_api::merge::{Error, QueryNames, QueryRequest, QueryRows};
use tributary_api::{RowError, RowStream};
use tributary_types::SourceName;

use super::{Service, Started};
use crate::deep::on_deep_stack;
use crate::engine::{Job, Named};
use crate::error::{for_the_writer, internal};
use crate::handover::{Rows, StreamLimits};
use crate::joins::Joins;
use crate::placeholders::{Reference, View};
use crate::query::{changes, names};

impl Service {
    pub(super) async fn names_of_query(&self, sql: String) -> Result<QueryNames, Error> {
        let settings = Arc::clone(&self.engine.settings);
        on_deep_stack(move || names(&sql, &settings)).await
    }

    pub(super) async fn schema_of_query(&self, request: QueryRequest) -> Result<SchemaRef, Error> {
        let attempt = self.engine.plan(&Arc::new(self.query_job(request)?), Joins::Hash).await?;
        Ok(attempt.schema)
    }

    pub(super) async fn run_query(&self, request: QueryRequest) -> Result<QueryRows, Error> {
        let timeout = request.limits.timeout;
        let deadline = Instant::now() + timeout;
        let job = Arc::new(self.query_job(request)?);
        let started = tokio::time::timeout_at(deadline, Box::pin(self.start(&job, None))).await;
        let Started { attempt, first, query, .. } = started.map_err(|_| overtime(timeout))??;
        let limits =
            StreamLimits { max_rows: self.max_rows, share: attempt.pool.share(), spill_bytes: job.limits.spill_bytes };
        let (rows, _) = Rows::new(first, query, Arc::clone(&attempt.schema), limits);
        let schema = Arc::clone(&attempt.schema);
        let rows = until(rows, deadline, timeout).map(move |batch| {
            // The plan's memory and temporary files go with the rows.
            let _held = &attempt;
            batch
        });
        let rows: RowStream = rows.boxed();
        Ok(QueryRows { schema, rows })
    }

    fn query_job(&self, request: QueryRequest) -> Result<Job, Error> {
        let QueryRequest { sql, tables, parameters, limits } = request;
        let mut sources = Vec::with_capacity(tables.len());
        for (position, table) in tables.iter().enumerate() {
            let name = SourceName::new(format!("t{position}")).map_err(|e| internal(e.to_string()))?;
            sources.push((name, Arc::clone(&table.relation.schema)));
        }
        let (changes, relations) = changes(tables, parameters);
        let named = |(table, source, relation)| Named {
            reference: Reference { table, source, view: View::Changed, by_position: false },
            relation,
        };
        Ok(Job {
            text: Some(sql),
            then: Vec::new(),
            sources,
            relations: relations.into_iter().map(named).collect(),
            deletes: Vec::new(),
            limits,
            now_millis: self.clock.now_millis(),
            query: Some(changes),
        })
    }
}

fn overtime(timeout: Duration) -> Error {
    let detail = format!("the query took longer than {timeout:?}, which is as long as one may");
    Error::Limit { limit: "time", detail }
}

/// The rows as far as they come in time.
fn until(rows: Rows, deadline: Instant, timeout: Duration) -> impl Stream<Item = <Rows as Stream>::Item> {
    futures::stream::unfold(Some(rows), move |rows| async move {
        let mut rows = rows?;
        match tokio::time::timeout_at(deadline, rows.next()).await {
            Ok(Some(batch)) => Some((batch, Some(rows))),
            Ok(None) => None,
            Err(_) => {
                let late: RowError = for_the_writer(&overtime(timeout));
                Some((Err(late), None))
            }
        }
    })
}
