// SPDX-License-Identifier: Apache-2.0
//! Which offsets a window holds of each partition: a pure function of what the brokers say and of the cursor.
//!
//! - A partition that the cursor does not know is a new one, and begins with its first message.
//! - Where messages after the cursor are gone, the plan fails, or goes on in that partition as the source says; what is lost
//!   is told.
//! - A cursor behind the end, or of a partition that is not there, is that of another topic.

use std::collections::BTreeMap;
use std::ops::Range;

use tributary_api::timeline::Begin;
use tributary_types::pipeline::{KafkaOptions, OnOutOfRange};
use tributary_types::{Cursor, TopicOffsets};

/// Partitions that a message lists.
const LISTED: usize = 10;

type Offsets = BTreeMap<i32, i64>;

/// What is decided from.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The first offset that is there, of each partition.
    pub(crate) starts: Offsets,
    /// The last stable offset.
    pub(crate) ends: Offsets,
    /// The offsets of the time at which to begin; a partition without such messages begins at its end.
    pub(crate) timed: Offsets,
    /// The offsets of the first messages that were stamped after the ceiling of an aligned batch, where there are any.
    pub(crate) ceiling: Offsets,
}

/// What a plan asks.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    pub(crate) topic: &'a str,
    pub(crate) begin: &'a Begin,
    /// End here: the plan of a batch that is planned again.
    pub(crate) pinned: Option<&'a TopicOffsets>,
    pub(crate) options: &'a KafkaOptions,
}

/// A window.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) begin: TopicOffsets,
    pub(crate) end: TopicOffsets,
    /// What is read: partitions with nothing to read are left out.
    pub(crate) spans: BTreeMap<i32, Range<i64>>,
    /// What is gone and was not read.
    pub(crate) lost: BTreeMap<i32, Range<i64>>,
    /// Offsets after the end.
    pub(crate) lag: u64,
    /// `max_events` ended it.
    pub(crate) limited: bool,
}

/// Why there is no window.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The cursor is none of this topic.
    Unfit(String),
    /// What was not read yet is gone.
    Gone(String),
    /// It is another topic.
    Recreated(String),
}

/// Decides a window.
pub(crate) fn decide(question: &Question<'_>, facts: &Facts) -> Result<Window, Problem> {
    let cursor = match question.begin {
        Begin::After(Cursor::Offsets(offsets)) if offsets.topic == question.topic => Some(offsets),
        Begin::After(Cursor::Offsets(offsets)) => {
            return Err(Problem::Unfit(format!("its cursor {offsets} is of another topic")));
        }
        Begin::After(cursor) => return Err(Problem::Unfit(format!("its cursor {cursor} is none of a topic"))),
        Begin::Latest | Begin::Earliest | Begin::Snapshot | Begin::Timestamp(_) => None,
    };
    if let Some(cursor) = cursor {
        check_cursor(cursor, facts)?;
    }
    let mut lost = BTreeMap::new();
    let mut from = Offsets::new();
    for (partition, start) in &facts.starts {
        let end = facts.ends.get(partition).copied().unwrap_or(*start);
        let stood = match (cursor, question.begin) {
            (Some(cursor), _) => cursor.partitions.get(partition).copied().unwrap_or(*start),
            (None, Begin::Latest) => end,
            (None, Begin::Timestamp(_)) => facts.timed.get(partition).copied().unwrap_or(end),
            (None, _) => *start,
        };
        let mut begin = stood;
        if stood < *start {
            lost.insert(*partition, stood..*start);
            begin = if question.options.on_out_of_range == OnOutOfRange::Latest { end.max(*start) } else { *start };
        }
        from.insert(*partition, begin);
    }
    if !lost.is_empty() && question.options.on_out_of_range == OnOutOfRange::Fail {
        return Err(Problem::Gone(listed(&lost)));
    }
    let ends = ends(question, facts, &from);
    let (to, limited) = match question.pinned {
        Some(_) => (ends.clone(), false),
        None => limit(&from, &ends, question.options.max_events),
    };
    let spans = from.iter().filter_map(|(partition, begin)| {
        let end = to.get(partition).copied().unwrap_or(*begin);
        (*begin < end).then_some((*partition, *begin..end))
    });
    let lag = |(partition, end): (&i32, &i64)| facts.ends.get(partition).map_or(0, |last| (last - end).max(0) as u64);
    let named = |partitions: Offsets| TopicOffsets { topic: question.topic.to_string(), partitions };
    Ok(Window {
        spans: spans.collect(),
        lag: to.iter().map(lag).sum(),
        begin: cursor.cloned().unwrap_or_else(|| named(up_to(&from, &to))),
        end: named(to),
        lost,
        limited,
    })
}

