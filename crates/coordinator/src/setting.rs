// SPDX-License-Identifier: Apache-2.0
//! Requests that set cursors by hand.

use tributary_api::coordinator::{BatchStatus, Error, OverrideStatus, RunRequest};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Outcome, Override, OverrideError};

use crate::batch::place_cursors;
use crate::flat::check_set_apart;
use crate::metrics;
use crate::service::Inner;
use crate::standing::find_standing;
use crate::target::target_error;

/// The token of an override that is only looked at: it was never applied.
const LOOK: &str = "validate-only";

/// A request as it is run. Whoever asks for nothing but to set cursors means it now, and not once for ever: its overrides
/// have the request's id for a token where they have none.
pub(crate) fn prepared(mut request: RunRequest) -> Result<RunRequest, Error> {
    if !request.cursors_only {
        return Ok(request);
    }
    if request.overrides.is_empty() {
        let problem = "none is given; name at least one, as in `NAME=start`".to_string();
        return Err(Error::Override { problems: vec![problem] });
    }
    request.overrides = with_token(request.overrides, request.request.as_str())?;
    Ok(request)
}

fn with_token(overrides: Vec<Override>, token: &str) -> Result<Vec<Override>, Error> {
    let one = |wanted: Override| match wanted.token {
        Some(_) => Ok(wanted),
        None => wanted.with_token(token),
    };
    let all: Result<Vec<Override>, OverrideError> = overrides.into_iter().map(one).collect();
    all.map_err(|error| Error::Override { problems: vec![error.to_string()] })
}

/// Looks whether cursors can be set so.
pub(crate) async fn check(
    inner: &Inner,
    pipeline: &Pipeline,
    overrides: Vec<Override>,
) -> Result<Vec<OverrideStatus>, Error> {
    let problems = pipeline.validate();
    if !problems.is_empty() {
        return Err(Error::Pipeline { pipeline: pipeline.name.to_string(), problems });
    }
    check_set_apart(pipeline)?;
    let url = &pipeline.target.path;
    let storage = inner.stores.open(url).map_err(|e| target_error(url, "opening the target", e))?;
    let overrides = with_token(overrides, LOOK)?;
    let resolved = inner.roles.checkpoints.look_up(&pipeline.name, storage.url()).await?;
    let standing = find_standing(&inner.roles, pipeline, storage.url(), &resolved, &overrides).await?;
    place_cursors(&inner.roles, pipeline, &standing).await?;
    Ok(standing.overrides().to_vec())
}

/// Counts what became of the overrides of a batch.
pub(crate) fn count(request: &RunRequest, ended: &BatchStatus) {
    let all = request.overrides.len() as u64;
    let already = ended.overrides.iter().filter(|status| status.applied_by.is_some()).count() as u64;
    let left = all.saturating_sub(already);
    let counts = match ended.outcome {
        Some(Outcome::Committed | Outcome::NoNewData) => [left, already, 0, 0],
        Some(Outcome::Rejected) => [0, already, left, 0],
        _ => [0, already, 0, left],
    };
    metrics::record_overrides(request.pipeline.name.as_str(), counts);
}

#[cfg(test)]
mod tests {
    use tributary_types::RequestId;

    use super::*;

    fn request(texts: &[&str], cursors_only: bool) -> RunRequest {
        let target = serde_json::json!({"path": "/t", "table_name": "t", "record_key": ["id"]});
        RunRequest {
            pipeline: serde_json::from_value(serde_json::json!({"name": "p", "target": target})).unwrap(),
            request: RequestId::new("r").unwrap(),
            allow_empty: false,
            overrides: texts.iter().map(|text| text.parse().unwrap()).collect(),
            cursors_only,
            asked_by: String::new(),
        }
    }

    #[test]
    fn a_flag_is_its_own_token_and_a_request_to_set_has_its_id_for_one() {
        let flag = prepared(request(&["a=start"], false)).unwrap();
        assert_eq!(flag.overrides[0].token, None);
        let set = prepared(request(&["a=start"], true)).unwrap();
        assert_eq!(set.overrides[0].token.as_deref(), Some("r"));
        assert!(prepared(request(&[], true)).is_err());
        assert!(prepared(request(&[], false)).is_ok());
    }
}
