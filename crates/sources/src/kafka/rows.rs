// SPDX-License-Identifier: Apache-2.0
//! Messages as batches: the columns of their values, what is known of them besides, and which of them delete.
//!
//! Rows stand in the order of the messages' offsets. A message that deletes has the columns of its key and nothing else.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanArray, Int32Array, Int64Array, MapBuilder, MapFieldNames, RecordBatch,
    RecordBatchOptions, StringArray, StringBuilder, TimestampMicrosecondArray,
};
use arrow::compute::{filter_record_batch, interleave};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use tributary_api::timeline::{Error, TopicSplit};
use tributary_types::pipeline::{BadRecords, FileFormat, KafkaColumn, KeyFormat, Tombstones, TopicSource};

use crate::cells::Formats;
use crate::csv::{CsvDecoder, CsvFormat};
use crate::json::build::{Findings, Record};
use crate::json::value::{Value, read};
use crate::json::{JsonDecoder, JsonFormat};
use crate::kafka::log::{Message, Place};
use crate::kafka::schema::IS_DELETED;
use crate::record::{BadRecord, Decode, DecodeError, Tally, shown};
use crate::refused::{Refusals, Where};

/// Turns values into rows.
enum Decoder {
    Csv(Box<CsvDecoder>),
    Json(Box<JsonDecoder>),
}

/// Where a row of a batch comes from.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// 0: from the values; 1: from the keys of messages that delete.
    from: usize,
    at: usize,
    /// Its message, among those of the batch.
    message: usize,
}

/// What became of messages without a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tombs {
    pub(crate) deleted: u64,
    pub(crate) ignored: u64,
}

/// Rows of one partition.
pub(crate) struct Rows {
    place: Place,
    topic: Arc<TopicSource>,
    partition: i32,
    decoder: Decoder,
    mode: BadRecords,
    formats: Formats,
    /// Columns of the values, and those of them that are delivered.
    values: SchemaRef,
    delivered: Vec<usize>,
    /// All columns, and which are wanted, in order.
    schema: SchemaRef,
    wanted: Vec<usize>,
    output: SchemaRef,
    deleted: Record,
    batch_rows: usize,
    rows: Vec<Row>,
    value_rows: usize,
    messages: Vec<Message>,
    bad_keys: u64,
    pub(crate) tombs: Tombs,
    /// Where what is asked for are the messages that are refused: those found so far, and bad keys among the messages of
    /// this batch.
    refusals: Option<Refusals>,
    refused_keys: Vec<BadRecord>,
}

impl Rows {
    /// Rows of `schema`, of which the columns at `wanted` are delivered.
    pub(crate) fn new(
        place: Place,
        split: &TopicSplit,
        format: &FileFormat,
        strict: bool,
        schema: SchemaRef,
        wanted: Option<Vec<usize>>,
        batch_rows: usize,
    ) -> Result<Self, Error> {
        let problem = |what: String| place.refuse(&what);
        let wanted = wanted.unwrap_or_else(|| (0..schema.fields().len()).collect());
        let output = schema.project(&wanted).map_err(|e| problem(e.to_string()))?;
        let values = split.value_columns.min(schema.fields().len());
        let values = Arc::new(Schema::new(schema.fields()[..values].to_vec()));
        let mut delivered: Vec<usize> = wanted.iter().copied().filter(|at| *at < values.fields().len()).collect();
        delivered.sort_unstable();
        delivered.dedup();
        let failed = |error: DecodeError| match error {
            DecodeError::File(what) => place.refuse(&what),
            DecodeError::Record(bad) => place.refuse(&bad.reason),
        };
        let broken = |problems: Vec<String>| place.refuse(&problems.join("; "));
        let (own, some) = (Arc::clone(&values), Some(delivered.clone()));
        let (decoder, mode, formats) = match format {
            FileFormat::Csv(options) => {
                let format = Arc::new(CsvFormat::new(options).map_err(broken)?);
                let decoder = CsvDecoder::new(Arc::clone(&format), own, some, batch_rows).map_err(failed)?;
                (Decoder::Csv(Box::new(decoder)), format.mode, format.formats.clone())
            }
            FileFormat::Json(options) => {
                let format = Arc::new(JsonFormat::new(options).map_err(broken)?);
                let decoder = JsonDecoder::new(Arc::clone(&format), own, some, strict, batch_rows).map_err(failed)?;
                (Decoder::Json(Box::new(decoder)), format.mode, format.formats.clone())
            }
            FileFormat::Parquet => return Err(place.refuse("a message is no Parquet file")),
        };
        let deleted = Record::new("", values.fields()).map_err(problem)?;
        Ok(Rows {
            topic: Arc::clone(&split.source),
            partition: split.partition,
            decoder,
            mode,
            formats,
            values,
            delivered,
            schema,
            wanted,
            output: Arc::new(output),
            deleted,
            batch_rows: batch_rows.max(1),
            rows: Vec::new(),
            value_rows: 0,
            messages: Vec::new(),
            bad_keys: 0,
            tombs: Tombs::default(),
            refusals: None,
            refused_keys: Vec::new(),
            place,
        })
    }

