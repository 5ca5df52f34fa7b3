// SPDX-License-Identifier: Apache-2.0
//! Where the sources of a batch stand before it: as the newest commit says, but for sources that were renamed, that are
//! back after a time without them, whose cursor is set by hand, or that another program read before.

use std::collections::BTreeMap;

use tributary_api::checkpoint::{KnownCursor, LegacyCheckpoint, Resolved};
use tributary_api::coordinator::{Error, OverrideStatus};
use tributary_api::timeline::Begin;
use tributary_types::pipeline::{FileOrder, OnMalformedCursor, Pipeline, ReadMode, Source, SourceKind, Start};
use tributary_types::{
    Checkpoint, Cursor, FLAT_KEY_V2, FilePosition, InstantTime, Override, OverrideTo, SourceName, parse_flat_form,
};

use crate::decide::{begin_at, check_cursors};
use crate::overrides::{Chosen, Move, choose};
use crate::service::Roles;

/// Where the sources of a batch stand.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    newest: Option<(InstantTime, Checkpoint)>,
    chosen: Chosen,
    /// Names that sources had in the newest commit.
    former: BTreeMap<SourceName, SourceName>,
    /// Where sources without a start begin, before the first commit.
    first_start: Option<Start>,
}

impl Standing {
    /// The newest commit and its cursors, each under the name that its source has now.
    pub(crate) fn newest(&self) -> Option<(&InstantTime, &Checkpoint)> {
        self.newest.as_ref().map(|(instant, checkpoint)| (instant, checkpoint))
    }

    pub(crate) fn checkpoint(&self) -> Option<&Checkpoint> {
        self.newest.as_ref().map(|(_, checkpoint)| checkpoint)
    }

    /// Where a source begins instead of at its cursor.
    pub(crate) fn moved(&self, source: &SourceName) -> Option<&Move> {
        self.chosen.moves.get(source)
    }

    /// Where nothing is but a commit with these cursors.
    #[cfg(test)]
    pub(crate) fn of(instant: &InstantTime, checkpoint: &Checkpoint) -> Self {
        Standing { newest: Some((instant.clone(), checkpoint.clone())), ..Standing::default() }
    }

    /// Where a source without a cursor and without a start begins.
    pub(crate) fn first_start(&self) -> Option<Begin> {
        self.first_start.as_ref().and_then(begin_at)
    }

    /// The name that a source had in the newest commit.
    pub(crate) fn former<'a>(&'a self, source: &'a SourceName) -> &'a SourceName {
        self.former.get(source).unwrap_or(source)
    }

    /// Tokens of the overrides that the next commit applies.
    pub(crate) fn tokens(&self) -> &[String] {
        &self.chosen.tokens
    }

    pub(crate) fn overrides(&self) -> &[OverrideStatus] {
        &self.chosen.statuses
    }
}

/// Finds out where the sources of `pipeline` stand in its target at `url`.
pub(crate) async fn find_standing(
    roles: &Roles,
    pipeline: &Pipeline,
    url: &str,
    resolved: &Resolved,
    overrides: &[Override],
) -> Result<Standing, Error> {
    let mut standing = begin_with(pipeline, resolved, overrides)?;
    let missing = standing.missing(pipeline);
    if standing.newest.is_some() && !missing.is_empty() {
        let names = missing.iter().flat_map(|source| [Some(&source.name), source.renamed_from.as_ref()]);
        let names: Vec<SourceName> = names.flatten().cloned().collect();
        let found = roles.checkpoints.find_cursors(&pipeline.name, url, &names).await?;
        standing.bring_back(&missing, &found)?;
    } else if standing.newest.is_none() && pipeline.adopt_legacy_checkpoint && !missing.is_empty() {
        let found = roles.checkpoints.find_legacy(url).await?.ok_or_else(|| Error::Target {
            url: url.to_string(),
            what:
                "`adopt_legacy_checkpoint = true`, and no commit of it has a checkpoint of Hudi Streamer that is newer \
                   than the cursors of our pipelines; leave the key out, and every source begins at its `start`"
                    .to_string(),
        })?;
        standing.adopt(pipeline, url, &found)?;
    }
    Ok(standing)
}

fn begin_with(pipeline: &Pipeline, resolved: &Resolved, overrides: &[Override]) -> Result<Standing, Error> {
    let newest = resolved.newest.as_ref();
    let mut standing = Standing {
        chosen: Chosen::default(),
        newest: newest.map(|commit| (commit.instant.clone(), commit.checkpoint.clone())),
        former: BTreeMap::new(),
        first_start: pipeline.first_start.clone().filter(|_| newest.is_none()),
    };
    standing.rename(pipeline);
    standing.chosen = choose(pipeline, overrides, standing.checkpoint())?;
    check_cursors(pipeline, standing.newest(), |source| standing.moved(source).is_some())?;
    Ok(standing)
}

impl Standing {
    /// Puts the entries of renamed sources under their new names.
    fn rename(&mut self, pipeline: &Pipeline) {
        let Some((_, checkpoint)) = &mut self.newest else { return };
        for source in &pipeline.sources {
            let Some(old) = &source.renamed_from else { continue };
            if checkpoint.sources.contains_key(&source.name) {
                continue;
            }
            if let Some(entry) = checkpoint.sources.remove(old) {
                checkpoint.sources.insert(source.name.clone(), entry);
                self.former.insert(source.name.clone(), old.clone());
            }
        }
    }

