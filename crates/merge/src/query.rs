// SPDX-License-Identifier: Apache-2.0
//! Queries of pullers: the same SQL as merges, over relations with names of their own, and with parameters.
//!
//! A relation may be named with a qualifier; inside the engine it has one plain name, and the text is changed to that
//! after it was parsed. Parameters become literals there too, so that nothing behind it knows of either.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::sql::sqlparser::ast::{
    CastKind, DataType as SqlType, ExactNumberInfo, Expr, Ident, ObjectName, ObjectNamePart, Query, TableAlias,
    TableFactor, TimezoneInfo, Value, ValueWithSpan, Visit, VisitMut, Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::tokenizer::Span;
use tributary_api::merge::{Error, QueryNames, QueryTable};
use tributary_api::timeline::Relation;
use tributary_types::IS_DELETED;

use crate::casing::Casing;
use crate::error::{internal, sql_error};
use crate::script::{self, Script, View, place_of};
use crate::settings::Settings;

/// The columns that tell deleted records from those that are still there.
const KEYS: [&str; 2] = ["_hoodie_record_key", "_hoodie_partition_path"];

/// What a query's text is changed by after it was parsed.
pub(crate) struct Changes {
    /// Plain names of relations, by their names in the text.
    names: Vec<(Vec<String>, String)>,
    /// Views of ours, and their text.
    views: Vec<(String, String)>,
    parameters: Option<RecordBatch>,
}

/// The relations of a query, each under a plain name with the position of its table.
pub(crate) type Relations = Vec<(String, usize, Relation)>;

/// What the tables of a query are in the engine.
pub(crate) fn changes(tables: Vec<QueryTable>, parameters: Option<RecordBatch>) -> (Changes, Relations) {
    let mut changes = Changes { names: Vec::new(), views: Vec::new(), parameters };
    let mut relations = Relations::new();
    for (position, QueryTable { name, relation, deleted }) in tables.into_iter().enumerate() {
        let plain = name.join(".");
        match deleted {
            None => relations.push((plain.clone(), position, relation)),
            Some(deleted) => {
                let [changed, before, after] = ["changed", "before", "after"].map(|part| format!("{plain} ({part})"));
                changes.views.push((plain.clone(), with_deleted(&relation, [&changed, &before, &after])));
                relations.push((changed, position, relation));
                relations.push((before, position, deleted.before));
                relations.push((after, position, deleted.after));
            }
        }
        changes.names.push((name, plain));
    }
    (changes, relations)
}

/// The query that puts the records that a batch deleted beside the rows that it changed, all with a flag.
fn with_deleted(relation: &Relation, [changed, before, after]: [&String; 3]) -> String {
    let quoted = |name: &str| format!("`{}`", name.replace('`', "``"));
    let columns = |flag: &str, keep: bool| {
        let fields = relation.schema.fields().iter().map(|field| field.name().as_str());
        let mut columns: Vec<String> = fields
            .map(|name| match name == IS_DELETED && !keep {
                true => format!("{flag} AS {}", quoted(name)),
                false => quoted(name),
            })
            .collect();
        if relation.schema.column_with_name(IS_DELETED).is_none() {
            columns.push(format!("{flag} AS {}", quoted(IS_DELETED)));
        }
        columns.join(", ")
    };
    let same = KEYS.map(|key| format!("b.`{key}` = a.`{key}`")).join(" AND ");
    format!(
        "SELECT {} FROM {} UNION ALL SELECT {} FROM {} b LEFT ANTI JOIN {} a ON {same}",
        columns("FALSE", true),
        quoted(changed),
        columns("TRUE", false),
        quoted(before),
        quoted(after),
    )
}

/// What a query names: relations that are neither its views nor its common tables, and its parameters.
pub(crate) fn names(text: &str, settings: &Settings) -> Result<QueryNames, Error> {
    let script = script::parse(text, Casing::default(), settings)?;
    let mut found = Found::default();
    for query in script.views.iter().map(|view| &view.query).chain([&script.query]) {
        let _ = query.visit(&mut found);
    }
    found.own.extend(script.views.iter().map(|view| view.name.clone()));
    let own = |name: &[String]| matches!(name, [plain] if found.own.contains(plain));
    let mut relations: Vec<Vec<String>> = Vec::new();
    for name in found.relations {
        if !own(&name) && !relations.contains(&name) {
            relations.push(name);
        }
    }
    let parameters = positions(&found.parameters)?.values().max().map_or(0, |last| last + 1);
    Ok(QueryNames { relations, parameters })
}