    /// What became of the records so far.
    pub(crate) fn tally(&self) -> Tally {
        let tally = match &self.decoder {
            Decoder::Csv(decoder) => decoder.tally(),
            Decoder::Json(decoder) => decoder.tally(),
        };
        Tally { bad: tally.bad + self.bad_keys, dropped: tally.dropped + self.bad_keys, ..tally }
    }

    /// Whether there is anything to make a batch of.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether a batch is as large as one gets.
    pub(crate) fn is_full(&self) -> bool {
        let full = match &self.decoder {
            Decoder::Csv(decoder) => decoder.is_full(),
            Decoder::Json(decoder) => decoder.is_full(),
        };
        full || self.rows.len() >= self.batch_rows || self.messages.len() >= self.batch_rows
    }

    /// Takes a message in.
    pub(crate) fn take(&mut self, message: Message) -> Result<(), Error> {
        let number = self.messages.len();
        let value = message.value.clone();
        self.messages.push(message);
        let Some(value) = value else { return self.take_tombstone(number) };
        let lines = self.topic.options.lines;
        let taken = match &mut self.decoder {
            Decoder::Csv(decoder) => Ok(decoder.take_message(&value, number as u64, lines)),
            Decoder::Json(decoder) => decoder.take_message(&value, number as u64, lines),
        };
        let taken = taken.map_err(|error| self.fault(error))?;
        let rows = (0..taken).map(|row| Row { from: 0, at: self.value_rows + row, message: number });
        self.rows.extend(rows);
        self.value_rows += taken;
        Ok(())
    }

    fn take_tombstone(&mut self, number: usize) -> Result<(), Error> {
        match self.topic.tombstones {
            Tombstones::Ignore => {
                self.tombs.ignored += 1;
                return Ok(());
            }
            Tombstones::Error => {
                let reason = "it has no value, which deletes the record of its key; set `tombstones` to \"ignore\", or name the \
                              columns of the key with `kafka.key_columns`";
                return Err(self.bad_key(number, reason.to_string()));
            }
            Tombstones::Delete => {}
        }
        let key = self.messages[number].key.clone();
        let at = self.deleted.rows();
        let problem = match &key {
            Some(key) => self.append_key(key),
            None => Some("it has neither a key nor a value, so nothing says what it deletes".to_string()),
        };
        match problem {
            None => {
                self.tombs.deleted += 1;
                self.rows.push(Row { from: 1, at, message: number });
                Ok(())
            }
            Some(reason) if self.mode == BadRecords::FailFast => Err(self.bad_key(number, reason)),
            // Nothing says what it deletes.
            Some(reason) => {
                self.bad_keys += 1;
                if self.refusals.is_some() {
                    let record = key.as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
                    self.refused_keys.push(BadRecord { line: number as u64, offset: 0, reason, record });
                }
                Ok(())
            }
        }
    }

