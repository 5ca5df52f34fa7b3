// SPDX-License-Identifier: Apache-2.0
//! Folding as a whole: however events are divided into batches and commits, the same rows are stored.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Int64Array, Int64Builder, ListBuilder, StringArray};
use arrow::datatypes::Int64Type;
use proptest::prelude::*;
use tributary_api::Stop;
use tributary_api::writer::{FileSizes, KeySettings};
use tributary_hudi::META_COLUMNS;
use tributary_types::MemoryBudget;
use tributary_types::pipeline::{MergeOperators, OnNullKey};

use super::*;
use crate::combine::{KeyedRows, gather, text};
use crate::deletes::Deletes;
use crate::ingest::{KEY, PARTITION};

/// Something that happened to a key; its place in the list is its time.
#[derive(Debug, Clone)]
struct Event {
    key: u8,
    value: Option<i64>,
    deletes: bool,
}

/// Columns that are folded, with their operators.
const FOLDED: [(&str, &str); 19] = [
    ("number_last", "last"),
    ("number_last_non_null", "last_non_null"),
    ("number_first", "first"),
    ("number_first_non_null", "first_non_null"),
    ("number_keep", "keep"),
    ("number_sum", "sum"),
    ("number_count", "count"),
    ("number_min", "min"),
    ("number_max", "max"),
    ("number_product", "product"),
    ("bool_and", "bool_and"),
    ("bool_or", "bool_or"),
    ("text_last", "last_non_null('v1')"),
    ("text_concat", "concat('-')"),
    ("text_distinct", "concat_distinct('-')"),
    ("list_all", "collect"),
    ("list_set", "collect_set"),
    ("number_sum_last", "sum_last"),
    ("text_concat_last", "concat_last('-')"),
];

/// Those that take one value of each commit, so that it matters how events are divided.
const BY_COMMIT: [&str; 2] = ["number_sum_last", "text_concat_last"];

const DELETED: &str = "_hoodie_is_deleted";

fn list_type() -> DataType {
    DataType::List(Arc::new(Field::new("item", DataType::Int64, true)))
}

fn data_schema() -> SchemaRef {
    let own = FOLDED.iter().map(|(name, _)| {
        let data_type = match name.split('_').next() {
            Some("number") => DataType::Int64,
            Some("bool") => DataType::Boolean,
            Some("text") => DataType::Utf8,
            _ => list_type(),
        };
        Field::new(*name, data_type, true)
    });
    let fields = [("id", DataType::Utf8), ("ts", DataType::Int64), (DELETED, DataType::Boolean)];
    let fields = fields.into_iter().map(|(name, data_type)| Field::new(name, data_type, true));
    Arc::new(Schema::new(fields.chain(own).collect::<Vec<_>>()))
}

fn request(schema: &SchemaRef, given: &SchemaRef, merge: MergeOperators) -> StageRequest {
    StageRequest {
        url: "/t".to_string(),
        table_name: "t".to_string(),
        table_type: TableType::CopyOnWrite,
        instant: "20250606182826197".parse().unwrap(),
        attempt: 0,
        schema: Arc::clone(given),
        table_schema: Arc::clone(schema),
        operation: Operation::Upsert,
        keys: KeySettings {
            record_key: vec!["id".to_string()],
            partition_by: Vec::new(),
            complex: false,
            hive_style: true,
            url_encode: false,
        },
        ordering: vec!["ts".to_string()],
        merge: Some(Arc::new(merge)),
        deletes_give_way: false,
        on_null_key: OnNullKey::Fail,
        files: FileSizes { small: 0, largest: 1 << 20 },
        slices: Arc::default(),
        budget: MemoryBudget::new(1 << 30),
        share: None,
        spill_bytes: 1 << 20,
        stop: Stop::default(),
    }
}

fn operators() -> MergeOperators {
    let columns = FOLDED.iter().map(|(name, operator)| (name.to_string(), operator.parse().unwrap()));
    MergeOperators { columns: columns.collect(), ..MergeOperators::default() }
}

fn plan() -> FoldPlan {
    FoldPlan::of(&request(&data_schema(), &data_schema(), operators())).unwrap().unwrap()
}

