// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::lexer::{Kind, Token, tokenize};
use super::*;

fn names(names: &[&str]) -> Vec<SourceName> {
    names.iter().map(|name| SourceName::new(*name).unwrap()).collect()
}

fn bound(sql: &str) -> BoundSql {
    bind(sql, &names(&["db.orders", "users"])).unwrap()
}

fn refused(sql: &str) -> Error {
    bind(sql, &names(&["db.orders", "users"])).unwrap_err()
}

#[test]
fn every_form_is_bound_and_keeps_its_length() {
    let sql = "SELECT * FROM <SRC> , <SRC_1>, <SRC:db.orders>, <SNAP:users>, <PREV:users>";
    let bound = bound(sql);
    assert_eq!(bound.text, "SELECT * FROM `SRC` , `SRC_1`, `SRC:db.orders`, `SNAP:users`, `PREV:users`");
    assert_eq!(bound.text.len(), sql.len());
    let found: Vec<(usize, View, bool)> =
        bound.references.iter().map(|reference| (reference.source, reference.view, reference.by_position)).collect();
    let expected = [
        (0, View::Changed, true),
        (1, View::Changed, true),
        (0, View::Changed, false),
        (1, View::AtEnd, false),
        (1, View::AtBegin, false),
    ];
    assert_eq!(found, expected);
}

#[test]
fn usage_says_what_of_each_source_is_named_and_whether_by_position() {
    let sources = names(&["a", "b", "c"]);
    let bound = bind("SELECT * FROM <SRC> JOIN <SNAP:b> JOIN <PREV:b>", &sources).unwrap();
    let usage = usage(&bound.references, &sources);
    assert_eq!(usage[0].views, Views { changed: true, end: false, begin: false });
    assert!(usage[0].by_position);
    assert_eq!(usage[1].views, Views { changed: false, end: true, begin: true });
    assert!(!usage[1].by_position);
    assert_eq!(usage[2].views, Views::default());
}

#[test]
fn nothing_is_bound_inside_literals_quoted_names_and_comments() {
    for sql in [
        "SELECT '<SRC>'",
        "SELECT 'it''s <SRC>'",
        r"SELECT 'it\'s <SRC>'",
        "SELECT \"<SRC> \\\" <SRC>\"",
        "SELECT `<SRC>`",
        "SELECT 1 -- <SRC>; <SRC:nobody>\n",
        "SELECT 1 /* <SRC> /* <SRC> */ <SRC> */",
        "SELECT $$ <SRC> $$",
        "SELECT $x$ <SRC> $$ <SRC> $x$",
        "SELECT '<SRC> never closed",
        "/* never closed <SRC>",
    ] {
        let bound = bound(sql);
        assert_eq!(bound.text, sql);
        assert_eq!(bound.references, [], "{sql}");
    }
}

#[test]
fn binding_goes_on_after_a_literal_or_comment() {
    for sql in [
        r"SELECT '\\' FROM <SRC>",
        "SELECT '' FROM <SRC>",
        "-- it's\nSELECT * FROM <SRC>",
        "/* ' */ SELECT * FROM <SRC>",
        "SELECT `a``b` FROM <SRC>",
        "SELECT $$'$$ FROM <SRC>",
    ] {
        assert_eq!(bound(sql).references.len(), 1, "{sql}");
    }
}

#[test]
fn comparisons_and_types_are_no_placeholders() {
    for sql in [
        "SELECT a<SRC_1",
        "SELECT a<SRC AND b>1",
        "SELECT a<b>c",
        "SELECT a <SRC_1, b> c",
        "SELECT CAST(x AS STRUCT<src:INT>)",
        "SELECT CAST(x AS array < SRC >)",
        "SELECT a<src.id>b",
        "SELECT a<SRCS>b",
        "SELECT a<b::INT>c",
        "SELECT a<scr::INT>c",
        "SELECT a<b:c>d",
        "SELECT 1 FROM t WHERE a<users>b",
    ] {
        assert_eq!(bound(sql).text, sql);
    }
}

#[test]
fn an_unknown_name_lists_what_there_is_and_suggests_the_nearest() {
    let Error::Placeholder { placeholder, line, column, present } = refused("SELECT *\n  FROM <SRC:db.order>") else {
        panic!("expected a placeholder error");
    };
    assert_eq!((placeholder.as_str(), line, column), ("<SRC:db.order>", 2, 8));
    assert!(present.contains("<SRC:db.orders>, <SRC:users>"), "{present}");
    assert!(present.ends_with("did you mean `<SRC:db.orders>`?"), "{present}");
}