#[derive(Default)]
struct Found {
    relations: Vec<Vec<String>>,
    /// Common tables, and views.
    own: HashSet<String>,
    parameters: Vec<(Span, String)>,
}

impl Visitor for Found {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let Some(with) = &query.with {
            self.own.extend(with.cte_tables.iter().map(|table| table.alias.name.value.clone()));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        self.relations.extend(parts_of(relation));
        ControlFlow::Continue(())
    }

    fn pre_visit_value(&mut self, value: &ValueWithSpan) -> ControlFlow<()> {
        if let Value::Placeholder(text) = &value.value {
            self.parameters.push((value.span, text.clone()));
        }
        ControlFlow::Continue(())
    }
}

fn parts_of(name: &ObjectName) -> Option<Vec<String>> {
    name.0.iter().map(|part| part.as_ident().map(|ident| ident.value.clone())).collect()
}

/// Where each parameter stands, and which it is, from 0: those written `?` are counted in the order of the text, the
/// others are `$1`, `$2` and so on.
fn positions(parameters: &[(Span, String)]) -> Result<BTreeMap<(u64, u64), usize>, Error> {
    let mut places: BTreeMap<(u64, u64), &String> = BTreeMap::new();
    for (span, text) in parameters {
        places.insert((span.start.line, span.start.column), text);
    }
    let mut positions = BTreeMap::new();
    let mut counted = 0;
    for (place, text) in places {
        let number = match text.as_str() {
            "?" => {
                counted += 1;
                counted
            }
            named => named.trim_start_matches(['$', '?']).parse().unwrap_or(0),
        };
        if !(1..=MOST_PARAMETERS).contains(&number) {
            return Err(sql_error(None, format!("parameter `{text}` is neither `?` nor `$1` to `${MOST_PARAMETERS}`")));
        }
        positions.insert(place, number - 1);
    }
    Ok(positions)
}

const MOST_PARAMETERS: usize = 1000;

impl Changes {
    /// Changes a parsed text.
    pub(crate) fn apply(&self, script: &mut Script, settings: &Settings) -> Result<(), Error> {
        let mut found = Found::default();
        for query in script.views.iter().map(|view| &view.query).chain([&script.query]) {
            let _ = query.visit(&mut found);
        }
        let mut change = Change { changes: self, positions: positions(&found.parameters)?, error: None };
        for query in script.views.iter_mut().map(|view| &mut view.query).chain([&mut script.query]) {
            let _ = query.visit(&mut change);
        }
        if let Some(error) = change.error {
            return Err(error);
        }
        let mut views = Vec::with_capacity(self.views.len() + script.views.len());
        for (name, text) in &self.views {
            let query = script::parse(text, Casing::default(), settings)?.query;
            views.push(View { name: name.clone(), place: None, query });
        }
        views.append(&mut script.views);
        script.views = views;
        Ok(())
    }

    /// Names are compared exactly, and else without regard to case: which of two ways an unquoted word is written is up
    /// to the columns.
    fn plain_name(&self, name: &ObjectName) -> Option<&str> {
        let parts = parts_of(name)?;
        let alike = |known: &[String]| {
            known.len() == parts.len() && known.iter().zip(&parts).all(|(a, b)| a.eq_ignore_ascii_case(b))
        };
        let exact = self.names.iter().find(|(known, _)| known == &parts);
        exact.or_else(|| self.names.iter().find(|(known, _)| alike(known))).map(|(_, plain)| plain.as_str())
    }
}

struct Change<'a> {
    changes: &'a Changes,
    positions: BTreeMap<(u64, u64), usize>,
    error: Option<Error>,
}

