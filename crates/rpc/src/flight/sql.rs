// SPDX-License-Identifier: Apache-2.0
//! Flight SQL: `SELECT` over published batches and the targets of pipelines, read-only, and what drivers ask before.
//!
//! Nothing is kept here between two calls: the handle of a prepared statement is the statement, and a query's ticket says
//! what its names stood for when it was planned.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::sql::{
    ActionCreatePreparedStatementResult, Command, CommandGetDbSchemas, CommandGetTables, DoPutPreparedStatementResult,
    ProstMessageExt,
};
use arrow_flight::{FlightData, FlightEndpoint, FlightInfo, IpcMessage, PutResult, SchemaAsIpc, Ticket};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use tonic::{Status, Streaming};
use tributary_api::pulls::{BATCHES, QUERY_SCHEMAS, Query, TABLES};

use super::asked::COMMANDS;
use super::pulls::{endpoint, info};
use super::rows::{FlightStream, send_rows, unsendable};
use super::server::FlightServer;
use super::sql_info::{server_info, type_info};
use super::ticket::{PullTicket, TicketRows, new_pull, statement_handle, statement_of};
use crate::fault::{malformed, to_status, unsupported};

/// The one catalog.
const CATALOG: &str = "tributary";
/// Types of tables: targets, and batches.
const TABLE_TYPES: [&str; 2] = ["TABLE", "BATCH"];
/// Rows of values that one binding may bring.
const MOST_BOUND_ROWS: usize = 1;

const READ_ONLY: &str = "this server only reads: it takes SELECT statements over the schemas `tables` and `batches`. Rows \
                         enter a table through a pipeline";

/// What a statement's transaction must be.
fn without_transaction(transaction: Option<&Bytes>) -> Result<(), Status> {
    match transaction.is_none_or(|id| id.is_empty()) {
        true => Ok(()),
        false => {
            Err(unsupported("transactions are not offered: each query reads what was committed when it was planned"))
        }
    }
}

/// What a prepared statement is planned to be.
pub(crate) struct Prepared {
    pub(crate) handle: Bytes,
    pub(crate) schema: SchemaRef,
    pub(crate) parameters: usize,
}

impl FlightServer {
    /// The info of a command: of a query the ticket of its pinned plan, of a question the question itself.
    pub(crate) async fn info_of_command(&self, command: Command) -> Result<FlightInfo, Status> {
        if let Some(query) = query_of(&command)? {
            return self.info_of_query(query).await;
        }
        let schema = self.schema_of_question(&command)?;
        let ticket = FlightEndpoint::new().with_ticket(Ticket::new(command.into_any().encode_to_vec()));
        info(&schema, vec![ticket], "")
    }

    async fn info_of_query(&self, query: Query) -> Result<FlightInfo, Status> {
        let planned = self.pulls()?.plan_query(&query).await.map_err(|e| to_status(&e))?;
        if planned.parameters > 0 && query.parameters.is_none() {
            let count = planned.parameters;
            return Err(malformed(format!("the statement has {count} parameters and no values; bind one row of them")));
        }
        let schema = Arc::clone(&planned.schema);
        let ticket = PullTicket {
            pull: new_pull(self.entropy.as_ref()),
            expires_millis: self.expires_millis(),
            flight: "query".to_string(),
            metadata: HashMap::new(),
            rows: TicketRows::Query(planned),
        };
        // Whoever planned it runs it: it knows what the names stand for.
        info(&schema, vec![endpoint(&ticket, self.locations_of(0, &[]))], &ticket.pull)
    }

    /// The schema of what a command gives.
    pub(crate) async fn schema_of_command(&self, command: Command) -> Result<SchemaRef, Status> {
        match query_of(&command)? {
            Some(query) => Ok(self.pulls()?.plan_query(&query).await.map_err(|e| to_status(&e))?.schema),
            None => self.schema_of_question(&command),
        }
    }

