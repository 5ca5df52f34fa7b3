// SPDX-License-Identifier: Apache-2.0
//! How much SQL is too much, told from its words before it is parsed.
//!
//! `a + a + a …` nests one level deeper with each operator, without a bracket that the parser could count, and a set
//! operation does with each branch. What comes after the parser walks such trees level by level on its stack, so
//! they have to be bounded before there is a tree.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use tributary_api::merge::Error;

use crate::script::{is_blank, place_of};
use crate::settings::Settings;

/// What was seen inside one pair of brackets.
#[derive(Debug, Default, Clone, Copy)]
struct Level {
    /// Words and signs since the last comma or clause.
    run: usize,
    /// Set operations.
    set_operations: usize,
}

/// Checks the number of words and the length of chains.
pub(crate) fn check(tokens: &[TokenWithSpan], settings: &Settings) -> Result<(), Error> {
    let count = tokens.iter().filter(|token| !is_blank(&token.token)).count();
    if count > settings.max_plan_nodes {
        return Err(Error::Limit {
            limit: "plan size",
            detail: format!(
                "the SQL has {count} words and signs, {} are allowed; simplify it",
                settings.max_plan_nodes
            ),
        });
    }
    let mut levels = vec![Level::default()];
    for token in tokens.iter().filter(|token| !is_blank(&token.token)) {
        match &token.token {
            Token::LParen | Token::LBracket => levels.push(Level::default()),
            Token::RParen | Token::RBracket if levels.len() > 1 => {
                levels.pop();
            }
            _ => {}
        }
        let Some(level) = levels.last_mut() else { continue };
        count_token(level, &token.token);
        // An operator and an operand for each link.
        if level.run > 2 * settings.max_chain || level.set_operations > settings.max_chain {
            let at = place_of(token.span).map(|place| place.at()).unwrap_or_default();
            return Err(Error::Limit {
                limit: "nesting",
                detail: format!(
                    "a chain of operators or set operations{at} has more than {} links; shorten it (`IN (…)` instead \
                     of many `OR`)",
                    settings.max_chain
                ),
            });
        }
    }
    Ok(())
}

/// How deep brackets and CASE expressions nest.
pub(crate) fn depth(tokens: &[TokenWithSpan]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for token in tokens {
        match &token.token {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket => depth = depth.saturating_sub(1),
            Token::Word(word) if word.keyword == Keyword::CASE => depth += 1,
            Token::Word(word) if word.keyword == Keyword::END => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn count_token(level: &mut Level, token: &Token) {
    match token {
        Token::SemiColon => *level = Level::default(),
        Token::Comma => level.run = 0,
        Token::Word(word) => match word.keyword {
            Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT | Keyword::MINUS => {
                level.set_operations += 1;
                level.run = 0;
            }
            Keyword::SELECT
            | Keyword::FROM
            | Keyword::WHERE
            | Keyword::GROUP
            | Keyword::HAVING
            | Keyword::ORDER
            | Keyword::JOIN
            | Keyword::ON
            | Keyword::WHEN
            | Keyword::THEN
            | Keyword::ELSE => level.run = 0,
            _ => level.run += 1,
        },
        _ => level.run += 1,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

    use super::*;
    use crate::dialect::SqlDialect;

    fn checked(sql: &str) -> Result<(), Error> {
        let settings = Settings { max_chain: 10, ..Settings::default() };
        let tokens = Tokenizer::new(&SqlDialect::default(), sql).tokenize_with_location().unwrap();
        check(&tokens, &settings)
    }

    #[test]
    fn long_chains_of_operators_and_set_operations_are_refused() {
        let refused = checked(&format!("SELECT\n {}", vec!["a"; 20].join(" + "))).unwrap_err();
        assert!(refused.to_string().contains("at line 2"), "{refused}");
        let in_brackets = format!("SELECT f(1, ({}))", vec!["a"; 20].join(" OR "));
        assert!(checked(&in_brackets).is_err());
        assert!(checked(&vec!["SELECT 1"; 20].join(" UNION ALL ")).is_err());
        assert!(checked(&vec!["NOT"; 40].join(" ")).is_err());
    }

    #[test]
    fn long_lists_many_clauses_and_many_statements_are_no_chains() {
        for sql in [
            format!("SELECT {}", vec!["a + b"; 100].join(", ")),
            format!("SELECT CASE {} END", "WHEN a = 1 THEN 2 ".repeat(100)),
            format!("SELECT a FROM t {}", "JOIN t ON a = b ".repeat(100)),
            "SELECT 1 UNION SELECT 2;".repeat(100),
            "SELECT a IN (1, 2, 3);".repeat(100),
        ] {
            assert!(checked(&sql).is_ok(), "{sql}");
        }
    }
}
