// SPDX-License-Identifier: Apache-2.0
//! proto/contract.txt: what clients of the wire format rely on. A line that goes away breaks them; new ones are accepted
//! by `make proto-accept`, which refuses to take lines away.

use std::collections::BTreeSet;

use tributary_rpc::described::{self, File};

use super::{compare, is_update, root};

const HEAD: &str = "# What clients of the wire format rely on. `make proto-accept` adds what is new in proto/; nothing is taken \
                    away.\n";

/// Every call, field and value, a line each.
fn lines(files: &[File]) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in files {
        for service in &file.services {
            for method in &service.methods {
                let (name, sent, answered) = (&method.name, &method.request, &method.response);
                lines.insert(format!("call {}.{name} ({sent}) ({answered})", service.name));
            }
        }
        for message in &file.messages {
            lines.insert(format!("message {}", message.name));
            for field in &message.fields {
                let choice = field.one_of.as_ref().map_or(String::new(), |of| format!(" oneof {of}"));
                let (name, number, kind) = (&field.name, field.number, &field.kind);
                lines.insert(format!("field {}.{name} = {number} {kind}{choice}", message.name));
            }
        }
        for one in &file.enums {
            for (number, name, _) in &one.values {
                lines.insert(format!("value {}.{name} = {number}", one.name));
            }
        }
    }
    lines
}

/// What of the contract is gone or another.
fn broken(contract: &BTreeSet<String>, now: &BTreeSet<String>) -> Vec<String> {
    contract.difference(now).cloned().collect()
}

fn contract() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("proto/contract.txt")).unwrap_or_default();
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(ToString::to_string).collect()
}

#[test]
fn no_change_of_proto_breaks_a_client() {
    let now = lines(&described::files());
    let gone = broken(&contract(), &now);
    assert!(
        gone.is_empty(),
        "proto/ no longer has what clients rely on. Bring it back, and add what is new under new names and numbers:\n  {}",
        gone.join("\n  ")
    );
    if !is_update() {
        let new: Vec<&String> = now.iter().filter(|line| !contract().contains(*line)).collect();
        assert!(new.is_empty(), "proto/contract.txt lacks what is new; `make proto-accept` adds it: {new:#?}");
    }
    let text: Vec<String> = now.into_iter().collect();
    compare("proto/contract.txt", &format!("{HEAD}{}\n", text.join("\n")));
}

#[test]
fn whatever_a_client_would_notice_breaks_the_contract_and_an_addition_does_not() {
    let files = described::files();
    let before = lines(&files);
    let changed = |change: &dyn Fn(&mut File)| {
        let mut after = files.clone();
        after.iter_mut().for_each(change);
        broken(&before, &lines(&after)).len()
    };
    fn batch(file: &mut File) -> Option<&mut described::Message> {
        file.messages.iter_mut().find(|message| message.name == "tributary.coordinator.v1.Batch")
    }
    fn service(file: &mut File) -> Option<&mut described::Service> {
        file.services.iter_mut().find(|service| service.name.ends_with(".CoordinatorService"))
    }
    let nothing = |_: &mut File| {};
    assert_eq!(changed(&nothing), 0);
    let removed = |file: &mut File| batch(file).into_iter().for_each(|m| drop(m.fields.remove(0)));
    let renumbered = |file: &mut File| batch(file).into_iter().for_each(|m| m.fields[0].number = 99);
    let retyped = |file: &mut File| batch(file).into_iter().for_each(|m| m.fields[0].kind = "bytes".to_string());
    let repeated = |file: &mut File| batch(file).into_iter().for_each(|m| m.fields[0].kind.insert_str(0, "repeated "));
    let renamed = |file: &mut File| batch(file).into_iter().for_each(|m| m.fields[0].name.push('x'));
    let chosen = |file: &mut File| batch(file).into_iter().for_each(|m| m.fields[0].one_of = Some("at".to_string()));
    let no_call = |file: &mut File| service(file).into_iter().for_each(|s| drop(s.methods.remove(0)));
    let streamed =
        |file: &mut File| service(file).into_iter().for_each(|s| s.methods[0].response.insert_str(0, "stream "));
    let no_value = |file: &mut File| {
        file.enums.iter_mut().filter(|one| one.name.ends_with(".Stage")).for_each(|one| drop(one.values.pop()));
    };
    let breaking: [&dyn Fn(&mut File); 9] =
        [&removed, &renumbered, &retyped, &repeated, &renamed, &chosen, &no_call, &streamed, &no_value];
    for (number, change) in breaking.iter().enumerate() {
        assert_eq!(changed(change), 1, "change {number}");
    }
    let added = |file: &mut File| {
        batch(file).into_iter().for_each(|message| {
            let new = described::Field { number: 999, name: "new".to_string(), ..message.fields[0].clone() };
            message.fields.push(new);
        });
    };
    assert_eq!(changed(&added), 0);
}

#[test]
fn numbers_are_used_once_and_enumerations_begin_with_nothing_said() {
    for file in described::files() {
        for message in &file.messages {
            let numbers: BTreeSet<i32> = message.fields.iter().map(|field| field.number).collect();
            assert_eq!(numbers.len(), message.fields.len(), "{}", message.name);
            for field in &message.fields {
                let taken = message.reserved.iter().any(|(from, to)| (*from..*to).contains(&field.number));
                assert!(!taken, "{}.{} has a number that is reserved", message.name, field.name);
            }
        }
        for one in &file.enums {
            let (number, name, _) = &one.values[0];
            assert!(*number == 0 && name.ends_with("_UNSPECIFIED"), "{}: {name} = {number}", one.name);
        }
    }
}