/// Where partitions begin, but behind none of the ends.
fn up_to(from: &Offsets, to: &Offsets) -> Offsets {
    let begin = |(partition, begin): (&i32, &i64)| to.get(partition).map(|end| (*partition, *begin.min(end)));
    from.iter().filter_map(begin).collect()
}

fn check_cursor(cursor: &TopicOffsets, facts: &Facts) -> Result<(), Problem> {
    for (partition, stood) in &cursor.partitions {
        let Some(end) = facts.ends.get(partition) else {
            return Err(Problem::Recreated(format!("partition {partition} was read, and it has none now")));
        };
        if stood > end {
            return Err(Problem::Recreated(format!(
                "partition {partition} was read up to offset {stood}, and it ends at {end} now"
            )));
        }
    }
    Ok(())
}

/// Where each partition ends at most.
fn ends(question: &Question<'_>, facts: &Facts, from: &Offsets) -> Offsets {
    let end = |(partition, begin): (&i32, &i64)| {
        let last = facts.ends.get(partition).copied().unwrap_or(*begin);
        let end = facts.ceiling.get(partition).map_or(last, |ceiling| last.min(*ceiling));
        (*partition, end.max(*begin))
    };
    match question.pinned {
        // A partition that appeared since waits for the next batch.
        Some(pinned) => pinned.partitions.clone(),
        None => from.iter().map(end).collect(),
    }
}

/// Ends within `max_events` in all, and whether that shortened any.
fn limit(from: &Offsets, ends: &Offsets, max_events: u64) -> (Offsets, bool) {
    let wanted = ends.iter().map(|(partition, end)| {
        let begin = from.get(partition).copied().unwrap_or(*end);
        (*partition, (end - begin).max(0) as u64)
    });
    let wanted: Vec<(i32, u64)> = wanted.collect();
    let granted = share(&wanted, max_events);
    let mut to = ends.clone();
    for (partition, events) in &granted {
        if let (Some(begin), Some(end)) = (from.get(partition), to.get_mut(partition)) {
            *end = begin + i64::try_from(*events).unwrap_or(i64::MAX);
        }
    }
    let limited = wanted.iter().any(|(partition, events)| granted.get(partition).is_some_and(|got| got < events));
    (to, limited)
}

/// Shares `most` out: everyone gets the same, and what one does not need goes to the others. So a partition with a long way
/// to go holds up none of the others.
fn share(wanted: &[(i32, u64)], most: u64) -> BTreeMap<i32, u64> {
    let mut by_need = wanted.to_vec();
    by_need.sort_by_key(|(partition, events)| (*events, *partition));
    let mut left = most;
    let mut granted = BTreeMap::new();
    for (place, (partition, events)) in by_need.iter().enumerate() {
        let others = (by_need.len() - place) as u64;
        let part = (*events).min(left.div_ceil(others));
        left -= part;
        granted.insert(*partition, part);
    }
    granted
}

/// Partitions and offsets for a message.
fn listed(lost: &BTreeMap<i32, Range<i64>>) -> String {
    let mut names: Vec<String> = lost.iter().take(LISTED).map(|(partition, span)| told(*partition, span)).collect();
    if lost.len() > LISTED {
        names.push("…".to_string());
    }
    names.join("; ")
}

