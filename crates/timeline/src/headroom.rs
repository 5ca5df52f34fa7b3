// SPDX-License-Identifier: Apache-2.0
//! How far the archiver and the cleaner are from what the next batch needs (W16).
//!
//! The next window begins after `end`. It is lost once the archiver takes a commit after it, or once a clean removes file
//! versions that the table as of the first commit after it is made of. Both go from the old end, so what is left is
//! the number of commits at or before `end` that neither has passed.

use tributary_api::timeline::InstantFact;
use tributary_hudi::target::CleanMark;
use tributary_types::InstantTime;

use crate::cache::Cache;
use crate::facts::Table;

/// How far the newest clean came. It is for a report only, so one that cannot be read holds nothing up.
pub(crate) async fn clean_mark(table: &Table, cache: &Cache) -> Option<CleanMark> {
    let file = CleanMark::newest_file(&table.timeline)?;
    if let Some(known) = cache.clean_mark(&table.url, &file) {
        return known;
    }
    let read = async {
        match table.storage.get(&file).await? {
            Some(bytes) => CleanMark::decode(&file, &bytes),
            None => Ok(None),
        }
    };
    let mark = read.await.unwrap_or_else(|error| {
        let error = &error as &dyn std::error::Error;
        tracing::debug!(url = table.url, file, error, "how far the cleaner came cannot be told");
        None
    });
    cache.keep_clean_mark(&table.url, &file, mark.clone());
    mark
}

/// Commits that archiver and cleaner may still pass. `writes` are the completed ones on the active timeline;
/// `reads_begin`: the table as of `end` itself is needed too (`<PREV:x>`).
pub(crate) fn headroom(
    writes: &[InstantFact],
    end: &InstantTime,
    mark: Option<&CleanMark>,
    reads_begin: bool,
) -> usize {
    let kept = |write: &InstantFact| mark.is_none_or(|mark| mark.keeps(&write.requested));
    // A cleaner that keeps commits keeps the state that they found, too: that of the last commit before them.
    let found = match mark {
        Some(CleanMark::From(_)) => writes.iter().filter(|write| !kept(write)).map(|write| &write.requested).max(),
        _ => None,
    };
    let before = writes.iter().filter(|write| write.completed <= *end);
    let left = before.filter(|write| kept(write) || Some(&write.requested) == found).count();
    left.saturating_sub(usize::from(reads_begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u32) -> InstantTime {
        format!("202501010000{second:02}000").parse().unwrap()
    }

    #[test]
    fn headroom_ends_at_the_archiver_or_at_the_cleaner_whichever_is_nearer() {
        let write = |second: &u32| InstantFact {
            requested: at(*second),
            completed: at(*second + 1),
            action: "commit".to_string(),
        };
        // What is archived is not among the writes.
        let writes: Vec<InstantFact> = [10, 20, 30, 40, 50].iter().map(write).collect();
        let left = |mark: Option<CleanMark>, reads_begin| headroom(&writes, &at(31), mark.as_ref(), reads_begin);
        assert_eq!(left(None, false), 3, "only the archiver");
        assert_eq!(left(Some(CleanMark::From(at(5))), false), 3, "the cleaner is further back");
        assert_eq!(left(Some(CleanMark::From(at(20))), false), 3, "with the state that it found");
        assert_eq!(left(Some(CleanMark::From(at(30))), false), 2);
        assert_eq!(left(Some(CleanMark::From(at(40))), false), 1);
        assert_eq!(left(Some(CleanMark::From(at(50))), false), 0, "it stands at what comes next");
        assert_eq!(left(Some(CleanMark::From(at(60))), false), 0, "it has passed it");
        assert_eq!(left(Some(CleanMark::After(at(20))), false), 1);
        assert_eq!(left(Some(CleanMark::From(at(30))), true), 1, "the beginning is needed as well");
        assert_eq!(left(Some(CleanMark::From(at(50))), true), 0);
    }
}
