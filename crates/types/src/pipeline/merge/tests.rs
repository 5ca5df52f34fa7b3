// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, json};

use super::*;

fn operator(text: &str) -> Result<Operator, String> {
    text.parse()
}

fn concat(delimiter: &str) -> Operator {
    Operator::Concat { delimiter: delimiter.to_string() }
}

#[test]
fn every_operator_is_read_back_as_it_is_shown() {
    for name in names::canonical() {
        let parsed = operator(name).unwrap();
        assert_eq!(parsed.name(), name);
        assert_eq!(operator(&parsed.to_string()), Ok(parsed));
    }
    let quoted = Operator::LastNonNull { null_strings: vec!["it's".to_string(), String::new(), "a, (b)".to_string()] };
    assert_eq!(quoted.to_string(), "last_non_null('it''s', '', 'a, (b)')");
    assert_eq!(operator(&quoted.to_string()), Ok(quoted));
}

#[test]
fn names_of_other_systems_mean_what_they_mean_there() {
    assert_eq!(operator("MergeNonNullOp"), Ok(Operator::LastNonNull { null_strings: vec!["null".to_string()] }));
    assert_eq!(operator("JoinedAllBySemicolon"), Ok(concat(";")));
    assert_eq!(operator("joined_all(' | ')"), Ok(concat(" | ")));
    assert_eq!(operator("MergeOpString"), Ok(Operator::ConcatLast { delimiter: ",".to_string() }));
    assert_eq!(operator("OverwriteNonDefaultsWithLatestAvroPayload").unwrap().name(), "last_non_null");
    assert_eq!(operator("partial-update").unwrap().name(), "last_non_null");
    assert_eq!(operator("listagg"), Ok(concat(",")));
    assert_eq!(operator("merge_map"), Ok(Operator::MapMerge));
}

#[test]
fn what_is_no_operator_is_refused_with_the_nearest_one() {
    let message = operator("summ").unwrap_err();
    assert!(message.contains("did you mean `sum`?"), "{message}");
    assert!(operator("last_nonnul").unwrap_err().contains("`last_non_null`"));
    assert!(operator("last_by").unwrap_err().contains("not there yet"));
    for (text, part) in [
        ("sum('x')", "takes no argument"),
        ("concat(',', ';')", "one delimiter"),
        ("concat(,)", "single quotes"),
        ("concat('a' 'b')", "single quotes"),
        ("concat(',')x", "lacks its `)`"),
        ("concat_distinct('')", "not empty"),
    ] {
        let message = operator(text).unwrap_err();
        assert!(message.contains(part), "{text}: {message}");
    }
}

fn pipeline(kind: &str, merge: Value) -> Pipeline {
    serde_json::from_value(json!({
        "name": "p",
        "source": [{"name": "events", "kind": kind, "path": "/a", "start": "earliest"}],
        "target": {"path": "/t", "table_name": "t", "record_key": ["id"], "ordering": ["ts"], "partition_by": ["day"],
                   "merge": merge},
    }))
    .unwrap()
}

#[test]
fn operators_are_those_of_the_pipeline_file_and_the_table_keeps_its_own_columns() {
    let merge = json!({"default": "last_non_null", "columns": {"clicks": "SumAll", "tags": "concat('; ')"}});
    let pipeline = pipeline("json", merge);
    assert_eq!(pipeline.validate(), Vec::<String>::new());
    let target = &pipeline.target;
    let merge = target.merge.as_ref().unwrap();
    let of = |column| merge.of(column, [&target.record_key, &target.partition_by, &target.ordering]).to_string();
    assert_eq!([of("clicks"), of("tags"), of("other")], ["sum", "concat('; ')", "last_non_null"]);
    assert_eq!([of("id"), of("day"), of("ts"), of("_hoodie_is_deleted")], ["last"; 4]);
    let text = serde_json::to_string(merge).unwrap();
    assert_eq!(&serde_json::from_str::<MergeOperators>(&text).unwrap(), merge, "{text}");
}

#[test]
fn a_pipeline_without_operators_reads_as_before() {
    let mut pipeline = pipeline("json", json!({}));
    pipeline.target.merge = None;
    let text = serde_json::to_string(&pipeline).unwrap();
    assert!(!text.contains("merge"), "{text}");
}

#[test]
fn columns_of_the_table_other_layouts_and_other_operations_take_no_operator() {
    let mut pipeline =
        pipeline("json", json!({"columns": {"id": "sum", "day": "sum", "ts": "max", "_hoodie_x": "sum"}}));
    pipeline.target.table_type = TableType::MergeOnRead;
    pipeline.target.operation = Operation::Insert;
    let problems = pipeline.validate().join("\n");
    for part in [
        "`id`, which `target.record_key`",
        "`day`, which `target.partition_by`",
        "`ts`, which `target.ordering`",
        "`_hoodie_x`",
        "copy-on-write",
        "`target.operation = \"insert\"`",
    ] {
        assert!(problems.contains(part), "{part} missing in:\n{problems}");
    }
}

#[test]
fn rows_that_may_come_again_are_not_counted_without_an_acknowledgement() {
    let counting = json!({"columns": {"n": "sum"}});
    let refused = pipeline("hudi", counting.clone()).validate();
    assert!(refused.len() == 1 && refused[0].contains("source `events` is a Hudi table"), "{refused:?}");
    assert_eq!(pipeline("json", counting.clone()).validate(), Vec::<String>::new());
    assert_eq!(pipeline("hudi", json!({"columns": {"n": "max"}})).validate(), Vec::<String>::new());
    let accepted = json!({"columns": {"n": "sum"}, "acknowledge_images": true});
    assert_eq!(pipeline("hudi", accepted).validate(), Vec::<String>::new());
    let mut again = pipeline("json", counting);
    again.sources[0].files.on_changed = OnChangedFile::Reread;
    assert!(again.validate()[0].contains("once more from its beginning"));
}
