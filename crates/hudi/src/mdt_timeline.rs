// SPDX-License-Identifier: Apache-2.0
//! The metadata table's own timeline.
//!
//! Its instants are text here: up to table version 7 the services of a metadata table take the time of the data
//! instant that they ran with and three digits more (`<time>001` is a compaction), and such instants stay when the
//! table is upgraded. The order of instants is the order of their text.

use std::collections::BTreeMap;

/// Longest instant: 17 digits and a suffix of three.
const MOST_DIGITS: usize = 20;
/// Shortest instant: seconds only.
const LEAST_DIGITS: usize = 14;

/// Which instants there are, and when each completed.
#[derive(Debug, Default)]
pub(crate) struct MdtTimeline {
    /// Completion by requested time; `None` while pending. On layout 1 the requested time stands for it.
    instants: BTreeMap<String, Option<String>>,
}

impl MdtTimeline {
    /// Where the timeline of a metadata table of this layout is.
    pub(crate) fn directory(layout: u32) -> &'static str {
        match layout {
            1 => ".hoodie/metadata/.hoodie",
            _ => ".hoodie/metadata/.hoodie/timeline",
        }
    }

    /// Interprets the file names of a timeline directory; other files are passed over.
    pub(crate) fn from_names<'a>(layout: u32, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut timeline = MdtTimeline::default();
        for name in names {
            let Some((stem, action)) = name.split_once('.') else { continue };
            let pending = action == "inflight" || action.ends_with(".inflight") || action.ends_with(".requested");
            let completed = match (pending, stem.split_once('_')) {
                (true, _) => None,
                (false, Some((_, completed))) if layout != 1 => Some(completed),
                (false, None) if layout == 1 => Some(stem),
                (false, _) => continue,
            };
            let requested = stem.split_once('_').map_or(stem, |(requested, _)| requested);
            if !is_instant(requested) || !completed.is_none_or(is_instant) {
                continue;
            }
            let known = timeline.instants.entry(requested.to_string()).or_default();
            *known = completed.map(str::to_string).or(known.take());
        }
        timeline
    }

    /// When an instant completed; `None` for one that is pending or not there.
    pub(crate) fn completion(&self, instant: &str) -> Option<&str> {
        self.instants.get(instant)?.as_deref()
    }

    /// Whether a file of this instant belongs to the table: the instant completed, or it is older than the timeline
    /// and so was archived.
    pub(crate) fn is_committed(&self, instant: &str) -> bool {
        match self.instants.get(instant) {
            Some(completed) => completed.is_some(),
            None => self.instants.keys().next().is_none_or(|earliest| instant < earliest.as_str()),
        }
    }

    /// Completed instants.
    pub(crate) fn completed(&self) -> impl Iterator<Item = &str> {
        self.instants.iter().filter(|(_, completed)| completed.is_some()).map(|(requested, _)| requested.as_str())
    }
}

/// Whether a text is an instant of a metadata table.
pub(crate) fn is_instant(text: &str) -> bool {
    (LEAST_DIGITS..=MOST_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const T1: &str = "20250101000001000";
    const T2: &str = "20250101000002000";

    #[test]
    fn services_of_layout_one_have_three_digits_more() {
        let names = [
            format!("{T1}.deltacommit.requested"),
            format!("{T1}.deltacommit.inflight"),
            format!("{T1}.deltacommit"),
            format!("{T1}001.compaction.requested"),
            format!("{T1}001.commit"),
            format!("{T2}.deltacommit.inflight"),
            "hoodie.properties".to_string(),
        ];
        let timeline = MdtTimeline::from_names(1, names.iter().map(String::as_str));
        assert_eq!(timeline.completed().collect::<Vec<_>>(), [T1.to_string(), format!("{T1}001")]);
        assert!(timeline.is_committed(&format!("{T1}001")) && !timeline.is_committed(T2));
        assert!(timeline.is_committed("20240101000000000"), "archived");
    }

    #[test]
    fn an_upgraded_timeline_keeps_the_longer_instants() {
        let names = [format!("{T1}001_{T2}.commit"), format!("{T2}.deltacommit.requested"), format!("{T2}.commit")];
        let timeline = MdtTimeline::from_names(2, names.iter().map(String::as_str));
        assert_eq!(timeline.completion(&format!("{T1}001")), Some(T2));
        assert_eq!(timeline.completion(T2), None, "layout 2 completes under two times");
    }
}
