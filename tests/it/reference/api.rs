// SPDX-License-Identifier: Apache-2.0
//! docs/api.md: every call and message of `proto/`.

use std::fmt::Write as _;

use tributary_rpc::described::{self, File, Message};

use super::{cell, compare};

const HEAD: &str = "# API\n\nGenerated from `proto/`; `make docs` writes it. What each error means: [errors.md](errors.md). Rows \
                    travel over Arrow Flight on the same port. `coordinator` is what orchestrators call; the other roles \
                    are called by it, and may be called for what they tell.\n\nNames of pipelines are 1 to 128 letters, \
                    digits, `_`, `-`, `.`; a batch is named `<pipeline>/<request id>`. Fields and calls are only added: \
                    `proto/contract.txt` lists those that clients may rely on.\n";

/// A type as it is shown: those of ours without their package.
fn shown(kind: &str) -> String {
    let words = kind.split(' ').map(|word| match word.strip_prefix("tributary.") {
        Some(own) => own.rsplit('.').next().unwrap_or(own),
        None => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

fn message(text: &mut String, message: &Message) {
    writeln!(text, "\n#### {}\n\n{}", shown(&message.name), message.comment).unwrap();
    if message.fields.is_empty() {
        return;
    }
    writeln!(text, "\n| number | field | type | meaning |\n|---|---|---|---|").unwrap();
    for field in &message.fields {
        let choice = field.one_of.as_ref().map_or(String::new(), |of| format!(", one of `{of}`"));
        let (name, kind, comment) = (&field.name, shown(&field.kind), cell(&field.comment));
        writeln!(text, "| {} | `{name}` | `{}`{choice} | {comment} |", field.number, cell(&kind)).unwrap();
    }
}

fn page(files: &[File]) -> String {
    let mut text = HEAD.to_string();
    // What orchestrators call comes first.
    let (first, others): (Vec<&File>, Vec<&File>) = files.iter().partition(|file| file.path.contains("/coordinator/"));
    for file in first.into_iter().chain(others) {
        writeln!(text, "\n## {}\n\n{}", file.path, file.comment).unwrap();
        for service in &file.services {
            writeln!(text, "\n### {}\n\n{}\n", service.name, service.comment).unwrap();
            writeln!(text, "| call | sent | answered | what it does |\n|---|---|---|---|").unwrap();
            for method in &service.methods {
                let (sent, answered) = (shown(&method.request), shown(&method.response));
                writeln!(text, "| `{}` | `{sent}` | `{answered}` | {} |", method.name, cell(&method.comment)).unwrap();
            }
        }
        file.messages.iter().for_each(|one| message(&mut text, one));
        for one in &file.enums {
            writeln!(text, "\n#### {}\n\n{}\n", shown(&one.name), one.comment).unwrap();
            writeln!(text, "| number | value | meaning |\n|---|---|---|").unwrap();
            for (number, name, comment) in &one.values {
                writeln!(text, "| {number} | `{name}` | {} |", cell(comment)).unwrap();
            }
        }
    }
    text
}

#[test]
fn the_reference_of_the_api_is_what_proto_says() {
    let files = described::files();
    assert!(files.iter().map(|file| file.services.len()).sum::<usize>() >= 4);
    compare("docs/api.md", &page(&files));
}
