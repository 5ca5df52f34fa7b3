// SPDX-License-Identifier: Apache-2.0
//! Separated values.

mod decoder;
mod format;
mod header;
mod sample;
#[cfg(test)]
mod tests;
mod tokenizer;

pub(crate) use decoder::CsvDecoder;
pub(crate) use format::CsvFormat;
pub(crate) use sample::{CsvSample, CsvSampler};