#[test]
fn an_index_without_a_source_and_misspelled_heads_are_refused() {
    for sql in ["<SRC_2>", "<SRC_99>", "<src:users>", "<SNAP_0>", "<SRC:>", "<SNAP>", "<SRC_x>"] {
        let text = refused(sql).to_string();
        assert!(text.contains(sql) && text.contains("did you mean"), "{text}");
    }
    assert!(refused("<SRC_99999999999999999999>").to_string().contains("<SRC_0> to <SRC_1>"));
}

#[test]
fn a_misspelt_kind_is_named_with_the_placeholder_that_was_meant() {
    for (sql, meant) in [
        ("SELECT * FROM <SNAPP:users>", "<SNAP:users>"),
        ("SELECT 1, <SCR:users>", "<SRC:users>"),
        ("SELECT * FROM a JOIN <prv:users> p", "<PREV:users>"),
        ("SELECT * FROM <SCR>", "<SRC>"),
        ("SELECT * FROM\n<SRCC_1>", "<SRC_1>"),
        ("SELECT * FROM <users>", "<SRC:users>"),
        ("SELECT * FROM <SRC:users> u, <SNPA:db.orders>", "<SNAP:db.orders>"),
    ] {
        let text = refused(sql).to_string();
        let written = &sql[sql.rfind('<').unwrap()..=sql.rfind('>').unwrap()];
        assert!(text.contains(written) && text.ends_with(&format!("did you mean `{meant}`?")), "{text}");
    }
}

#[test]
fn a_name_may_hold_quotes_and_slashes() {
    let sources = names(&["it's/here", "a`b", "c--d;e"]);
    let bound = bind("SELECT * FROM <SRC:it's/here> JOIN <SRC:a`b> JOIN <SRC:c--d;e>", &sources).unwrap();
    assert_eq!(bound.text, "SELECT * FROM `SRC:it's/here` JOIN `SRC:a``b` JOIN `SRC:c--d;e`");
    assert_eq!(bound.references.len(), 3);
}

#[test]
fn a_quoted_name_right_beside_a_placeholder_stays_a_name_of_its_own() {
    assert_eq!(bound("SELECT * FROM <SRC>`o`").text, "SELECT * FROM `SRC` `o`");
    assert_eq!(bound("`o`<SRC><SRC_1>").text, "`o` `SRC` `SRC_1`");
}

#[test]
fn separators_are_seen_outside_literals_only() {
    let separators = |sql: &str| tokenize(sql).iter().filter(|token| token.kind == Kind::Separator).count();
    assert_eq!(separators("SELECT ';'; SELECT `;` -- ;\n; /* ; */ SELECT 1"), 2);
}

proptest! {
    #[test]
    fn any_text_is_cut_without_loss(sql in "\\PC*|[-a<>SRC_01:;'\"`$/*\\\\ \n]{0,60}") {
        let tokens = tokenize(&sql);
        let whole: String = tokens.iter().map(|token| token.text).collect();
        prop_assert_eq!(&whole, &sql);
        prop_assert!(tokens.iter().all(|token: &Token<'_>| !token.text.is_empty()));
    }

    #[test]
    fn binding_changes_nothing_but_the_brackets(sql in "(<SRC> |<SRC_1> |<SNAP:users> |[a-z'\" ;$/*<>-]|\n){0,40}") {
        if let Ok(bound) = bind(&sql, &names(&["db.orders", "users"])) {
            let changed: Vec<(char, char)> =
                sql.chars().zip(bound.text.chars()).filter(|(before, after)| before != after).collect();
            prop_assert_eq!(sql.len(), bound.text.len());
            prop_assert!(changed.iter().all(|(before, after)| matches!((before, after), ('<' | '>', '`'))));
        }
    }

    #[test]
    fn the_parser_sees_every_placeholder_as_one_quoted_name(sql in "(<SRC>|'[a-z<>;\\\\']{0,5}'|`[a-z]{1,3}`| |--[a-z']{0,4}\n|/\\*[a-z' ]{0,4}\\*/|\\$\\$[a-z']{0,3}\\$\\$){0,12}") {
        use datafusion::sql::sqlparser::tokenizer::{Token as Parsed, Tokenizer};
        let bound = bind(&sql, &names(&["db.orders"])).unwrap();
        let expected = tokenize(&sql).iter().filter(|token| token.kind == Kind::Placeholder).count();
        if let Ok(parsed) = Tokenizer::new(&crate::dialect::SqlDialect::default(), &bound.text).tokenize() {
            let seen = parsed
                .iter()
                .filter(|token| matches!(token, Parsed::Word(word) if word.quote_style == Some('`') && word.value == "SRC"))
                .count();
            prop_assert_eq!(seen, expected);
        }
    }
}
