// SPDX-License-Identifier: Apache-2.0
//! The known name that a mistyped one was probably meant to be.

/// The name among `known` that is nearest to `unknown`, ignoring case; `None` where none is near: more than half of the
/// letters would have to change.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = unknown.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&folded, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= name.chars().count().max(folded.chars().count()) / 2)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_found_whatever_its_case_and_a_far_one_is_not() {
        assert_eq!(nearest("Emial", ["id", "email", "clicks"]), Some("email"));
        assert_eq!(nearest("tags", ["id", "email"]), None);
        assert_eq!(nearest("x", []), None);
    }
}
