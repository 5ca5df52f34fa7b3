// SPDX-License-Identifier: Apache-2.0
//! Splits dealt out to those who read them at the same time.

use super::Split;

/// Deals splits out to at most `parts` groups of about the same size in bytes: the largest first, each to the group
/// that has least. Inside a group they keep their order. There is always one group, if an empty one.
pub fn balance(splits: &[Split], parts: usize) -> Vec<Vec<Split>> {
    let parts = parts.clamp(1, splits.len().max(1));
    let mut by_size: Vec<usize> = (0..splits.len()).collect();
    by_size.sort_by_key(|position| std::cmp::Reverse(splits[*position].total_bytes()));
    let mut groups: Vec<(u64, Vec<usize>)> = vec![(0, Vec::new()); parts];
    for position in by_size {
        let lightest = groups.iter_mut().min_by_key(|(bytes, members)| (*bytes, members.len()));
        if let Some((bytes, members)) = lightest {
            *bytes = bytes.saturating_add(splits[position].total_bytes());
            members.push(position);
        }
    }
    groups
        .into_iter()
        .map(|(_, mut members)| {
            members.sort_unstable();
            members.into_iter().map(|position| splits[position].clone()).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(path: &str, bytes: u64) -> Split {
        Split {
            url: "/t".to_string(),
            partition: String::new(),
            file_id: path.to_string(),
            path: path.to_string(),
            bytes,
            logs: None,
            instants: None,
            all_but: false,
            file: None,
            deleted: crate::timeline::Deleted::Unsaid,
        }
    }

    fn paths(groups: &[Vec<Split>]) -> Vec<Vec<&str>> {
        groups.iter().map(|group| group.iter().map(|split| split.path.as_str()).collect()).collect()
    }

    #[test]
    fn splits_are_balanced_by_bytes_and_keep_their_order() {
        let splits = [split("a", 10), split("b", 90), split("c", 40), split("d", 45)];
        assert_eq!(paths(&balance(&splits, 2)), [vec!["b"], vec!["a", "c", "d"]]);
    }

    #[test]
    fn there_are_never_more_groups_than_splits_and_never_none() {
        assert_eq!(paths(&balance(&[], 4)), [Vec::<&str>::new()]);
        assert_eq!(paths(&balance(&[split("a", 0)], 4)), [vec!["a"]]);
        let unknown_sizes = [split("a", 0), split("b", 0), split("c", 0), split("d", 0)];
        assert_eq!(paths(&balance(&unknown_sizes, 2)), [vec!["a", "c"], vec!["b", "d"]]);
    }
}
