// SPDX-License-Identifier: Apache-2.0
use std::process::ExitCode;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt, stream};
use tributary_api::transform::{Input, InputSchema, MultiTransform, TransformError, Transforms};
use tributary_api::{RowError, RowStream};

/// The rows of all inputs, one after the other, with the number of the input in a column of its own.
struct Stacked;

fn stacked_schema() -> SchemaRef {
    let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
    let columns = [field("id", DataType::Utf8), field("value", DataType::Int64), field("input", DataType::Int64)];
    Arc::new(Schema::new(columns.to_vec()))
}

impl MultiTransform for Stacked {
    fn schema(&self, inputs: &[InputSchema]) -> Result<SchemaRef, TransformError> {
        for input in inputs {
            for column in ["id", "value"] {
                if input.schema.field_with_name(column).is_err() {
                    return Err(TransformError::new(format!("input `{}` has no column `{column}`", input.name)));
                }
            }
        }
        Ok(stacked_schema())
    }

    fn apply(&self, inputs: Vec<Input>) -> Result<RowStream, TransformError> {
        let numbered = stream::iter(inputs.into_iter().enumerate().map(|(number, input)| {
            let rows = input.rows.and_then(move |batch| async move {
                let numbers = Int64Array::from(vec![number as i64; batch.num_rows()]);
                let columns = vec![batch["id"].clone(), batch["value"].clone(), Arc::new(numbers)];
                let stacked = RecordBatch::try_new(stacked_schema(), columns);
                stacked.map_err(|error| RowError::new(TransformError::new(error.to_string())))
            });
            Ok::<_, RowError>(rows)
        }));
        Ok(numbered.try_flatten().boxed())
    }
}

pub(crate) fn transforms() -> Result<Transforms, TransformError> {
    Transforms::new().register("stacked", Arc::new(Stacked))
}

#[allow(dead_code)] // the program's own
fn main() -> ExitCode {
    match transforms() {
        Ok(transforms) => tributary_server::cli::main_with(transforms),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
