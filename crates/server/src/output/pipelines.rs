// SPDX-License-Identifier: Apache-2.0
//! Stored pipelines, printed.

use serde::Serialize;
use tributary_api::pipelines::StoredPipeline;
use tributary_types::PipelineName;
use tributary_types::pipeline::Pipeline;

use super::print_json;
use crate::cli::Output;

/// A stored pipeline as scripts see it.
#[derive(Serialize)]
struct StoredJson<'a> {
    pipeline: &'a str,
    state: &'a str,
    /// Empty: nothing was stored.
    etag: &'a str,
    /// Milliseconds since the epoch.
    created_millis: i64,
    updated_millis: i64,
    definition: &'a Pipeline,
}

fn state(stored: &StoredPipeline) -> &'static str {
    if stored.paused { "PAUSED" } else { "ACTIVE" }
}

fn json(stored: &StoredPipeline) -> StoredJson<'_> {
    StoredJson {
        pipeline: stored.pipeline.name.as_str(),
        state: state(stored),
        etag: &stored.etag,
        created_millis: stored.created_millis,
        updated_millis: stored.updated_millis,
        definition: &stored.pipeline,
    }
}

/// Prints a stored pipeline with its definition.
pub(crate) fn print_stored(stored: &StoredPipeline, output: Output) {
    if output == Output::Json {
        print_json(&json(stored));
        return;
    }
    println!("# pipeline {}", stored.pipeline.name);
    match stored.etag.as_str() {
        "" => println!("# not stored: it was only checked"),
        etag => println!("# {}, etag {etag}", state(stored).to_lowercase()),
    }
    // What cannot be said in TOML can be in JSON.
    let text = toml::to_string(&stored.pipeline);
    println!("{}", text.unwrap_or_else(|_| serde_json::to_string_pretty(&stored.pipeline).unwrap_or_default()));
}

/// Prints stored pipelines, one a line.
pub(crate) fn print_stored_list(found: &[StoredPipeline], output: Output) {
    if output == Output::Json {
        found.iter().for_each(|stored| print_json(&json(stored)));
        return;
    }
    let widest = found.iter().map(|stored| stored.pipeline.name.as_str().len()).max().unwrap_or_default();
    for stored in found {
        let sources: Vec<&str> = stored.pipeline.sources.iter().map(|source| source.name.as_str()).collect();
        let (name, target) = (stored.pipeline.name.as_str(), &stored.pipeline.target.path);
        let (state, etag) = (state(stored).to_lowercase(), &stored.etag);
        println!("{name:widest$}  {state:<6}  {etag}  {} -> {target}", sources.join(", "));
    }
}

#[derive(Serialize)]
struct DeletedJson<'a> {
    pipeline: &'a str,
    deleted: bool,
}

/// Says that a pipeline is gone, or would be.
pub(crate) fn print_deleted(name: &PipelineName, dry_run: bool, output: Output) {
    match (output, dry_run) {
        (Output::Json, _) => print_json(&DeletedJson { pipeline: name.as_str(), deleted: !dry_run }),
        (Output::Text, false) => println!("pipeline {name} is forgotten; its target and batches stay"),
        (Output::Text, true) => println!("pipeline {name} would be forgotten"),
    }
}