    fn schema_of_question(&self, command: &Command) -> Result<SchemaRef, Status> {
        self.pulls()?;
        Ok(match command.clone() {
            Command::CommandGetCatalogs(question) => question.into_builder().schema(),
            Command::CommandGetDbSchemas(question) => question.into_builder().schema(),
            Command::CommandGetTables(question) => question.into_builder().schema(),
            Command::CommandGetTableTypes(question) => question.into_builder().schema(),
            Command::CommandGetSqlInfo(question) => question.into_builder(server_info()?).schema(),
            Command::CommandGetXdbcTypeInfo(question) => question.into_builder(type_info()?).schema(),
            other => return Err(refused(&other)),
        })
    }

    /// The rows that answer a question.
    pub(crate) async fn rows_of_command(&self, command: Command) -> Result<FlightStream, Status> {
        if let Some(query) = query_of(&command)? {
            // Not a ticket of ours, but the statement is all that one would say.
            let planned = self.pulls()?.plan_query(&query).await.map_err(|e| to_status(&e))?;
            let (schema, pull) = (Arc::clone(&planned.schema), new_pull(self.entropy.as_ref()));
            let open = async { Ok(self.pulls()?.run_query(&planned).await.map_err(|e| to_status(&e))?.rows) };
            return Ok(send_rows(schema, self.running.watched(&pull, open).await?));
        }
        self.pulls()?;
        let fail =
            |e: FlightError| unsendable("what was asked for cannot be sent", ArrowError::ExternalError(Box::new(e)));
        let batch = match command {
            Command::CommandGetCatalogs(question) => {
                let mut builder = question.into_builder();
                builder.append(CATALOG);
                builder.build().map_err(fail)?
            }
            Command::CommandGetDbSchemas(question) => schemas(question).map_err(fail)?,
            Command::CommandGetTables(question) => self.tables(question).await?.map_err(fail)?,
            Command::CommandGetTableTypes(question) => {
                let mut builder = question.into_builder();
                TABLE_TYPES.iter().for_each(|name| builder.append(name));
                builder.build().map_err(fail)?
            }
            Command::CommandGetSqlInfo(question) => question.into_builder(server_info()?).build().map_err(fail)?,
            Command::CommandGetXdbcTypeInfo(question) => question.into_builder(type_info()?).build().map_err(fail)?,
            other => return Err(refused(&other)),
        };
        let schema = batch.schema();
        Ok(send_rows(schema, futures::stream::iter([Ok(batch)]).boxed()))
    }

    async fn tables(&self, question: CommandGetTables) -> Result<Result<RecordBatch, FlightError>, Status> {
        let wanted = question.table_types.clone();
        let listed = self.pulls()?.relations(question.include_schema).await.map_err(|e| to_status(&e))?;
        let mut builder = question.into_builder();
        let none = Arc::new(Schema::empty());
        for relation in listed {
            let table_type = if relation.schema_name == TABLES { TABLE_TYPES[0] } else { TABLE_TYPES[1] };
            debug_assert!(relation.schema_name == TABLES || relation.schema_name == BATCHES);
            if !wanted.is_empty() && !wanted.iter().any(|name| name == table_type) {
                continue;
            }
            let schema = relation.schema.as_ref().unwrap_or(&none);
            if let Err(error) = builder.append(CATALOG, relation.schema_name, &relation.name, table_type, schema) {
                return Ok(Err(error));
            }
        }
        Ok(builder.build())
    }

