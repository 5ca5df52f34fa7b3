// SPDX-License-Identifier: Apache-2.0
//! The messages and services of `proto/`, described in plain words: for documentation, and for whoever watches that no
//! change of them breaks a client.

use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::source_code_info::Location;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
};

use crate::proto::FILE_DESCRIPTOR_SET;

/// One `.proto` file of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its path below `proto/`.
    pub path: String,
    /// What stands above its package.
    pub comment: String,
    /// Its services.
    pub services: Vec<Service>,
    /// Its messages, those inside others behind these.
    pub messages: Vec<Message>,
    /// Its enumerations.
    pub enums: Vec<Enumeration>,
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its full name.
    pub name: String,
    /// What it is for.
    pub comment: String,
    /// Its calls.
    pub methods: Vec<Method>,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// What it does.
    pub comment: String,
    /// What is sent: the full name of a message, `stream ` before it where there are many.
    pub request: String,
    /// What comes back.
    pub response: String,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its full name.
    pub name: String,
    /// What it is.
    pub comment: String,
    /// Its fields, in the order of the file.
    pub fields: Vec<Field>,
    /// Numbers that must not be used again.
    pub reserved: Vec<(i32, i32)>,
}

/// A field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its number.
    pub number: i32,
    /// Its name.
    pub name: String,
    /// Its type, `repeated`, `optional` or `map<…>` included.
    pub kind: String,
    /// The name of the choice that it is one of.
    pub one_of: Option<String>,
    /// What it means.
    pub comment: String,
}

/// An enumeration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enumeration {
    /// Its full name.
    pub name: String,
    /// What it is.
    pub comment: String,
    /// Number, name and meaning of each value.
    pub values: Vec<(i32, String, String)>,
}

/// Everything in `proto/`, in the order of the files' paths. Empty if the descriptions cannot be read, which tests would
/// show.
pub fn files() -> Vec<File> {
    let Ok(set) = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET) else { return Vec::new() };
    let mut files = Vec::new();
    for file in set.file.iter().filter(|file| file.package().starts_with("tributary.")) {
        let empty = Vec::new();
        let comments = Comments::of(file.source_code_info.as_ref().map_or(&empty, |info| &info.location));
        let package = file.package();
        let mut described = File {
            path: file.name().to_string(),
            // The package statement is field 2 of a file.
            comment: comments.at(&[2]),
            services: Vec::new(),
            messages: Vec::new(),
            enums: Vec::new(),
        };
        for (at, service) in (0..).zip(&file.service) {
            described.services.push(service_of(service, package, &comments, at));
        }
        for (at, message) in (0..).zip(&file.message_type) {
            add_message(&mut described, message, package, &comments, &[4, at]);
        }
        for (at, one) in (0..).zip(&file.enum_type) {
            described.enums.push(enumeration_of(one, package, &comments, &[5, at]));
        }
        files.push(described);
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files
}

/// Comments by the place of what they stand above.
struct Comments<'a>(BTreeMap<&'a [i32], &'a str>);

impl<'a> Comments<'a> {
    fn of(locations: &'a [Location]) -> Self {
        let with_text = locations.iter().filter(|location| location.leading_comments.is_some());
        Comments(with_text.map(|location| (location.path.as_slice(), location.leading_comments())).collect())
    }

    fn at(&self, path: &[i32]) -> String {
        let text = self.0.get(path).copied().unwrap_or_default();
        text.lines().map(str::trim).collect::<Vec<_>>().join(" ").trim().to_string()
    }
}

fn service_of(service: &ServiceDescriptorProto, package: &str, comments: &Comments<'_>, at: i32) -> Service {
    let sent =
        |name: &str, many: bool| format!("{}{}", if many { "stream " } else { "" }, name.trim_start_matches('.'));
    let methods = (0..).zip(&service.method).map(|(number, method)| Method {
        name: method.name().to_string(),
        comment: comments.at(&[6, at, 2, number]),
        request: sent(method.input_type(), method.client_streaming()),
        response: sent(method.output_type(), method.server_streaming()),
    });
    Service {
        name: format!("{package}.{}", service.name()),
        comment: comments.at(&[6, at]),
        methods: methods.collect(),
    }
}

