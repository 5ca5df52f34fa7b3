// SPDX-License-Identifier: Apache-2.0
//! Generates the gRPC code. The .proto files are compiled in Rust, so nobody needs protoc.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from("../../proto");
    let files = ["common", "coordinator", "timeline", "checkpoint", "merge", "writer", "flight"]
        .map(|role| format!("tributary/{role}/v1/{role}.proto"));
    println!("cargo:rerun-if-changed={}", root.display());
    let descriptors = protox::compile(files, [&root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("tributary.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    // Of others, and no part of what we serve.
    println!("cargo:rerun-if-changed=otlp");
    tonic_prost_build::configure().compile_fds(protox::compile(["trace_service.proto"], ["otlp"])?)?;
    Ok(())
}
