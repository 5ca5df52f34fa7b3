// SPDX-License-Identifier: Apache-2.0
//! Unquoted names are compared without regard to case, as Spark does, and keep the case they were first written in.
//!
//! The engine itself only offers to lower every name, which loses `orderId`, or to compare exactly, which loses
//! `ORDERID`. So every unquoted word is written the way the sources' columns write it, or else the way the text first
//! does; then exact comparison finds it. A name that the sources write in two ways is left as it stands.

use std::collections::{HashMap, HashSet};

use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// How the columns of the sources are written.
#[derive(Debug, Default)]
pub(crate) struct Casing {
    written: HashMap<String, String>,
    undecided: HashSet<String>,
}

impl Casing {
    /// Learns the column names of `schemas`, those inside structs too.
    pub(crate) fn of<'a>(schemas: impl IntoIterator<Item = &'a Schema>) -> Self {
        let mut casing = Casing::default();
        for schema in schemas {
            for field in schema.fields() {
                casing.learn(field);
            }
        }
        casing
    }

    fn learn(&mut self, field: &Field) {
        let folded = field.name().to_lowercase();
        match self.written.get(&folded) {
            Some(known) if known != field.name() => {
                self.undecided.insert(folded);
            }
            Some(_) => {}
            None => {
                self.written.insert(folded, field.name().clone());
            }
        }
        match field.data_type() {
            DataType::Struct(fields) => fields.iter().for_each(|inner| self.learn(inner)),
            DataType::List(inner) | DataType::LargeList(inner) | DataType::Map(inner, _) => self.learn_inside(inner),
            _ => {}
        }
    }

    /// The names of a list's or map's own fields (`item`, `key`) are no names that SQL could use.
    fn learn_inside(&mut self, field: &Field) {
        if let DataType::Struct(fields) = field.data_type() {
            fields.iter().for_each(|inner| self.learn(inner));
        }
    }

    /// Rewrites the unquoted words of a text.
    pub(crate) fn apply(mut self, tokens: &mut [TokenWithSpan]) {
        for token in tokens {
            let Token::Word(word) = &mut token.token else { continue };
            if word.quote_style.is_some() {
                continue;
            }
            let folded = word.value.to_lowercase();
            if self.undecided.contains(&folded) {
                continue;
            }
            match self.written.get(&folded) {
                Some(written) => word.value.clone_from(written),
                // Keywords are found by what they are, however they are written.
                None if word.keyword == Keyword::NoKeyword => {
                    self.written.insert(folded, word.value.clone());
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

    use super::*;
    use crate::dialect::SqlDialect;

    fn applied(columns: &[&str], sql: &str) -> String {
        let fields: Vec<Field> = columns.iter().map(|name| Field::new(*name, DataType::Int64, true)).collect();
        let mut tokens = Tokenizer::new(&SqlDialect::default(), sql).tokenize_with_location().unwrap();
        Casing::of([&Schema::new(fields)]).apply(&mut tokens);
        tokens.iter().map(|token| token.token.to_string()).collect()
    }

    #[test]
    fn words_are_written_as_the_columns_are_and_else_as_first_seen() {
        assert_eq!(
            applied(&["orderId"], "select ORDERID as Total, total from T t where orderid > 1"),
            "select orderId as Total, Total from T T where orderId > 1"
        );
    }

    #[test]
    fn quoted_names_and_columns_that_differ_by_case_only_stay() {
        assert_eq!(applied(&["orderId"], "select `ORDERID`"), "select `ORDERID`");
        assert_eq!(applied(&["Id", "ID"], "select Id, ID, id"), "select Id, ID, id");
    }
}