fn lists(values: &[Option<i64>]) -> ArrayRef {
    let mut lists = ListBuilder::new(Int64Builder::new());
    for value in values {
        lists.values().append_slice(&value.map_or(vec![], |value| vec![value, value % 2]));
        lists.append(value.is_some());
    }
    Arc::new(lists.finish())
}

/// Events as keyed rows, with their times.
fn keyed(events: &[(i64, Event)]) -> RecordBatch {
    let values: Vec<Option<i64>> = events.iter().map(|(_, event)| event.value).collect();
    let ids: ArrayRef = Arc::new(StringArray::from_iter_values(events.iter().map(|(_, event)| event.key.to_string())));
    let mut columns: Vec<ArrayRef> = vec![
        Arc::clone(&ids),
        Arc::new(StringArray::from(vec![""; events.len()])),
        ids,
        Arc::new(Int64Array::from_iter_values(events.iter().map(|(time, _)| *time))),
        Arc::new(BooleanArray::from_iter(events.iter().map(|(_, event)| Some(event.deletes)))),
    ];
    for field in &data_schema().fields()[3..] {
        columns.push(match field.data_type() {
            DataType::Int64 => Arc::new(Int64Array::from(values.clone())),
            DataType::Boolean => Arc::new(BooleanArray::from_iter(values.iter().map(|v| v.map(|v| v > 0)))),
            DataType::Utf8 => Arc::new(StringArray::from_iter(values.iter().map(|v| v.map(|v| format!("v{v}"))))),
            _ => lists(&values),
        });
    }
    RecordBatch::try_new(keyed_schema(&data_schema()), columns).unwrap()
}

/// A table of one file: the row of each key, keyed and with hidden columns.
#[derive(Default)]
struct Table(BTreeMap<String, RecordBatch>);

fn stored(row: &RecordBatch) -> RecordBatch {
    let data = row.num_columns() - KEY_COLUMNS - 2;
    let mut columns: Vec<(String, ArrayRef)> =
        META_COLUMNS.iter().map(|name| (name.to_string(), new_null_array(&DataType::Utf8, row.num_rows()))).collect();
    for at in KEY_COLUMNS..KEY_COLUMNS + data {
        columns.push((row.schema().field(at).name().clone(), Arc::clone(row.column(at))));
    }
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

impl Table {
    /// Folds the rows of a commit, `batch_rows` at a time, as the writer does.
    fn commit(&mut self, plan: &FoldPlan, batches: Vec<RecordBatch>, batch_rows: usize) -> Result<(), Error> {
        let keyed = keyed_schema(&data_schema());
        let rule = OrderingRule::new(&["ts".to_string()], &keyed)?;
        let deletes = Deletes::of(Operation::Upsert, &keyed);
        let memory = MemoryBudget::new(1 << 30);
        let rows: KeyedRows = fold_rows(plan, batches, rule.as_ref(), deletes, &memory, batch_rows)?;
        for at in &rows.winners {
            let key = rows.identity(*at).1.to_string();
            assert!(rows.find("", &key).is_some_and(|found| rows.winners[found] == *at), "{key} is found");
            if rows.is_delete(*at) {
                self.0.remove(&key);
                continue;
            }
            let row = gather(&rows.batches, &[*at])?;
            let old = self.0.get(&key).filter(|_| !plan.follows_delete(&row, 0)).map(stored);
            let row = match old {
                Some(old) => plan.fold_stored(row, &old, &[Meeting { incoming: 0, stored: 0, is_late: false }])?,
                None => row,
            };
            self.0.insert(key, row);
        }
        Ok(())
    }

    /// What the columns hold, as text.
    fn shown(&self, left_out: &[&str]) -> BTreeMap<String, Vec<(String, Option<String>)>> {
        let names = || FOLDED.iter().map(|(name, _)| *name).filter(|name| !left_out.contains(name));
        let row = |row: &RecordBatch| {
            let cell = |name: &str| (name.to_string(), shown(row.column_by_name(name).unwrap()));
            names().map(cell).collect()
        };
        self.0.iter().map(|(key, batch)| (key.clone(), row(batch))).collect()
    }
}

/// The one value of a column; `None`: null.
fn shown(column: &ArrayRef) -> Option<String> {
    if column.is_null(0) {
        return None;
    }
    Some(match column.data_type() {
        DataType::Int64 => column.as_primitive::<Int64Type>().value(0).to_string(),
        DataType::Boolean => column.as_boolean().value(0).to_string(),
        DataType::Utf8 => column.as_string::<i32>().value(0).to_string(),
        _ => joined(column.as_list::<i32>().value(0).as_primitive::<Int64Type>().values().to_vec(), " "),
    })
}

fn joined<T: ToString>(values: Vec<T>, delimiter: &str) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(delimiter)
}