    /// Sources that are read incrementally and of which the newest commit has no cursor.
    fn missing<'a>(&self, pipeline: &'a Pipeline) -> Vec<&'a Source> {
        let is_missing = |source: &&Source| {
            let malformed = |checkpoint: &Checkpoint| {
                // It was said what to do then: it begins at its `start`.
                source.on_malformed_cursor == OnMalformedCursor::Start && !checkpoint.malformed.is_empty()
            };
            let known = self.checkpoint().is_some_and(|checkpoint| {
                let entry = checkpoint.sources.get(&source.name);
                entry.is_some_and(|it| it.cursor.is_some() || it.restart.is_some()) || malformed(checkpoint)
            });
            source.read == ReadMode::Incremental && self.moved(&source.name).is_none() && !known
        };
        pipeline.sources.iter().filter(is_missing).collect()
    }

    /// Brings back the cursors of sources that an earlier commit knows, where the pipeline says so. One that is known is
    /// never taken for one that was never read.
    fn bring_back(&mut self, missing: &[&Source], found: &[KnownCursor]) -> Result<(), Error> {
        for source in missing {
            let of = |name: &SourceName| found.iter().find(|known| &known.source == name);
            let own = of(&source.name);
            let former = source.renamed_from.as_ref().and_then(of);
            let resumes = source.start == Some(Start::Resume);
            match (own.filter(|_| resumes).or(former.filter(|_| own.is_none())), own) {
                (Some(known), _) => {
                    if let Some((_, checkpoint)) = &mut self.newest {
                        checkpoint.sources.insert(source.name.clone(), known.entry.clone());
                    }
                }
                (None, Some(known)) => {
                    return Err(Error::KnownBefore {
                        source_name: source.name.clone(),
                        instant: known.instant.clone(),
                        // Only entries with a cursor are found.
                        cursor: known.entry.cursor.clone().unwrap_or(Cursor::Completed(InstantTime::init())),
                    });
                }
                (None, None) if resumes => {
                    return Err(Error::NothingToResume { source_name: source.name.clone() });
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Begins the only source where a job of Hudi Streamer stopped.
    fn adopt(&mut self, pipeline: &Pipeline, url: &str, found: &LegacyCheckpoint) -> Result<(), Error> {
        let refuse = |what: String| Error::Legacy { url: url.to_string(), instant: found.instant.clone(), what };
        let read: Vec<&Source> = pipeline.sources.iter().filter(|it| it.read == ReadMode::Incremental).collect();
        let [source] = read.as_slice() else {
            return Err(refuse(format!(
                "it is that of one source, and the pipeline reads {}; leave `adopt_legacy_checkpoint` out and set each \
                 cursor once with `--override NAME=…`",
                read.len()
            )));
        };
        let cursor = legacy_cursor(source, found).map_err(refuse)?;
        self.chosen.statuses.push(OverrideStatus {
            source: source.name.clone(),
            to: format!("{cursor}, adopted from commit {}", found.instant),
            applied_by: None,
            before: None,
        });
        self.chosen.moves.insert(source.name.clone(), Move { begin: Begin::After(cursor), by_hand: true });
        Ok(())
    }
}

/// The cursor that a checkpoint of a job of one source stands for. Its text is what such a source writes under the key it
/// uses (`StreamerCheckpointV1`, `StreamerCheckpointV2`): of a table the requested or the completion time of an instant, of
/// a directory the newest modification that was read.
fn legacy_cursor(source: &Source, found: &LegacyCheckpoint) -> Result<Cursor, String> {
    let text = found.value.trim();
    if source.kind.is_files() {
        let position = match source.files.order {
            FileOrder::Modified => format!("modified:{text}:"),
            FileOrder::Name => format!("name:-:{text}"),
        };
        return position.parse::<FilePosition>().map(Cursor::File).map_err(|e| e.to_string());
    }
    if source.kind == SourceKind::Kafka {
        return format!("offsets:{text}").parse::<Cursor>().map_err(|e| e.to_string());
    }
    let text = match text.contains('=') {
        true => only_entry(source, text)?,
        false => text.to_string(),
    };
    match text.parse::<OverrideTo>() {
        Ok(OverrideTo::Cursor(cursor)) if cursor.instant().is_some() => Ok(cursor),
        Ok(OverrideTo::Bare(instant)) if found.key == FLAT_KEY_V2 => Ok(Cursor::Completed(instant)),
        Ok(OverrideTo::Bare(instant)) => Ok(Cursor::Requested(instant)),
        _ => Err(format!(
            "`{text}` under `{}` is no instant; leave `adopt_legacy_checkpoint` out and set the cursor once with \
             `--override {}=…`",
            found.key, source.name
        )),
    }
}

/// The instant of a form for several sources that has one entry, that of this source.
fn only_entry(source: &Source, text: &str) -> Result<String, String> {
    let (entries, bad) = parse_flat_form(text);
    let known = entries.get(&source.name);
    match (known, entries.len(), bad.is_empty()) {
        (Some(instant), 1, true) => Ok(instant.to_string()),
        _ => Err(format!(
            "`{text}` is of several sources, or of another one than `{}`; leave `adopt_legacy_checkpoint` out and set the \
             cursor once with `--override {}=…`",
            source.name, source.name
        )),
    }
}

#[cfg(test)]
mod tests;
