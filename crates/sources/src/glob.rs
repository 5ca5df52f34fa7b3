// SPDX-License-Identifier: Apache-2.0
//! Patterns of paths: `*` and `?` within a name, `**` across directories, `{a,b}` for either.

/// A pattern, its alternatives written out.
#[derive(Debug, Clone)]
pub(crate) struct Glob {
    alternatives: Vec<Vec<char>>,
}

/// Alternatives that a pattern may stand for.
const ALTERNATIVES: usize = 1000;

impl Glob {
    /// Parses a pattern; answers what is wrong with it.
    pub(crate) fn new(pattern: &str) -> Result<Self, String> {
        let mut alternatives = Vec::new();
        let mut open = vec![pattern.to_string()];
        while let Some(text) = open.pop() {
            let Some(start) = text.find('{') else {
                alternatives.push(text.chars().collect());
                continue;
            };
            let Some(end) = text[start..].find('}').map(|end| start + end) else {
                return Err(format!("`{pattern}`: a `{{` is not closed"));
            };
            if text[start + 1..end].contains('{') {
                return Err(format!("`{pattern}`: `{{` within `{{` is not supported"));
            }
            for choice in text[start + 1..end].split(',') {
                open.push(format!("{}{choice}{}", &text[..start], &text[end + 1..]));
            }
            if open.len() + alternatives.len() > ALTERNATIVES {
                return Err(format!("`{pattern}` stands for more than {ALTERNATIVES} patterns"));
            }
        }
        Ok(Glob { alternatives })
    }

    /// Whether the whole path fits.
    pub(crate) fn fits(&self, path: &str) -> bool {
        let path: Vec<char> = path.chars().collect();
        self.alternatives.iter().any(|pattern| fits(pattern, &path))
    }
}

/// Places of the pattern that the path read so far can have reached, moved on character by character.
fn fits(pattern: &[char], path: &[char]) -> bool {
    let mut reached = vec![false; pattern.len() + 1];
    reached[0] = true;
    close(pattern, &mut reached);
    for &c in path {
        let mut next = vec![false; pattern.len() + 1];
        for (at, _) in reached.iter().enumerate().filter(|(_, reached)| **reached) {
            match pattern.get(at) {
                Some('*') => {
                    let across = is_double(pattern, at);
                    if across || c != '/' {
                        next[at] = true;
                    }
                }
                Some('?') if c != '/' => next[at + 1] = true,
                Some(&literal) if literal == c => next[at + 1] = true,
                _ => {}
            }
        }
        close(pattern, &mut next);
        reached = next;
    }
    reached[pattern.len()]
}

fn is_double(pattern: &[char], at: usize) -> bool {
    pattern.get(at + 1) == Some(&'*') || (at > 0 && pattern[at - 1] == '*')
}

/// A star may stand for nothing, and `**/` for no directory.
fn close(pattern: &[char], reached: &mut [bool]) {
    for at in 0..pattern.len() {
        if !reached[at] || pattern[at] != '*' {
            continue;
        }
        reached[at + 1] = true;
        if pattern.get(at + 1) == Some(&'*') && pattern.get(at + 2) == Some(&'/') && (at == 0 || pattern[at - 1] == '/')
        {
            reached[at + 3] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_shells_do() {
        let cases = [
            ("*.csv", "a.csv", true),
            ("*.csv", "x/a.csv", false),
            ("**/*.csv", "a.csv", true),
            ("**/*.csv", "x/y/a.csv", true),
            ("x/**", "x/y/a.csv", true),
            ("a?.{csv,csv.gz}", "ab.csv.gz", true),
            ("a?.{csv,csv.gz}", "a/.csv", false),
            ("day=*/part-*.csv", "day=1/part-0.csv", true),
            ("day=*/part-*.csv", "day=1/x/part-0.csv", false),
            ("", "a", false),
            ("ü*", "über", true),
        ];
        for (pattern, path, expected) in cases {
            assert_eq!(Glob::new(pattern).unwrap().fits(path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_brace_that_is_not_closed_is_refused() {
        assert!(Glob::new("{a,b").unwrap_err().contains("not closed"));
        let many = "{a,b}".repeat(20);
        assert!(Glob::new(&many).unwrap_err().contains("more than"));
    }
}