impl VisitorMut for Change<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, alias, args: None, .. } = factor else { return ControlFlow::Continue(()) };
        let Some(plain) = self.changes.plain_name(name) else { return ControlFlow::Continue(()) };
        let last = name.0.last().and_then(ObjectNamePart::as_ident).cloned();
        if let (None, Some(last)) = (&alias, &last) {
            // Columns are qualified by the last part of the name.
            *alias = Some(TableAlias { explicit: true, name: last.clone(), columns: Vec::new(), at: None });
        }
        let span = last.map_or(Span::empty(), |last| last.span);
        *name = ObjectName(vec![ObjectNamePart::Identifier(Ident {
            value: plain.to_string(),
            quote_style: Some('`'),
            span,
        })]);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Value(ValueWithSpan { value: Value::Placeholder(_), span }) = expr else {
            return ControlFlow::Continue(());
        };
        let span = *span;
        let position = self.positions.get(&(span.start.line, span.start.column)).copied().unwrap_or_default();
        let literal = match &self.changes.parameters {
            None => Ok(value(Value::Null, span)),
            Some(row) => literal(row, position, span),
        };
        match literal {
            Ok(literal) => *expr = literal,
            Err(error) => {
                self.error = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

fn value(value: Value, span: Span) -> Expr {
    Expr::Value(ValueWithSpan { value, span })
}

/// The value of a parameter as it could stand in the text.
fn literal(row: &RecordBatch, position: usize, span: Span) -> Result<Expr, Error> {
    let refuse = |message: String| sql_error(place_of(span), message);
    let number = position + 1;
    if position >= row.num_columns() {
        return Err(refuse(format!("parameter {number} has no value: {} were given", row.num_columns())));
    }
    if row.num_rows() != 1 {
        return Err(refuse(format!("parameters need one row of values, {} were given", row.num_rows())));
    }
    let column = row.column(position);
    let null = column.is_null(0) || column.data_type() == &DataType::Null;
    let text = match null {
        true => None,
        false => Some(array_value_to_string(column, 0).map_err(|e| internal(format!("parameter {number}: {e}")))?),
    };
    let sql_type = match column.data_type() {
        DataType::Null => return Ok(value(Value::Null, span)),
        DataType::Boolean => SqlType::Boolean,
        data_type if data_type.is_integer() => SqlType::BigInt(None),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => SqlType::Double(ExactNumberInfo::None),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => SqlType::String(None),
        DataType::Date32 => SqlType::Date,
        DataType::Timestamp(_, None) => SqlType::TimestampNtz(None),
        DataType::Timestamp(_, Some(_)) => SqlType::Timestamp(None, TimezoneInfo::None),
        DataType::Decimal128(precision, scale) if *scale >= 0 => {
            SqlType::Decimal(ExactNumberInfo::PrecisionAndScale(u64::from(*precision), i64::from(*scale)))
        }
        other => return Err(refuse(format!("parameter {number} of type {other} cannot be bound; cast it to text"))),
    };
    let whole = |text: &String| column.data_type().is_integer() && !text.starts_with('-');
    Ok(match text {
        // Plain, so that it may stand behind LIMIT.
        Some(text) if whole(&text) => value(Value::Number(text, false), span),
        Some(text) => cast(value(Value::SingleQuotedString(text), span), sql_type),
        None => cast(value(Value::Null, span), sql_type),
    })
}

fn cast(expr: Expr, data_type: SqlType) -> Expr {
    Expr::Cast { kind: CastKind::Cast, expr: Box::new(expr), data_type, array: false, format: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(text: &str) -> QueryNames {
        names(text, &Settings::default()).unwrap()
    }

    #[test]
    fn a_query_names_relations_but_not_its_own_views_and_common_tables() {
        let text = "CREATE TEMPORARY VIEW v AS SELECT * FROM tables.orders; \
                    WITH c AS (SELECT id FROM `batch:p/r`) SELECT * FROM v JOIN c ON v.id = c.id, tables.Orders \
                    WHERE v.id IN (SELECT id FROM c)";
        let names = names_of(text);
        let expected: [&[&str]; 2] = [&["tables", "orders"], &["batch:p/r"]];
        assert_eq!(names.relations, expected);
        assert_eq!(names.parameters, 0);
    }

    #[test]
    fn parameters_are_counted_in_the_order_of_the_text_or_by_their_numbers() {
        assert_eq!(names_of("SELECT ? FROM t WHERE id = ? LIMIT ?").parameters, 3);
        assert_eq!(names_of("SELECT $2 FROM t WHERE id = $1 OR id = $2").parameters, 2);
        assert!(names("SELECT $0 FROM t", &Settings::default()).is_err());
        assert!(names("SELECT $2000 FROM t", &Settings::default()).is_err());
    }

    #[test]
    fn what_is_no_query_is_refused() {
        for text in ["DELETE FROM t", "INSERT INTO t VALUES (1)", "CREATE TABLE t (a INT)", "DROP TABLE t", "SET a = 1"]
        {
            assert!(names(text, &Settings::default()).is_err(), "{text}");
        }
    }
}
