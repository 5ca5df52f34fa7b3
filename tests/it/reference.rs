// SPDX-License-Identifier: Apache-2.0
//! Pages that are made of the code: the reference of settings and pipeline keys, of the API, of the command line, and the
//! list of what clients of the wire format rely on. `make docs` writes them, tests compare.

mod api;
mod cli;
mod contract;
mod keys;
mod rust;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Whether files are to be written instead of compared.
fn is_update() -> bool {
    std::env::var("UPDATE").is_ok_and(|value| value == "1")
}

/// Compares a page with what it should be, or writes it.
fn compare(path: &str, text: &str) {
    let file = root().join(path);
    if is_update() {
        fs::write(file, text).unwrap();
        return;
    }
    let found = fs::read_to_string(file).unwrap_or_default();
    let differs = found.lines().zip(text.lines()).find(|(found, wanted)| found != wanted);
    assert!(found == text, "{path} is not what the code says; `make docs` writes it. First difference: {differs:?}");
}

/// A cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// A text without the markup that only the documentation of Rust has.
fn plain(text: &str) -> String {
    text.replace("[`", "`").replace("`]", "`")
}
