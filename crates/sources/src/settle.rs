// SPDX-License-Identifier: Apache-2.0
//! Names and types of a plan's columns: what is given, what earlier plans settled, and what new files bring.
//!
//! Once settled, a type does not change with what later files hold; columns are only added.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use futures::{StreamExt, TryStreamExt};
use tributary_api::timeline::{Error, FilesRequest, PlanRequest};
use tributary_hudi::{Storage, file_schema};
use tributary_types::pipeline::{FileFormat, UnknownColumns};

use crate::charset::Encoding;
use crate::csv::{CsvFormat, CsvSample, CsvSampler};
use crate::decide::Window;
use crate::fault::fault;
use crate::fetch::parts;
use crate::json::{JsonFormat, JsonSampler, Shape};
use crate::listing::Listed;
use crate::read::TextOf;
use crate::service::Settled;
use crate::settings::Settings;
use crate::{parquet, schema, sniff};

/// Bytes of the parts that a look into a file asks for.
const LOOK_BYTES: u64 = 256 << 10;
/// Hint about a column that is of another type in a file.
const TYPE_HINT: &str = "give names and types with `files.schema_file`, or keep such files in a directory of their own";

/// What columns are settled from.
pub(crate) struct Settling<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) request: &'a PlanRequest,
    pub(crate) files: &'a FilesRequest,
    pub(crate) listed: &'a [Listed],
    pub(crate) window: &'a Window,
    pub(crate) settings: &'a Settings,
}

/// The columns of a plan; `None` when nothing says what they are: no schema is given and no file is there.
pub(crate) async fn settle(settling: &Settling<'_>) -> Result<Option<Settled>, Error> {
    let known = settling.known()?;
    let (kept, corrupt) = match &settling.files.source.format {
        FileFormat::Parquet => (settling.parquet(known).await?, None),
        FileFormat::Csv(options) => {
            let format = CsvFormat::new(options).map_err(|problems| settling.refuse(problems.join("; ")))?;
            (settling.csv(known, &format).await?, format.corrupt)
        }
        FileFormat::Json(options) => {
            let format = JsonFormat::new(options).map_err(|problems| settling.refuse(problems.join("; ")))?;
            (settling.json(known, &format).await?, format.corrupt)
        }
    };
    Ok(kept.map(|kept| Settled { shown: schema::with_corrupt(kept.clone(), corrupt.as_deref()), kept }))
}

