// SPDX-License-Identifier: Apache-2.0
//! Names with wildcards.

use serde::Deserialize;

/// A name in which `*` stands for any characters, none too, and `?` for one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    /// The pattern that every name fits.
    pub fn all() -> Self {
        Pattern("*".to_string())
    }

    /// A pattern as it is written.
    pub fn new(text: impl Into<String>) -> Self {
        Pattern(text.into())
    }

    /// The pattern as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether every name fits.
    pub fn is_all(&self) -> bool {
        !self.0.is_empty() && self.0.chars().all(|c| c == '*')
    }

    /// Whether the name fits. Takes at most the product of both lengths, whatever the pattern.
    pub fn fits(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) = (self.0.chars().collect(), name.chars().collect());
        let (mut at, mut from) = (0, 0);
        // Where the last `*` was, and how far it reaches by now.
        let mut star: Option<(usize, usize)> = None;
        while from < name.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, from));
                    at += 1;
                }
                Some(wanted) if *wanted == '?' || *wanted == name[from] => {
                    at += 1;
                    from += 1;
                }
                _ => match star {
                    Some((begin, reached)) => {
                        star = Some((begin, reached + 1));
                        at = begin + 1;
                        from = reached + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|c| *c == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_stand_for_characters() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("*", "orders", true),
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("orders_*", "orders_eu", true),
            ("orders_*", "orders", false),
            ("*_eu", "orders_eu_eu", true),
            ("a*b*c", "a__b__b_c", true),
            ("a*b*c", "a__c__b", false),
            ("?rders", "orders", true),
            ("?rders", "rders", false),
            ("", "x", false),
            ("", "", true),
            ("ö*", "öl", true),
        ] {
            assert_eq!(Pattern::new(pattern).fits(name), fits, "{pattern} {name}");
        }
        assert!(Pattern::new("**").is_all() && !Pattern::new("").is_all() && !Pattern::new("a*").is_all());
    }
}