    /// Appends the row of a key; answers what is wrong with it.
    fn append_key(&mut self, key: &[u8]) -> Option<String> {
        let mut padded = key.to_vec();
        // A number may go on: something ends it.
        padded.push(b' ');
        let columns = &self.topic.options.key_columns;
        let mut fields: Vec<(Cow<'_, str>, Value<'_>)> = Vec::new();
        let object;
        match self.topic.options.key_format {
            KeyFormat::Text => {
                let (Some(column), Ok(text)) = (columns.first(), std::str::from_utf8(key)) else {
                    return Some("its key is no text in UTF-8".to_string());
                };
                let is_text = self.values.field_with_name(column).is_ok_and(|field| !is_scalar(field.data_type()));
                let value = match read(&padded, 0) {
                    Ok((value @ (Value::Number(_) | Value::Bool(_)), end)) if !is_text && end == key.len() => value,
                    _ => Value::Text(Cow::Borrowed(text)),
                };
                fields.push((Cow::Borrowed(column.as_str()), value));
            }
            KeyFormat::Json => {
                object = read(&padded, 0);
                let Ok((Value::Object(_, found, _), end)) = &object else {
                    return Some(format!("its key is no object of JSON: {}", shown(key)));
                };
                if !padded[*end..].iter().all(u8::is_ascii_whitespace) {
                    return Some(format!("something follows the object in its key: {}", shown(key)));
                }
                for column in columns {
                    match found.iter().find(|(name, _)| name.as_ref() == column.as_str()) {
                        Some((_, value)) => fields.push((Cow::Borrowed(column.as_str()), value.clone())),
                        None => return Some(format!("its key has no field `{column}`: {}", shown(key))),
                    }
                }
            }
        }
        if self.values.field_with_name(IS_DELETED).is_ok() {
            fields.push((Cow::Borrowed(IS_DELETED), Value::Bool(true)));
        }
        let mut findings = Findings::default();
        self.deleted.append("", &fields, &self.formats, &mut findings);
        findings.problem.map(|problem| format!("of its key, {problem}: {}", shown(key)))
    }

    fn bad_key(&self, number: usize, reason: String) -> Error {
        let record = self.messages[number].key.as_deref().map(shown).unwrap_or_default();
        self.fault(DecodeError::Record(BadRecord { line: number as u64, offset: 0, reason, record }))
    }

    fn fault(&self, error: DecodeError) -> Error {
        let url = self.place.url.clone();
        match error {
            DecodeError::File(detail) => Error::Corrupt { url, file: format!("partition {}", self.partition), detail },
            DecodeError::Record(bad) => Error::BadMessage {
                source_name: self.place.source.clone(),
                url,
                partition: u32::try_from(self.partition).unwrap_or_default(),
                offset: self.messages.get(bad.line as usize).map_or(0, |message| message.offset as u64),
                reason: bad.reason,
                record: bad.record,
            },
        }
    }

    /// The rows so far as a batch; there are none then.
    pub(crate) fn make(&mut self) -> Result<RecordBatch, Error> {
        let taken = match &mut self.decoder {
            Decoder::Csv(decoder) => decoder.take_batch(),
            Decoder::Json(decoder) => decoder.take_batch(),
        };
        let (values, keep) = taken.map_err(|error| self.fault(error))?;
        self.collect_refused();
        let made = self.assemble(&values, keep);
        self.rows.clear();
        self.messages.clear();
        self.value_rows = 0;
        made.map_err(|what| self.fault(DecodeError::File(what)))
    }

    /// From now on the messages that are refused are kept.
    pub(crate) fn keep_refused(&mut self) {
        self.refusals = Some(Refusals::new(self.place.source.as_str()));
        match &mut self.decoder {
            Decoder::Csv(decoder) => decoder.keep_refused(),
            Decoder::Json(decoder) => decoder.keep_refused(),
        }
    }

    /// Whether they are.
    pub(crate) fn keeps_refused(&self) -> bool {
        self.refusals.is_some()
    }

    /// Takes over what was refused of the messages of the batch that is made.
    fn collect_refused(&mut self) {
        let Some(refusals) = &mut self.refusals else { return };
        let mut records = match &mut self.decoder {
            Decoder::Csv(decoder) => decoder.take_refused(),
            Decoder::Json(decoder) => decoder.take_refused(),
        };
        records.append(&mut self.refused_keys);
        records.sort_by_key(|record| record.line);
        let mut last: Option<(u64, usize)> = None;
        for BadRecord { line, reason, record, .. } in records {
            // Of one message, and so in one batch, in the order in which they stand in it.
            let number = last.filter(|(before, _)| *before == line).map_or(0, |(_, number)| number + 1);
            last = Some((line, number));
            let offset = self.messages.get(line as usize).map_or(0, |message| message.offset);
            let topic = self.topic.topic.clone();
            refusals.add(Where::Message { topic, partition: self.partition, offset, number }, reason, record);
        }
    }

