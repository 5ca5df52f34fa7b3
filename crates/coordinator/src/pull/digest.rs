// SPDX-License-Identifier: Apache-2.0
//! Which SQL a batch ran: its digest goes into the commit, and from there to whoever pulls the batch.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tributary_types::PipelineName;
use tributary_types::pipeline::Pipeline;

const KEY_PREFIX: &str = "tributary.sql.";

/// The metadata key of a commit that holds the digest of the pipeline's SQL.
pub(crate) fn digest_key(pipeline: &PipelineName) -> String {
    format!("{KEY_PREFIX}{pipeline}")
}

/// SHA-256 of the pipeline's SQL, in hexadecimal digits: of the text as it was given, of several steps the texts with a
/// line feed in between. `None`: it has no SQL.
pub(crate) fn digest_of(pipeline: &Pipeline) -> Option<String> {
    let texts: Vec<&str> = pipeline.transforms.iter().filter_map(|step| step.sql.as_deref()).collect();
    if texts.is_empty() {
        return None;
    }
    let mut digits = String::with_capacity(64);
    for byte in Sha256::digest(texts.join("\n")) {
        // Writing into a text cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    Some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_text() {
        let text = r#"{"name": "p", "source": [{"name": "s", "path": "/s", "start": "snapshot"}],
                       "transform": [{"sql": "SELECT 1"}],
                       "target": {"path": "/t", "table_name": "t", "record_key": ["id"]}}"#;
        let mut pipeline: Pipeline = serde_json::from_str(text).unwrap();
        // printf 'SELECT 1' | sha256sum
        let expected = "e004ebd5b5532a4b85984a62f8ad48a81aa3460c1ca07701f386135d72cdecf5";
        assert_eq!(digest_of(&pipeline).as_deref(), Some(expected));
        pipeline.transforms.clear();
        assert_eq!(digest_of(&pipeline), None);
    }
}