fn add_message(file: &mut File, message: &DescriptorProto, outer: &str, comments: &Comments<'_>, path: &[i32]) {
    // Entries of maps are told as the type of their field.
    if message.options.as_ref().is_some_and(|options| options.map_entry()) {
        return;
    }
    let name = format!("{outer}.{}", message.name());
    let fields = (0..).zip(&message.field).map(|(number, field)| Field {
        number: field.number(),
        name: field.name().to_string(),
        kind: kind_of(field, message),
        one_of: choice_of(field, message),
        comment: comments.at(&[path, &[2, number]].concat()),
    });
    file.messages.push(Message {
        name: name.clone(),
        comment: comments.at(path),
        fields: fields.collect(),
        reserved: message.reserved_range.iter().map(|range| (range.start(), range.end())).collect(),
    });
    for (at, inner) in (0..).zip(&message.nested_type) {
        add_message(file, inner, &name, comments, &[path, &[3, at]].concat());
    }
    for (at, one) in (0..).zip(&message.enum_type) {
        file.enums.push(enumeration_of(one, &name, comments, &[path, &[4, at]].concat()));
    }
}

fn enumeration_of(one: &EnumDescriptorProto, outer: &str, comments: &Comments<'_>, path: &[i32]) -> Enumeration {
    let values = (0..)
        .zip(&one.value)
        .map(|(number, value)| (value.number(), value.name().to_string(), comments.at(&[path, &[2, number]].concat())));
    Enumeration { name: format!("{outer}.{}", one.name()), comment: comments.at(path), values: values.collect() }
}

/// The choice that a field is one of. A field that is only optional is in one that has no name of its own.
fn choice_of(field: &FieldDescriptorProto, message: &DescriptorProto) -> Option<String> {
    let at = usize::try_from(field.oneof_index?).ok()?;
    let choice = message.oneof_decl.get(at)?;
    (!field.proto3_optional()).then(|| choice.name().to_string())
}

fn kind_of(field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    let entry = message.nested_type.iter().find(|inner| {
        let own = field.type_name().rsplit('.').next() == Some(inner.name());
        own && inner.options.as_ref().is_some_and(|options| options.map_entry())
    });
    if let Some([key, value]) = entry.map(|entry| entry.field.as_slice()) {
        return format!("map<{}, {}>", plain_kind(key), plain_kind(value));
    }
    match (field.label(), field.proto3_optional()) {
        (Label::Repeated, _) => format!("repeated {}", plain_kind(field)),
        (_, true) => format!("optional {}", plain_kind(field)),
        _ => plain_kind(field),
    }
}

fn plain_kind(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum | Type::Group => field.type_name().trim_start_matches('.').to_string(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_messages_and_enumerations_are_there_with_what_is_said_of_them() {
        let files = files();
        let coordinator = files.iter().find(|file| file.path.ends_with("coordinator.proto")).unwrap();
        assert_eq!(coordinator.comment, "Batches, from the request to the outcome.");
        let service = &coordinator.services[0];
        let watch = service.methods.iter().find(|method| method.name == "WatchBatch").unwrap();
        assert_eq!(watch.response, "stream tributary.coordinator.v1.Batch");
        assert!(watch.comment.starts_with("Follows a batch"), "{watch:?}");
        let message = |name: &str| coordinator.messages.iter().find(|one| one.name.ends_with(name)).unwrap();
        let field = |of: &str, name: &str| message(of).fields.iter().find(|field| field.name == name).unwrap().clone();
        assert_eq!(field(".Batch", "seq").kind, "optional uint64");
        assert_eq!(field(".Batch", "sources").kind, "repeated tributary.coordinator.v1.SourceStatus");
        assert_eq!(field(".Start", "after").one_of.as_deref(), Some("at"));
        assert_eq!(field(".Batch", "seq").one_of, None);
        let stage = coordinator.enums.iter().find(|one| one.name.ends_with(".Stage")).unwrap();
        assert_eq!(stage.values[8], (8, "STAGE_DONE".to_string(), "Over; the outcome says how.".to_string()));
        let common = files.iter().find(|file| file.path.ends_with("common.proto")).unwrap();
        let fault = common.messages.iter().find(|one| one.name.ends_with(".Fault")).unwrap();
        assert!(fault.fields.iter().any(|field| field.kind == "map<string, string>"), "{fault:?}");
        assert!(!common.messages.iter().any(|one| one.name.ends_with("Entry")));
    }

    #[test]
    fn whatever_a_client_can_see_is_explained() {
        for file in files() {
            assert!(!file.comment.is_empty(), "{}", file.path);
            for service in &file.services {
                assert!(!service.comment.is_empty(), "{}", service.name);
                service.methods.iter().for_each(|method| assert!(!method.comment.is_empty(), "{method:?}"));
            }
            for message in &file.messages {
                assert!(!message.comment.is_empty(), "{}", message.name);
                message.fields.iter().for_each(|f| assert!(!f.comment.is_empty(), "{}.{}", message.name, f.name));
            }
            for one in &file.enums {
                assert!(!one.comment.is_empty() && one.values.iter().all(|(_, _, text)| !text.is_empty()), "{one:?}");
            }
        }
    }
}