    /// Takes what a `DoPut` of Flight SQL brings: values of a prepared statement, and nothing else.
    pub(crate) async fn put_of_command(
        &self,
        command: Command,
        first: FlightData,
        rest: Streaming<FlightData>,
    ) -> Result<PutResult, Status> {
        let Command::CommandPreparedStatementQuery(statement) = command else { return Err(refused(&command)) };
        let mut query = statement_of(&statement.prepared_statement_handle)?;
        let messages = futures::stream::iter([Ok(first)]).chain(rest.map_err(FlightError::from));
        let mut batches: Vec<RecordBatch> = Vec::new();
        let mut rows = FlightRecordBatchStream::new_from_flight_data(messages);
        while let Some(batch) = rows.next().await {
            let batch = batch.map_err(|e| malformed(format!("the values of the parameters cannot be read: {e}")))?;
            if batches.iter().chain([&batch]).map(RecordBatch::num_rows).sum::<usize>() > MOST_BOUND_ROWS {
                return Err(unsupported(
                    "a statement is run for one row of parameters; run it once for each, or join with what is to be looked \
                     up",
                ));
            }
            batches.push(batch);
        }
        query.parameters = match batches.first() {
            None => None,
            Some(batch) => {
                let bound = concat_batches(&batch.schema(), &batches);
                Some(bound.map_err(|e| malformed(format!("the values of the parameters differ in type: {e}")))?)
            }
        };
        let handle = Some(statement_handle(&query));
        let result = DoPutPreparedStatementResult { prepared_statement_handle: handle };
        Ok(PutResult { app_metadata: result.encode_to_vec().into() })
    }

    /// Plans a statement that is to be run later, perhaps often.
    pub(crate) async fn prepare(&self, sql: String, transaction: Option<&Bytes>) -> Result<Prepared, Status> {
        without_transaction(transaction)?;
        let query = Query { sql, parameters: None };
        let planned = self.pulls()?.plan_query(&query).await.map_err(|e| to_status(&e))?;
        let handle = statement_handle(&query);
        Ok(Prepared { handle, schema: planned.schema, parameters: planned.parameters })
    }
}

impl Prepared {
    /// What is answered to whoever prepared it.
    pub(crate) fn answer(self) -> Result<ActionCreatePreparedStatementResult, Status> {
        // Of what type a value must be is up to the place where it stands: any that fits is taken.
        let parameters = (1..=self.parameters).map(|number| Field::new(format!("${number}"), DataType::Utf8, true));
        let parameters = Schema::new(parameters.collect::<Vec<_>>());
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: self.handle,
            dataset_schema: schema_message(&self.schema)?,
            parameter_schema: match self.parameters {
                0 => Bytes::new(),
                _ => schema_message(&parameters)?,
            },
        })
    }
}

fn schema_message(schema: &Schema) -> Result<Bytes, Status> {
    let options = IpcWriteOptions::default();
    let message: Result<IpcMessage, ArrowError> = SchemaAsIpc::new(schema, &options).try_into();
    message.map(|message| message.0).map_err(|e| unsendable("the schema cannot be sent", e))
}

/// The query of a command that is one.
fn query_of(command: &Command) -> Result<Option<Query>, Status> {
    match command {
        Command::CommandStatementQuery(statement) => {
            without_transaction(statement.transaction_id.as_ref())?;
            Ok(Some(Query { sql: statement.query.clone(), parameters: None }))
        }
        Command::CommandPreparedStatementQuery(statement) => {
            statement_of(&statement.prepared_statement_handle).map(Some)
        }
        _ => Ok(None),
    }
}

fn schemas(question: CommandGetDbSchemas) -> Result<RecordBatch, FlightError> {
    let mut builder = question.into_builder();
    QUERY_SCHEMAS.iter().for_each(|schema| builder.append(CATALOG, schema));
    builder.build()
}

/// Why a command is not carried out.
fn refused(command: &Command) -> Status {
    let name = command.type_url().trim_start_matches(COMMANDS);
    match command {
        Command::CommandStatementUpdate(_)
        | Command::CommandPreparedStatementUpdate(_)
        | Command::CommandStatementIngest(_) => unsupported(format!("{name}: {READ_ONLY}")),
        _ => unsupported(format!("{name} of Flight SQL is not offered")),
    }
}

/// An action's answer as it is sent.
pub(crate) fn answer(result: &impl ProstMessageExt) -> arrow_flight::Result {
    arrow_flight::Result::new(result.as_any().encode_to_vec())
}