/// `partition 3: offsets 5 to 8`.
pub(crate) fn told(partition: i32, span: &Range<i64>) -> String {
    format!("partition {partition}: offsets {} to {}", span.start, span.end - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offsets(text: &str) -> TopicOffsets {
        text.parse().unwrap()
    }

    fn facts(starts: &str, ends: &str) -> Facts {
        Facts { starts: offsets(starts).partitions, ends: offsets(ends).partitions, ..Facts::default() }
    }

    fn window_of(begin: Begin, facts: &Facts, options: &KafkaOptions) -> Result<Window, Problem> {
        decide(&Question { topic: "t", begin: &begin, pinned: None, options }, facts)
    }

    fn after(text: &str) -> Begin {
        Begin::After(Cursor::Offsets(offsets(text)))
    }

    #[test]
    fn a_window_goes_on_after_the_cursor_and_new_partitions_begin_with_their_first_message() {
        let facts = facts("t,0:0,1:3,2:7", "t,0:10,1:3,2:9");
        let window = window_of(after("t,0:4,1:3"), &facts, &KafkaOptions::default()).unwrap();
        assert_eq!(window.begin, offsets("t,0:4,1:3"), "the cursor as it was");
        assert_eq!(window.end, offsets("t,0:10,1:3,2:9"));
        assert_eq!(window.spans, BTreeMap::from([(0, 4..10), (2, 7..9)]));
        assert_eq!((window.lag, window.limited), (0, false));
    }

    #[test]
    fn a_start_is_the_first_message_the_end_or_a_time() {
        let mut facts = facts("t,0:2,1:0", "t,0:10,1:5");
        facts.timed = offsets("t,0:6").partitions;
        let options = KafkaOptions::default();
        for (begin, expected) in [
            (Begin::Earliest, "t,0:2,1:0"),
            (Begin::Snapshot, "t,0:2,1:0"),
            (Begin::Latest, "t,0:10,1:5"),
            (Begin::Timestamp(1), "t,0:6,1:5"),
        ] {
            let window = window_of(begin, &facts, &options).unwrap();
            assert_eq!((window.begin, window.end), (offsets(expected), offsets("t,0:10,1:5")));
        }
    }

    #[test]
    fn what_is_gone_fails_by_partition_and_span_or_is_passed_over_in_that_partition_alone() {
        let facts = facts("t,0:5,1:0", "t,0:9,1:9");
        let cursor = || after("t,0:2,1:4");
        let failed = window_of(cursor(), &facts, &KafkaOptions::default());
        assert_eq!(failed, Err(Problem::Gone("partition 0: offsets 2 to 4".to_string())));
        for (on_out_of_range, first) in [(OnOutOfRange::Earliest, 5..9), (OnOutOfRange::Latest, 9..9)] {
            let options = KafkaOptions { on_out_of_range, ..KafkaOptions::default() };
            let window = window_of(cursor(), &facts, &options).unwrap();
            assert_eq!(window.lost, BTreeMap::from([(0, 2..5)]));
            assert_eq!(window.spans.get(&0), Some(&first).filter(|span| !span.is_empty()));
            assert_eq!(window.spans[&1], 4..9, "the healthy partition goes on");
            assert_eq!(window.end, offsets("t,0:9,1:9"));
        }
    }

    #[test]
    fn a_cursor_behind_the_end_or_of_a_missing_partition_is_that_of_another_topic() {
        let facts = facts("t,0:0", "t,0:9");
        for (cursor, part) in [("t,0:10", "up to offset 10, and it ends at 9"), ("t,0:1,4:0", "partition 4")] {
            let Err(Problem::Recreated(why)) = window_of(after(cursor), &facts, &KafkaOptions::default()) else {
                panic!("{cursor} was taken");
            };
            assert!(why.contains(part), "{why}");
        }
        let unfit = window_of(after("other,0:1"), &facts, &KafkaOptions::default());
        assert!(matches!(unfit, Err(Problem::Unfit(_))), "{unfit:?}");
    }

    #[test]
    fn a_partition_with_a_long_way_to_go_holds_up_none_of_the_others() {
        let facts = facts("t,0:0,1:0,2:0", "t,0:1000000,1:10,2:30");
        let options = KafkaOptions { max_events: 60, ..KafkaOptions::default() };
        let window = window_of(Begin::Earliest, &facts, &options).unwrap();
        assert_eq!(window.end, offsets("t,0:25,1:10,2:25"));
        assert_eq!((window.limited, window.lag), (true, 999_975 + 5));
    }

    #[test]
    fn a_plan_that_is_made_again_ends_where_it_ended() {
        let options = KafkaOptions { max_events: 1, ..KafkaOptions::default() };
        let pinned = offsets("t,0:7");
        let facts = facts("t,0:0,1:0", "t,0:50,1:4");
        let cursor = after("t,0:3");
        let question = Question { topic: "t", begin: &cursor, pinned: Some(&pinned), options: &options };
        let window = decide(&question, &facts).unwrap();
        assert_eq!((window.end, window.spans), (pinned.clone(), BTreeMap::from([(0, 3..7)])));
        let question = Question { begin: &Begin::Latest, ..question };
        let window = decide(&question, &facts).unwrap();
        assert!(window.spans.is_empty() && window.end == pinned, "what came since waits: {window:?}");
    }

    #[test]
    fn a_ceiling_ends_partitions_before_the_first_later_message() {
        let mut facts = facts("t,0:0,1:0", "t,0:9,1:9");
        facts.ceiling = offsets("t,0:4,1:1").partitions;
        let window = window_of(after("t,0:2,1:3"), &facts, &KafkaOptions::default()).unwrap();
        assert_eq!(window.end, offsets("t,0:4,1:3"), "never before the cursor");
    }

    proptest! {
        #[test]
        fn shares_use_all_there_is_and_differ_only_where_one_needs_less(
            wanted in prop::collection::vec(0u64..1000, 1..12), most in 1u64..5000,
        ) {
            let wanted: Vec<(i32, u64)> = wanted.into_iter().enumerate().map(|(n, events)| (n as i32, events)).collect();
            let granted = share(&wanted, most);
            let total: u64 = wanted.iter().map(|(_, events)| events).sum();
            prop_assert_eq!(granted.values().sum::<u64>(), total.min(most));
            let most_granted = granted.values().max().copied().unwrap_or(0);
            for (partition, events) in &wanted {
                let got = granted[partition];
                prop_assert!(got == *events || got + 1 >= most_granted, "{partition} got {got} of {events}");
            }
        }
    }
}