impl Settling<'_> {
    fn refuse(&self, what: String) -> Error {
        Error::Unsupported { url: self.request.url.clone(), what: format!("source `{}`: {what}", self.request.source) }
    }

    fn broken(&self, listed: &Listed, detail: String) -> Error {
        Error::Corrupt { url: self.request.url.clone(), file: listed.file.path.clone(), detail }
    }

    fn evolves(&self) -> bool {
        self.files.source.files.unknown_columns == UnknownColumns::Evolve
    }

    /// What is given and what earlier plans settled.
    fn known(&self) -> Result<Option<Schema>, Error> {
        let given = self.files.source.files.schema.as_deref();
        let kept = self.files.state.as_ref().and_then(|state| state.schema.as_deref());
        schema::settled("`files.schema`", given, kept, self.evolves()).map_err(|problem| self.refuse(problem))
    }

    /// The files that may bring something new. Where nothing is settled and nothing is read yet, any file tells what the
    /// columns are.
    fn fresh(&self, settled: bool) -> Vec<&Listed> {
        let chosen = match (self.request.lookup, settled) {
            (true, _) => &self.window.at_end,
            (false, true) => &self.window.read,
            (false, false) if self.window.read.is_empty() => &self.window.at_end,
            (false, false) => &self.window.read,
        };
        let chosen: Vec<&Listed> = match chosen.is_empty() && !settled {
            true => self.listed.iter().collect(),
            false => chosen.iter().map(|at| &self.listed[*at]).collect(),
        };
        let most = self.files.source.files.max_files as usize;
        let from = chosen.len().saturating_sub(most);
        chosen[from..].iter().copied().filter(|listed| listed.file.bytes > 0).collect()
    }

    async fn parquet(&self, known: Option<Schema>) -> Result<Option<Schema>, Error> {
        let files = self.fresh(known.is_some());
        let looks: Vec<_> = files.iter().map(|listed| self.footer(listed)).collect();
        let found: Vec<Arc<Schema>> =
            futures::stream::iter(looks).buffered(self.settings.samples_at_once).try_collect().await?;
        let unknown = self.files.source.files.unknown_columns;
        let mut settled = known;
        for (listed, found) in files.iter().zip(found) {
            if let (UnknownColumns::Fail, Some(settled)) = (unknown, &settled) {
                let names: Vec<String> = found.fields().iter().map(|field| field.name().clone()).collect();
                self.refuse_unknown(listed, settled, &names)?;
            }
            let grows = self.evolves() && self.files.source.files.schema.is_none();
            let merged = parquet::merged(settled, &found, self.evolves(), grows);
            settled = Some(merged.map_err(|(column, found, expected)| Error::Schema {
                url: self.request.url.clone(),
                file: listed.file.path.clone(),
                column,
                found,
                expected,
                hint: TYPE_HINT,
            })?);
        }
        Ok(settled)
    }

    async fn footer(&self, listed: &Listed) -> Result<Arc<Schema>, Error> {
        let file = &listed.file;
        let found = file_schema(self.storage, &file.path, file.bytes).await.map_err(fault(self.storage.url()))?;
        // Types that no Hudi table has are read as the next one that it has.
        let text = schema::to_json(&found);
        schema::given("its footer", &text).map(Arc::new).map_err(|problem| self.broken(listed, problem))
    }

    fn refuse_unknown(&self, listed: &Listed, settled: &Schema, names: &[String]) -> Result<(), Error> {
        let fields: Vec<Field> = settled.fields().iter().map(|field| field.as_ref().clone()).collect();
        let unknown: Vec<&str> =
            names.iter().filter(|name| !schema::has(&fields, name)).map(String::as_str).take(10).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(self.broken(
            listed,
            format!(
                "it has columns that the schema does not have: {}; set `files.unknown_columns` to \"evolve\" or \"ignore\"",
                unknown.join(", ")
            ),
        ))
    }

    async fn csv(&self, known: Option<Schema>, format: &CsvFormat) -> Result<Option<Schema>, Error> {
        let files = self.fresh(known.is_some());
        let rows = self.files.source.files.sample_rows as usize;
        let format = CsvFormat { infer: format.infer && rows > 0, ..format.clone() };
        let (mut settled, mut looked) = (known, 0);
        if settled.is_none() {
            let mut samples: Vec<CsvSample> = Vec::new();
            let mut left = rows.max(1);
            for listed in &files {
                let sample = self.csv_sample(listed, &format, left).await?;
                left = left.saturating_sub(sample.rows.len());
                samples.push(sample);
                looked += 1;
                if left == 0 {
                    break;
                }
            }
            if samples.iter().any(|sample| !sample.names.is_empty()) {
                settled = Some(Schema::new(sniff::csv_columns(&format, &samples)));
            }
        }
        let unknown = self.files.source.files.unknown_columns;
        let Some(mut schema) = settled else { return Ok(None) };
        if !format.header || format.by_position || unknown == UnknownColumns::Ignore {
            return Ok(Some(schema));
        }
        let rest = &files[looked..];
        let looks: Vec<_> = rest.iter().map(|listed| self.csv_sample(listed, &format, 0)).collect();
        let headers: Vec<CsvSample> =
            futures::stream::iter(looks).buffered(self.settings.samples_at_once).try_collect().await?;
        for (listed, header) in rest.iter().zip(headers) {
            let fields: Vec<Field> = schema.fields().iter().map(|field| field.as_ref().clone()).collect();
            if header.names.iter().all(|name| schema::has(&fields, name)) {
                continue;
            }
            if unknown == UnknownColumns::Fail {
                self.refuse_unknown(listed, &schema, &header.names)?;
            }
            let sample = self.csv_sample(listed, &format, rows.max(1)).await?;
            schema = schema::grown(&schema, &sniff::csv_columns(&format, &[sample]));
        }
        Ok(Some(schema))
    }

    async fn csv_sample(&self, listed: &Listed, format: &CsvFormat, rows: usize) -> Result<CsvSample, Error> {
        let mut sampler = CsvSampler::new(format, rows);
        let push = |text: &[u8], last: bool| sampler.push(text, last);
        self.look(listed, format.encoding, push).await?;
        Ok(sampler.finish())
    }

    async fn json(&self, known: Option<Schema>, format: &JsonFormat) -> Result<Option<Schema>, Error> {
        let files = self.fresh(known.is_some());
        let rows = self.files.source.files.sample_rows.max(1) as usize;
        if known.is_some() && !self.evolves() {
            return Ok(known);
        }
        let looks: Vec<_> = files.iter().map(|listed| self.json_sample(listed, format, rows)).collect();
        let shapes: Vec<Shape> =
            futures::stream::iter(looks).buffered(self.settings.samples_at_once).try_collect().await?;
        let mut shape = Shape::Nothing;
        shapes.into_iter().for_each(|other| shape.merge(other));
        let columns = shape.columns();
        Ok(match known {
            Some(known) => Some(schema::grown(&known, &columns)),
            None => (!columns.is_empty()).then(|| Schema::new(columns)),
        })
    }

    async fn json_sample(&self, listed: &Listed, format: &JsonFormat, rows: usize) -> Result<Shape, Error> {
        let mut sampler = JsonSampler::new(rows, format.max_record);
        self.look(listed, None, |text, last| Ok(sampler.push(text, last))).await?;
        Ok(sampler.finish())
    }

    /// Shows a file's text from its beginning until whoever looks has seen enough.
    async fn look(
        &self,
        listed: &Listed,
        encoding: Option<Encoding>,
        mut push: impl FnMut(&[u8], bool) -> Result<bool, String>,
    ) -> Result<(), Error> {
        let mut text = TextOf::new(&listed.file.path, encoding);
        let mut parts = parts(self.storage, listed.file.clone(), LOOK_BYTES);
        let broken = |detail: String| self.broken(listed, detail);
        loop {
            let part = parts.next().await.transpose()?;
            let last = part.is_none();
            let mut part = part.unwrap_or_default();
            loop {
                let step = part.split_to(text.step(part.len()));
                let more = text.push(&step, last && part.is_empty()).map_err(broken)?;
                if push(&more, false).map_err(broken)? {
                    return Ok(());
                }
                if part.is_empty() {
                    break;
                }
            }
            if last {
                push(&[], true).map_err(broken)?;
                return Ok(());
            }
        }
    }
}
