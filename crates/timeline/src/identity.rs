// SPDX-License-Identifier: Apache-2.0
//! Which table a cursor belongs to (W12): its name and its first commit.
//!
//! The text is `<name>@<requested time of the first commit>`, and `<name>@-` before the first commit. A table keeps
//! its identity when its first commits are archived, and when an earlier request completes after a later one: what
//! counts is that the table still knows the commit that the text names.

use tributary_types::InstantTime;

const NO_COMMIT: &str = "-";

/// The identity of a table whose first commit is `first`.
pub(crate) fn fingerprint(name: &str, first: Option<&InstantTime>) -> String {
    format!("{name}@{}", first.map_or(NO_COMMIT, InstantTime::as_str))
}

/// Whether the table of this name is the one that `expected` was taken from; `knows` answers for a commit.
pub(crate) fn is_same_table(expected: &str, name: &str, knows: impl Fn(&InstantTime) -> bool) -> bool {
    // A name may hold the separator, an instant cannot.
    match expected.rsplit_once('@') {
        Some((expected_name, _)) if expected_name != name => false,
        Some((_, NO_COMMIT)) => true,
        Some((_, first)) => first.parse().is_ok_and(|first| knows(&first)),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "20250101000001000";
    const SECOND: &str = "20250101000002000";

    #[test]
    fn a_table_is_the_same_while_it_knows_its_first_commit() {
        let first: InstantTime = FIRST.parse().unwrap();
        let text = fingerprint("t", Some(&first));
        assert!(is_same_table(&text, "t", |time| *time == first));
        assert!(!is_same_table(&text, "t", |time| time.as_str() == SECOND), "re-created");
        assert!(!is_same_table(&text, "u", |_| true), "another table");
    }

    #[test]
    fn an_empty_table_stays_itself_when_its_first_commit_arrives() {
        let text = fingerprint("a@b", None);
        assert_eq!(text, "a@b@-");
        assert!(is_same_table(&text, "a@b", |_| false));
        assert!(!is_same_table("", "", |_| true));
    }
}
