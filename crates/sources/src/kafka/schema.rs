// SPDX-License-Identifier: Apache-2.0
//! The columns of a topic: those of its messages' values, then what is known of messages besides, then the flag of deletes.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use tributary_types::pipeline::{KafkaColumn, Tombstones, TopicSource};

use crate::sniff::time_type;

/// The column whose true deletes the record of its row's key, as in Hudi.
pub(crate) const IS_DELETED: &str = "_hoodie_is_deleted";

/// The columns that queries see; otherwise what is wrong with those of the values.
pub(crate) fn shown(values: &Schema, topic: &TopicSource) -> Result<SchemaRef, String> {
    let mut fields: Vec<Field> = values.fields().iter().map(|field| field.as_ref().clone()).collect();
    for column in &topic.options.metadata {
        if crate::schema::has(&fields, column.column()) {
            return Err(format!(
                "its messages have a field `{0}` themselves: take it out of `kafka.metadata`",
                column.column()
            ));
        }
        fields.push(Field::new(column.column(), type_of(*column), true));
    }
    if topic.tombstones == Tombstones::Delete {
        for name in &topic.options.key_columns {
            if values.field_with_name(name).is_err() {
                return Err(format!(
                    "`kafka.key_columns` names `{name}`, which is no column of its messages: they have {}",
                    names(values)
                ));
            }
        }
        match values.field_with_name(IS_DELETED) {
            Ok(own) if own.data_type() != &DataType::Boolean => {
                return Err(format!(
                    "field `{IS_DELETED}` of its messages is {}, and it marks deletes",
                    own.data_type()
                ));
            }
            Ok(_) => {}
            Err(_) => fields.push(Field::new(IS_DELETED, DataType::Boolean, true)),
        }
    }
    Ok(Arc::new(Schema::new(fields)))
}

fn names(schema: &Schema) -> String {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    names.join(", ")
}

pub(crate) fn type_of(column: KafkaColumn) -> DataType {
    match column {
        KafkaColumn::Topic | KafkaColumn::Key => DataType::Utf8,
        KafkaColumn::Partition => DataType::Int32,
        KafkaColumn::Offset => DataType::Int64,
        KafkaColumn::Timestamp => time_type(),
        KafkaColumn::Headers => {
            let pair: Fields =
                vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Binary, true)].into();
            DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(pair), false)), false)
        }
    }
}
