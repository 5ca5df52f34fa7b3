// SPDX-License-Identifier: Apache-2.0
//! Queries of pullers: what they name is pinned here, the merge role plans and runs them.

use std::sync::Arc;

use futures::StreamExt;
use tributary_api::Stop;
use tributary_api::coordinator::Error;
use tributary_api::merge::{MergeLimits, QueryRequest, QueryTable};
use tributary_api::pulls::{
    BATCHES, FlightName, FlightNameError, PlannedQuery, QUERY_SCHEMAS, Query, QueryRows, TABLES,
};
use tributary_types::{BatchName, Code, MemoryBudget, Retry};

use super::Planned;
use crate::service::Inner;

/// The one catalog that queries can name.
const CATALOG: &str = "tributary";

impl Inner {
    pub(super) async fn plan_query(&self, query: &Query) -> Result<PlannedQuery, Error> {
        let names = self.roles.merge.read_query(query.sql.clone()).await?;
        let mut pins = Vec::with_capacity(names.relations.len());
        let mut tables = Vec::with_capacity(names.relations.len());
        for name in names.relations {
            let planned = self.plan_flight(&flight_of(&name)?).await?;
            pins.push((name.clone(), planned.pull.flight.clone()));
            tables.push(table_of(name, planned));
        }
        let schema = self.roles.merge.check_query(self.request(query, tables)).await?;
        Ok(PlannedQuery { query: query.clone(), pins, schema, parameters: names.parameters })
    }

    pub(super) async fn run_query(&self, planned: &PlannedQuery) -> Result<QueryRows, Error> {
        let limit = self.settings.queries_at_once;
        let place = Arc::clone(&self.queries).try_acquire_owned().map_err(|_| Error::Other {
            code: Code::Overloaded,
            retry: Retry::Again,
            message: format!(
                "{limit} queries run already, which is as many as may; ask again once one of them is over"
            ),
        })?;
        let mut tables = Vec::with_capacity(planned.pins.len());
        for (name, flight) in &planned.pins {
            tables.push(table_of(name.clone(), self.plan_flight(flight).await?));
        }
        let QueryRows { schema, rows } = self.roles.merge.query(self.request(&planned.query, tables)).await?;
        // The place is free again once the rows are read or dropped.
        let rows = rows.map(move |batch| {
            let _held = &place;
            batch
        });
        Ok(QueryRows { schema, rows: rows.boxed() })
    }

    fn request(&self, query: &Query, tables: Vec<QueryTable>) -> QueryRequest {
        let settings = &self.settings;
        let limits = MergeLimits {
            progress: tributary_api::Progress::default(),
            budget: MemoryBudget::new(settings.query_memory),
            spill_bytes: settings.query_spill,
            timeout: settings.query_timeout,
            parallelism: settings.parallelism,
            stop: Stop::default(),
        };
        QueryRequest { sql: query.sql.clone(), tables, parameters: query.parameters.clone(), limits }
    }
}

fn table_of(name: Vec<String>, planned: Planned) -> QueryTable {
    let deleted = planned.pinned.filter(|pinned| pinned.has_losses).map(|pinned| pinned.deleted());
    QueryTable { name, relation: planned.pull.relation, deleted }
}

/// The flight that a relation of a query stands for.
fn flight_of(name: &[String]) -> Result<FlightName, Error> {
    let unknown = |what: String| Error::NoFlight { name: name.join("."), what };
    let parse = |flight: &str| flight.parse().map_err(|e: FlightNameError| unknown(e.what));
    let parts: Vec<&str> = name.iter().map(String::as_str).collect();
    let (schema, relation) = match parts.as_slice() {
        [relation] if relation.contains(':') => return parse(relation),
        [relation] => (TABLES, *relation),
        [schema, relation] => (*schema, *relation),
        [catalog, schema, relation] if catalog.eq_ignore_ascii_case(CATALOG) => (*schema, *relation),
        _ => return Err(unknown(format!("a relation is <schema>.<name>, of the catalog `{CATALOG}`"))),
    };
    if schema.eq_ignore_ascii_case(TABLES) {
        return parse(&format!("table:{relation}"));
    }
    if schema.eq_ignore_ascii_case(BATCHES) {
        return BatchName::new(relation).map(FlightName::Batch).map_err(|e| unknown(e.to_string()));
    }
    Err(unknown(format!("there is no schema `{schema}`; there are: {}", QUERY_SCHEMAS.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(parts: &[&str]) -> Result<String, String> {
        let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        flight_of(&parts).map(|flight| flight.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn relations_of_a_query_are_tables_by_pipeline_and_batches_by_name() {
        let table = Ok("table:orders".to_string());
        for parts in [&["orders"][..], &["tables", "orders"], &["TRIBUTARY", "Tables", "orders"], &["table:orders"]] {
            assert_eq!(flight(parts), table, "{parts:?}");
        }
        assert_eq!(flight(&["orders@20250606182826197"]), Ok("table:orders@20250606182826197".to_string()));
        assert_eq!(flight(&["batches", "orders/r1"]), Ok("batch:orders/r1".to_string()));
        assert_eq!(flight(&["batch:orders/r1"]), Ok("batch:orders/r1".to_string()));
    }

    #[test]
    fn what_is_neither_is_refused_with_what_there_is() {
        assert!(flight(&["lake", "orders"]).unwrap_err().contains("tables, batches"));
        assert!(flight(&["other", "tables", "orders"]).unwrap_err().contains("`tributary`"));
        assert!(flight(&["tables", "orders@noon"]).unwrap_err().contains("noon"));
    }
}
