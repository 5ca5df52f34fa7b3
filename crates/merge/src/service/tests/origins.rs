// SPDX-License-Identifier: Apache-2.0
//! What the columns of a result are made of.

use crate::fixtures::{Bench, batch, schema};

fn bench() -> Bench {
    let rows = || vec![batch(&[(1, "a", 10)])];
    Bench::new().source("orders", schema(), rows()).source("users", schema(), rows())
}

/// Each column of the result of `sql` as `name = source.column + …`, with `:` in place of `=` for one that is copied.
async fn origins(sql: &str) -> Vec<String> {
    let checked = bench().check(sql).await.unwrap();
    let columns = checked.schema.fields().iter().zip(&checked.origins);
    let shown = columns.map(|(field, origins)| {
        let from: Vec<String> = origins.columns.iter().map(|(source, column)| format!("{source}.{column}")).collect();
        format!("{} {} {}", field.name(), if origins.copied { ":" } else { "=" }, from.join(" + "))
    });
    shown.map(|text| text.trim_end().to_string()).collect()
}

#[tokio::test]
async fn a_copied_column_and_one_that_is_computed_name_what_they_are_made_of() {
    let sql = "SELECT o.id, u.name AS user_name, o.amount + u.amount AS total, upper(o.name) AS shout, 7 AS seven \
               FROM <SRC:orders> o LEFT JOIN <SRC:users> u ON o.id = u.id WHERE u.name <> 'x'";
    assert_eq!(
        origins(sql).await,
        [
            "id : orders.id",
            "user_name : users.name",
            "total = orders.amount + users.amount",
            "shout = orders.name",
            "seven =",
        ],
        "a filter and the keys of a join are no origin"
    );
}

#[tokio::test]
async fn origins_are_followed_through_views_aggregates_windows_and_unions() {
    let view = "CREATE TEMPORARY VIEW v AS SELECT name, sum(amount) AS amount FROM <SRC:orders> GROUP BY name; \
                SELECT name AS who, amount AS n FROM v";
    assert_eq!(origins(view).await, ["who : orders.name", "n = orders.amount"]);
    let window = "SELECT id, row_number() OVER (PARTITION BY name ORDER BY amount) AS place FROM <SRC:orders>";
    assert_eq!(origins(window).await, ["id : orders.id", "place = orders.amount + orders.name"]);
    let union = "SELECT id, name FROM <SRC:orders> UNION ALL SELECT id, name FROM <SRC:users>";
    assert_eq!(origins(union).await, ["id : orders.id + users.id", "name : orders.name + users.name"]);
}