fn each_once<T: Clone + Ord>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    values.into_iter().filter(|value| seen.insert(value.clone())).collect()
}

/// What must be stored, told from all events of a key at once.
fn expected(events: &[Event]) -> BTreeMap<String, Vec<(String, Option<String>)>> {
    let mut by_key: BTreeMap<String, Vec<Option<i64>>> = BTreeMap::new();
    for event in events {
        match event.deletes {
            true => drop(by_key.remove(&event.key.to_string())),
            false => by_key.entry(event.key.to_string()).or_default().push(event.value),
        }
    }
    by_key.into_iter().map(|(key, values)| (key, expected_row(&values))).collect()
}

fn expected_row(all: &[Option<i64>]) -> Vec<(String, Option<String>)> {
    let some: Vec<i64> = all.iter().flatten().copied().collect();
    let unless_none = |text: String| (!some.is_empty()).then_some(text);
    let number = |value: Option<i64>| value.map(|value| value.to_string());
    let signs: Vec<bool> = some.iter().map(|value| *value > 0).collect();
    let texts: Vec<String> = some.iter().map(|value| format!("v{value}")).collect();
    let elements: Vec<i64> = some.iter().flat_map(|value| [*value, *value % 2]).collect();
    let cells = [
        ("number_last", number(all.last().copied().flatten())),
        ("number_last_non_null", number(some.last().copied())),
        ("number_first", number(all.first().copied().flatten())),
        ("number_first_non_null", number(some.first().copied())),
        ("number_keep", number(some.first().copied())),
        ("number_sum", unless_none(some.iter().sum::<i64>().to_string())),
        ("number_count", Some(some.len().to_string())),
        ("number_min", number(some.iter().min().copied())),
        ("number_max", number(some.iter().max().copied())),
        ("number_product", unless_none(some.iter().product::<i64>().to_string())),
        ("bool_and", unless_none(signs.iter().all(|sign| *sign).to_string())),
        ("bool_or", unless_none(signs.iter().any(|sign| *sign).to_string())),
        ("text_last", texts.iter().rfind(|text| *text != "v1").cloned()),
        ("text_concat", unless_none(texts.join("-"))),
        // The minus sign of a number is the delimiter too.
        ("text_distinct", unless_none(each_once(texts.iter().flat_map(|text| text.split('-'))).join("-"))),
        ("list_all", unless_none(joined(elements.clone(), " "))),
        ("list_set", unless_none(joined(each_once(elements), " "))),
    ];
    cells.into_iter().map(|(name, cell)| (name.to_string(), cell)).collect()
}

fn timed(events: &[Event]) -> Vec<(i64, Event)> {
    events.iter().cloned().enumerate().map(|(time, event)| (time as i64, event)).collect()
}