    /// The refused messages so far, if there are enough for a batch.
    pub(crate) fn full_of_refused(&mut self) -> Result<Option<RecordBatch>, Error> {
        match self.refusals.as_ref().is_some_and(Refusals::is_full) {
            true => self.rest_of_refused(),
            false => Ok(None),
        }
    }

    /// The refused messages that are left.
    pub(crate) fn rest_of_refused(&mut self) -> Result<Option<RecordBatch>, Error> {
        let Some(refusals) = self.refusals.as_mut().filter(|refusals| !refusals.is_empty()) else { return Ok(None) };
        let made = refusals.make();
        made.map(Some).map_err(|error| self.fault(DecodeError::File(error.to_string())))
    }

    fn assemble(&mut self, values: &RecordBatch, keep: Option<BooleanArray>) -> Result<RecordBatch, String> {
        let in_order: Vec<(usize, usize)> = self.rows.iter().map(|row| (row.from, row.at)).collect();
        let mixed = self.rows.iter().any(|row| row.from == 1);
        let deleted = if mixed { self.deleted.finish()?.0 } else { Vec::new() };
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.wanted.len());
        for at in &self.wanted {
            columns.push(match self.delivered.binary_search(at) {
                Ok(place) if mixed => {
                    let both = [values.column(place).as_ref(), deleted[*at].as_ref()];
                    interleave(&both, &in_order).map_err(|e| e.to_string())?
                }
                Ok(place) => Arc::clone(values.column(place)),
                Err(_) => self.other_column(self.schema.field(*at).name())?,
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.output), columns, &options);
        let batch = batch.map_err(|e| e.to_string())?;
        let Some(keep) = keep else { return Ok(batch) };
        let keep: BooleanArray = self.rows.iter().map(|row| Some(row.from == 1 || keep.value(row.at))).collect();
        filter_record_batch(&batch, &keep).map_err(|e| e.to_string())
    }

    /// A column that no value has.
    fn other_column(&self, name: &str) -> Result<ArrayRef, String> {
        if name == IS_DELETED {
            return Ok(Arc::new(self.rows.iter().map(|row| Some(row.from == 1)).collect::<BooleanArray>()));
        }
        let column = self.topic.options.metadata.iter().find(|column| column.column() == name);
        let column = column.ok_or_else(|| format!("column `{name}` is none of the topic"))?;
        let messages = || self.rows.iter().map(|row| &self.messages[row.message]);
        Ok(match column {
            KafkaColumn::Topic => {
                Arc::new(StringArray::from_iter_values(messages().map(|_| self.topic.topic.as_str())))
            }
            KafkaColumn::Partition => Arc::new(Int32Array::from_iter_values(messages().map(|_| self.partition))),
            KafkaColumn::Offset => Arc::new(Int64Array::from_iter_values(messages().map(|message| message.offset))),
            KafkaColumn::Timestamp => {
                let micros = messages().map(|message| message.timestamp.saturating_mul(1000));
                Arc::new(TimestampMicrosecondArray::from_iter_values(micros).with_timezone("UTC"))
            }
            KafkaColumn::Key => Arc::new(keys(messages())?),
            KafkaColumn::Headers => headers(messages())?,
        })
    }
}

/// Whether a value of the type is written without quotes in JSON.
fn is_scalar(data_type: &DataType) -> bool {
    data_type.is_numeric() || data_type == &DataType::Boolean
}

fn keys<'a>(messages: impl Iterator<Item = &'a Message>) -> Result<StringArray, String> {
    let mut keys = StringBuilder::new();
    for message in messages {
        match message.key.as_deref().map(std::str::from_utf8).transpose() {
            Ok(key) => keys.append_option(key),
            Err(_) => {
                return Err(format!(
                    "the key of the message at offset {} is no text in UTF-8: take `key` out of `kafka.metadata`",
                    message.offset
                ));
            }
        }
    }
    Ok(keys.finish())
}

fn headers<'a>(messages: impl Iterator<Item = &'a Message>) -> Result<ArrayRef, String> {
    let names = MapFieldNames { entry: "key_value".to_string(), key: "key".to_string(), value: "value".to_string() };
    let mut maps = MapBuilder::new(Some(names), StringBuilder::new(), BinaryBuilder::new());
    for message in messages {
        for (name, value) in &message.headers {
            maps.keys().append_value(name);
            maps.values().append_option(value.as_deref());
        }
        maps.append(true).map_err(|e| e.to_string())?;
    }
    Ok(Arc::new(maps.finish()))
}
