// SPDX-License-Identifier: Apache-2.0
//! The commands of the binary.

pub mod plan;
pub mod run;
pub mod table;

use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;

use tributary_api::coordinator;
use tributary_hudi::SystemStores;
use tributary_types::pipeline::Pipeline;
use tributary_types::{SystemClock, SystemEntropy};

use crate::embedded::{Embedded, Settings, embed, open_store};
use crate::pipeline_file;

/// A command that could not do its work.
#[derive(Debug)]
pub struct Failed {
    /// What to print.
    pub message: String,
    /// What to exit with.
    pub exit_code: u8,
}

impl Failed {
    /// A failure whose message is the error with its causes.
    pub(crate) fn new(error: &(dyn StdError + 'static), exit_code: u8) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(current) = cause {
            let text = current.to_string();
            if !message.ends_with(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = current.source();
        }
        Failed { message, exit_code }
    }
}

impl From<coordinator::Error> for Failed {
    fn from(error: coordinator::Error) -> Self {
        Failed { message: error.failure().message, exit_code: error.outcome().exit_code() }
    }
}

/// Loads a pipeline file; a wrong one is a rejection.
pub(crate) fn load_pipeline(path: &Path) -> Result<Pipeline, Failed> {
    pipeline_file::load(path).map_err(|e| Failed { message: e.to_string(), exit_code: 2 })
}

/// The roles, embedded, over the system's stores.
pub(crate) fn roles(data: Option<&Path>) -> Result<Embedded, Failed> {
    let store = open_store(data).map_err(|e| Failed::new(&e, 1))?;
    Ok(embed(
        Arc::new(SystemStores::new()),
        store,
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
        Settings::default(),
    ))
}