fn event() -> impl Strategy<Value = Event> {
    (0u8..3, prop::option::of(-3i64..4), prop::bool::weighted(0.12)).prop_map(|(key, value, deletes)| Event {
        key,
        value,
        deletes,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn however_events_are_divided_into_commits_and_batches_the_same_is_stored(
        events in prop::collection::vec(event(), 1..30),
        lengths in prop::collection::vec((1usize..8, 1usize..4), 30),
    ) {
        let plan = plan();
        let all = timed(&events);
        let mut at_once = Table::default();
        // Not in their order: the ordering column tells it.
        let mut reversed = all.clone();
        reversed.reverse();
        at_once.commit(&plan, vec![keyed(&reversed)], 4).unwrap();
        let mut divided = Table::default();
        let mut rest = &all[..];
        for (commit, batch) in lengths {
            let (now, later) = rest.split_at(commit.min(rest.len()));
            divided.commit(&plan, now.chunks(batch).map(keyed).collect(), 8192).unwrap();
            rest = later;
        }
        divided.commit(&plan, vec![keyed(rest)], 8192).unwrap();
        let expected = expected(&events);
        prop_assert_eq!(at_once.shown(&BY_COMMIT), expected.clone());
        prop_assert_eq!(divided.shown(&BY_COMMIT), expected);
    }
}

fn event_of(key: u8, value: Option<i64>) -> Event {
    Event { key, value, deletes: false }
}

fn cell(table: &Table, key: &str, column: &str) -> Option<String> {
    shown(table.0[key].column_by_name(column).unwrap())
}

#[test]
fn of_each_commit_the_last_value_is_added_where_the_operator_says_so() {
    let (plan, mut table) = (plan(), Table::default());
    let commit = |table: &mut Table, from: i64, values: &[Option<i64>]| {
        let events: Vec<_> = values.iter().zip(from..).map(|(value, time)| (time, event_of(1, *value))).collect();
        table.commit(&plan, vec![keyed(&events)], 8192).unwrap();
    };
    commit(&mut table, 0, &[Some(1), Some(2), None]);
    commit(&mut table, 3, &[Some(3)]);
    commit(&mut table, 4, &[None]);
    assert_eq!(cell(&table, "1", "number_sum_last").as_deref(), Some("5"));
    assert_eq!(cell(&table, "1", "text_concat_last").as_deref(), Some("v2-v3"));
}

#[test]
fn a_key_that_comes_very_often_is_folded_too() {
    let (plan, mut table) = (plan(), Table::default());
    let events: Vec<Event> = (0..20_000).map(|n| event_of(0, Some(i64::from(n % 2 == 0)))).collect();
    table.commit(&plan, timed(&events).chunks(700).map(keyed).collect(), 64).unwrap();
    assert_eq!(cell(&table, "0", "number_sum").as_deref(), Some("10000"));
    assert_eq!(cell(&table, "0", "number_count").as_deref(), Some("20000"));
    assert_eq!(cell(&table, "0", "text_concat").unwrap().len(), 20_000 * 3 - 1);
}

#[test]
fn a_late_row_takes_part_as_the_earlier_one_and_what_is_kept_stays() {
    let plan = plan();
    let mut table = Table::default();
    table.commit(&plan, vec![keyed(&[(5, event_of(1, Some(3)))])], 8192).unwrap();
    let old = stored(&table.0["1"]);
    let row = gather(
        &[plan.lift(&keyed(&[(2, event_of(1, Some(2))), (6, event_of(2, None))])).unwrap()],
        &[RowAt { batch: 0, row: 1 }, RowAt { batch: 0, row: 0 }],
    )
    .unwrap();
    // The row of another key beside it meets nothing.
    let folded = plan.fold_stored(row, &old, &[Meeting { incoming: 1, stored: 0, is_late: true }]).unwrap();
    assert_eq!(text(&folded, KEY).value(0), "2");
    assert_eq!((text(&folded, KEY).value(1), text(&folded, PARTITION).value(1)), ("1", ""));
    let cell = |name: &str| shown(&folded.column_by_name(name).unwrap().slice(1, 1)).unwrap();
    assert_eq!(cell("ts"), "5");
    assert_eq!([cell("number_last"), cell("number_last_non_null"), cell("number_keep")], ["3"; 3]);
    assert_eq!([cell("number_first"), cell("number_first_non_null")], ["2"; 2]);
    assert_eq!([cell("number_sum"), cell("number_count"), cell("number_product")], ["5", "2", "6"]);
    assert_eq!([cell("text_concat"), cell("list_all")], ["v2-v3", "2 0 3 1"]);
    assert!(plan.late_rows_matter());
}

#[test]
fn a_value_that_does_not_fit_names_its_key_and_its_column() {
    let (plan, mut table) = (plan(), Table::default());
    let large = |time, key| (time, event_of(key, Some(i64::MAX / 2 + 1)));
    let both = keyed(&[(0, event_of(7, Some(1))), large(1, 8), large(2, 8), (3, event_of(7, Some(1)))]);
    let inside = table.commit(&plan, vec![both], 8192).unwrap_err().to_string();
    table.commit(&plan, vec![keyed(&[large(0, 8)])], 8192).unwrap();
    let across = table.commit(&plan, vec![keyed(&[large(1, 8)])], 8192).unwrap_err().to_string();
    for message in [inside, across] {
        assert!(message.contains("column `number_sum` of key `8` cannot be merged by `sum`"), "{message}");
    }
}

#[test]
fn a_row_behind_a_delete_starts_anew_and_remembers_the_time_of_the_delete() {
    let plan = plan();
    let delete = Event { key: 1, value: None, deletes: true };
    let events = [(1, event_of(1, Some(1))), (2, delete), (3, event_of(1, Some(3)))];
    let keyed_schema = keyed_schema(&data_schema());
    let rule = OrderingRule::new(&["ts".to_string()], &keyed_schema).unwrap();
    let deletes = Deletes::of(Operation::Upsert, &keyed_schema);
    let memory = MemoryBudget::new(1 << 30);
    let rows = fold_rows(&plan, vec![keyed(&events)], rule.as_ref(), deletes, &memory, 8192).unwrap();
    let at = rows.winners[0];
    let batch = &rows.batches[at.batch as usize];
    assert!(plan.follows_delete(batch, at.row as usize));
    let barrier = batch.column_by_name("_tributary_barrier_0").unwrap();
    assert_eq!(shown(&barrier.slice(at.row as usize, 1)).as_deref(), Some("2"));
    assert_eq!(shown(&batch.column_by_name("number_sum").unwrap().slice(at.row as usize, 1)).as_deref(), Some("3"));
}

#[test]
fn a_column_that_the_rows_do_not_have_is_as_it_is_stored_and_null_in_new_rows() {
    let schema = data_schema();
    let given =
        Arc::new(schema.project(&(0..schema.fields().len() - 1).filter(|at| *at != 8).collect::<Vec<_>>()).unwrap());
    let absent: Vec<&str> = vec![schema.field(8).name(), "text_concat_last"];
    assert_eq!(absent[0], "number_sum");
    let plan = FoldPlan::of(&request(&schema, &given, operators())).unwrap().unwrap();
    let mut table = Table::default();
    table.commit(&self::plan(), vec![keyed(&[(0, event_of(1, Some(2)))])], 8192).unwrap();
    // As `aligned` fills the columns in.
    let rows = keyed(&[(1, event_of(1, Some(3))), (1, event_of(2, Some(4)))]);
    let columns = rows.schema_ref().fields().iter().zip(rows.columns()).map(|(field, column)| {
        if absent.contains(&field.name().as_str()) { new_null_array(field.data_type(), 2) } else { Arc::clone(column) }
    });
    let rows = RecordBatch::try_new(rows.schema(), columns.collect()).unwrap();
    table.commit(&plan, vec![rows], 8192).unwrap();
    assert_eq!(cell(&table, "1", "number_sum").as_deref(), Some("2"));
    assert_eq!(cell(&table, "1", "text_concat_last").as_deref(), Some("v2"));
    assert_eq!(cell(&table, "1", "number_last").as_deref(), Some("3"));
    assert_eq!((cell(&table, "2", "number_sum"), cell(&table, "2", "number_max").as_deref()), (None, Some("4")));
}

#[test]
fn where_every_column_is_the_last_one_nothing_is_folded_and_a_wrong_type_is_refused() {
    let schema = data_schema();
    assert!(FoldPlan::of(&request(&schema, &schema, MergeOperators::default())).unwrap().is_none());
    let sums = MergeOperators { default: Operator::Sum, ..MergeOperators::default() };
    let refused = FoldPlan::of(&request(&schema, &schema, sums)).unwrap_err().to_string();
    assert!(refused.contains("`sum` does not work on Boolean"), "{refused}");
}

#[test]
fn what_folding_takes_is_counted() {
    let plan = plan();
    let rows = keyed(&timed(&(0..2000).map(|n| event_of((n % 3) as u8, Some(n % 2))).collect::<Vec<_>>()));
    let rule = OrderingRule::new(&["ts".to_string()], &rows.schema()).unwrap();
    let memory = MemoryBudget::new(1 << 30);
    let folded = fold_rows(&plan, vec![rows.clone()], rule.as_ref(), Deletes::Never, &memory, 8192).unwrap();
    assert!(memory.used() > 2000 * crate::combine::ROW_BYTES && memory.peak() > memory.used());
    drop(folded);
    assert_eq!(memory.used(), 0);
    let refused = fold_rows(&plan, vec![rows], rule.as_ref(), Deletes::Never, &MemoryBudget::new(1 << 17), 8192);
    assert!(matches!(refused, Err(Error::Memory(_))));
}
