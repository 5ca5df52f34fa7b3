// SPDX-License-Identifier: Apache-2.0
//! Arrow schemas, as the Arrow IPC message that any Arrow library reads.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::{IpcMessage, SchemaAsIpc};

use super::Malformed;

/// A schema for the wire.
pub fn schema_to_bytes(schema: &Schema) -> Vec<u8> {
    let options = IpcWriteOptions::default();
    let message: Result<IpcMessage, _> = SchemaAsIpc::new(schema, &options).try_into();
    // Only alignments and versions that are not the default can fail. Empty bytes are refused by whoever reads them.
    message.map(|message| message.0.to_vec()).unwrap_or_default()
}

/// A schema from the wire.
pub fn schema_from_bytes(bytes: Vec<u8>, field: &str) -> Result<SchemaRef, Malformed> {
    let schema = Schema::try_from(IpcMessage(bytes.into()));
    schema.map(Arc::new).map_err(|e| Malformed::new(field, format!("is no Arrow schema: {e}")))
}
