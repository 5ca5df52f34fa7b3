// SPDX-License-Identifier: Apache-2.0
//! Who may call which method. A method that is not here may be called by nobody once the server asks who calls.

use arrow_flight::{Criteria, FlightDescriptor};
use prost::{DecodeError, Message};
use tributary_security::{Role, Scope};
use tributary_types::pipeline::topic_url;

use crate::flight::asked;
use crate::proto::coordinator as proto;

/// Who may call a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Anybody, known or not.
    Everybody,
    /// Whoever is known.
    Known,
    /// Whoever has this role on what the request is about.
    Has(Role),
}

/// What a request is about, and the locations that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) scope: Scope,
    pub(crate) locations: Vec<String>,
}

type Read = fn(&[u8]) -> Result<Asked, DecodeError>;

/// What of a call is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// Nothing: what it is about is no pipeline's, or is known to its callee only.
    Nothing,
    /// Its one message.
    Message(Read),
    /// Its one message, and the tickets in its answers, which are signed.
    Flights(Read, Answers),
    /// The ticket that it redeems.
    Ticket,
    /// The first message of rows that are brought.
    Rows,
    /// The action that is asked for, and the ticket in it.
    Action,
}

/// What the answers of a method are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// `FlightInfo`.
    Info,
    /// `PollInfo`.
    Poll,
    /// `Result` of an action, with a `FlightEndpoint` in it.
    Renewed,
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) path: &'static str,
    pub(crate) who: Who,
    pub(crate) what: What,
}

const fn row(path: &'static str, who: Who, what: What) -> Method {
    Method { path, who, what }
}

const READER: Who = Who::Has(Role::Reader);
const OPERATOR: Who = Who::Has(Role::Operator);
const ADMIN: Who = Who::Has(Role::Admin);
const PEER: Who = Who::Has(Role::Peer);

/// Every method that may be called.
pub(crate) const METHODS: &[Method] = &[
    row("/grpc.health.v1.Health/Check", Who::Everybody, What::Nothing),
    row("/grpc.health.v1.Health/Watch", Who::Everybody, What::Nothing),
    row("/grpc.health.v1.Health/List", Who::Everybody, What::Nothing),
    row("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Who::Known, What::Nothing),
    row("/tributary.coordinator.v1.CoordinatorService/RunBatch", OPERATOR, What::Message(run_batch)),
    row("/tributary.coordinator.v1.CoordinatorService/GetBatch", READER, What::Message(get_batch)),
    row("/tributary.coordinator.v1.CoordinatorService/ListBatches", READER, What::Message(list_batches)),
    row("/tributary.coordinator.v1.CoordinatorService/WatchBatch", READER, What::Message(watch_batch)),
    row("/tributary.coordinator.v1.CoordinatorService/WaitBatch", READER, What::Message(wait_batch)),
    row("/tributary.coordinator.v1.CoordinatorService/CancelBatch", OPERATOR, What::Message(cancel_batch)),
    row("/tributary.coordinator.v1.CoordinatorService/PlanBatch", OPERATOR, What::Message(plan_batch)),
    row("/tributary.coordinator.v1.CoordinatorService/SetCursor", OPERATOR, What::Message(set_cursor)),
    row("/tributary.coordinator.v1.CoordinatorService/GetCursors", READER, What::Message(get_cursors)),
    row("/tributary.coordinator.v1.CoordinatorService/CreatePipeline", ADMIN, What::Message(create_pipeline)),
    row("/tributary.coordinator.v1.CoordinatorService/UpdatePipeline", ADMIN, What::Message(update_pipeline)),
    row("/tributary.coordinator.v1.CoordinatorService/DeletePipeline", ADMIN, What::Message(delete_pipeline)),
    row("/tributary.coordinator.v1.CoordinatorService/GetPipeline", READER, What::Message(get_pipeline)),
    row("/tributary.coordinator.v1.CoordinatorService/ListPipelines", READER, What::Message(everything)),
    row("/tributary.coordinator.v1.CoordinatorService/PausePipeline", OPERATOR, What::Message(pause_pipeline)),
    row("/tributary.coordinator.v1.CoordinatorService/ResumePipeline", OPERATOR, What::Message(resume_pipeline)),
    row("/tributary.timeline.v1.TimelineService/GetTable", PEER, What::Nothing),
    row("/tributary.timeline.v1.TimelineService/ListInstants", PEER, What::Nothing),
    row("/tributary.timeline.v1.TimelineService/PlanWindow", PEER, What::Nothing),
    row("/tributary.timeline.v1.TimelineService/Locate", PEER, What::Nothing),
    row("/tributary.timeline.v1.TimelineService/CancelPull", PEER, What::Nothing),
    row("/tributary.checkpoint.v1.CheckpointService/Resolve", PEER, What::Nothing),
    row("/tributary.checkpoint.v1.CheckpointService/FindCommit", PEER, What::Nothing),
    row("/tributary.checkpoint.v1.CheckpointService/FindCursors", PEER, What::Nothing),
    row("/tributary.checkpoint.v1.CheckpointService/FindLegacy", PEER, What::Nothing),
    row("/tributary.checkpoint.v1.CheckpointService/Record", PEER, What::Nothing),
    row("/tributary.checkpoint.v1.CheckpointService/ListRecords", PEER, What::Nothing),
    row("/tributary.checkpoint.v1.CheckpointService/FindRequest", PEER, What::Nothing),
    row("/tributary.merge.v1.MergeService/Bind", PEER, What::Nothing),
    row("/tributary.merge.v1.MergeService/Check", PEER, What::Nothing),
    row("/tributary.merge.v1.MergeService/Run", PEER, What::Nothing),
    row("/tributary.merge.v1.MergeService/Stop", PEER, What::Nothing),
    row("/tributary.merge.v1.MergeService/ReadQuery", PEER, What::Nothing),
    row("/tributary.merge.v1.MergeService/CheckQuery", PEER, What::Nothing),
    row("/tributary.merge.v1.MergeService/GetProgress", PEER, What::Nothing),
    row("/arrow.flight.protocol.FlightService/Handshake", Who::Known, What::Nothing),
    row("/arrow.flight.protocol.FlightService/ListFlights", READER, What::Flights(list_flights, Answers::Info)),
    row("/arrow.flight.protocol.FlightService/GetFlightInfo", READER, What::Flights(flight, Answers::Info)),
    row("/arrow.flight.protocol.FlightService/PollFlightInfo", READER, What::Flights(flight, Answers::Poll)),
    row("/arrow.flight.protocol.FlightService/GetSchema", READER, What::Message(flight)),
    row(DO_GET, Who::Known, What::Ticket),
    row(DO_PUT, Who::Known, What::Rows),
    row("/arrow.flight.protocol.FlightService/DoExchange", Who::Has(Role::Admin), What::Nothing),
    row("/arrow.flight.protocol.FlightService/DoAction", Who::Known, What::Action),
    row("/arrow.flight.protocol.FlightService/ListActions", Who::Known, What::Nothing),
];

/// Redeems a ticket.
pub(crate) const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";
/// Brings rows.
pub(crate) const DO_PUT: &str = "/arrow.flight.protocol.FlightService/DoPut";

/// The row of a path.
pub(crate) fn find(path: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.path == path)
}

fn about(pipeline: &str) -> Asked {
    Asked { scope: Scope::Pipeline(pipeline.to_string()), locations: Vec::new() }
}

/// A batch is named `<pipeline>/<request id>`.
fn about_batch(name: &str) -> Asked {
    about(name.split_once('/').map_or("", |(pipeline, _)| pipeline))
}

/// One pipeline, or all of them where none is named.
fn about_listed(pipeline: &str) -> Asked {
    match pipeline {
        "" => Asked { scope: Scope::All, locations: Vec::new() },
        name => about(name),
    }
}

/// A pipeline that the request defines, with every place that it reads or writes.
fn about_definition(pipeline: Option<proto::Pipeline>) -> Asked {
    let pipeline = pipeline.unwrap_or_default();
    let mut asked = about(&pipeline.name);
    for source in &pipeline.sources {
        match topic_of(source) {
            Some(topic) => asked.locations.push(topic),
            None => asked.locations.push(source.path.clone()),
        }
    }
    asked.locations.extend(pipeline.target.map(|target| target.path));
    asked.locations.extend(pipeline.error_table.map(|table| table.path));
    asked
}

/// A topic as a location: `kafka://BROKERS/TOPIC`.
fn topic_of(source: &proto::Source) -> Option<String> {
    if source.kind() != proto::SourceKind::Kafka {
        return None;
    }
    let keys: tributary_types::pipeline::TopicKeys =
        source.kafka.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    Some(topic_url(&keys.brokers.unwrap_or_default(), &keys.topic.unwrap_or_default()))
}

/// A pipeline that the request defines, or one that is stored, whose places were looked at when it was.
fn about_either(pipeline: Option<proto::Pipeline>, name: &str) -> Asked {
    match (pipeline, name) {
        (None, name) => about(name),
        (pipeline, "") => about_definition(pipeline),
        // Its callee refuses that; until then it is about more than one.
        (Some(_), _) => Asked { scope: Scope::All, locations: Vec::new() },
    }
}

fn run_batch(message: &[u8]) -> Result<Asked, DecodeError> {
    let request = proto::RunBatchRequest::decode(message)?;
    Ok(about_either(request.pipeline, &request.pipeline_name))
}

fn plan_batch(message: &[u8]) -> Result<Asked, DecodeError> {
    let request = proto::PlanBatchRequest::decode(message)?;
    Ok(about_either(request.pipeline, &request.pipeline_name))
}

fn set_cursor(message: &[u8]) -> Result<Asked, DecodeError> {
    let request = proto::SetCursorRequest::decode(message)?;
    Ok(about_either(request.pipeline, &request.pipeline_name))
}

fn create_pipeline(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about_definition(proto::CreatePipelineRequest::decode(message)?.pipeline))
}

fn update_pipeline(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about_definition(proto::UpdatePipelineRequest::decode(message)?.pipeline))
}

fn delete_pipeline(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about(&proto::DeletePipelineRequest::decode(message)?.name))
}

fn get_pipeline(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about(&proto::GetPipelineRequest::decode(message)?.name))
}

fn pause_pipeline(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about(&proto::PausePipelineRequest::decode(message)?.name))
}

fn resume_pipeline(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about(&proto::ResumePipelineRequest::decode(message)?.name))
}

fn get_batch(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about_batch(&proto::GetBatchRequest::decode(message)?.name))
}

fn watch_batch(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about_batch(&proto::WatchBatchRequest::decode(message)?.name))
}

fn wait_batch(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about_batch(&proto::WaitBatchRequest::decode(message)?.name))
}

fn cancel_batch(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about_batch(&proto::CancelBatchRequest::decode(message)?.name))
}

fn list_batches(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about_listed(&proto::ListBatchesRequest::decode(message)?.pipeline))
}

fn get_cursors(message: &[u8]) -> Result<Asked, DecodeError> {
    let request = proto::GetCursorsRequest::decode(message)?;
    let target = Some(request.target).filter(|target| !target.is_empty());
    Ok(Asked { locations: target.into_iter().collect(), ..about(&request.pipeline) })
}

fn list_flights(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about_listed(&String::from_utf8_lossy(&Criteria::decode(message)?.expression)))
}

/// A batch is its pipeline's. Of everything else (tables, queries) nobody can tell here which pipelines it shows.
fn flight(message: &[u8]) -> Result<Asked, DecodeError> {
    Ok(about_flight(&asked::of_descriptor(&FlightDescriptor::decode(message)?)))
}

fn about_flight(flight: &asked::Asked) -> Asked {
    match flight {
        asked::Asked::Batch(batch) => about_batch(batch),
        // A table is named by its pipeline, or by a name of its own that may be another pipeline's too. What has no one
        // reading is refused by its callee, which reads it in the same way.
        asked::Asked::Table(_) | asked::Asked::Command(_) | asked::Asked::Unnamed(_) | asked::Asked::Refused(_) => {
            Asked { scope: Scope::All, locations: Vec::new() }
        }
    }
}

/// What a ticket is about that is the name of a flight: it carries no right, so whoever may ask for the flight may send it.
pub(crate) fn named_flight(ticket: &[u8]) -> Option<Asked> {
    let flight = asked::of_bytes(ticket);
    matches!(flight, asked::Asked::Batch(_) | asked::Asked::Table(_)).then(|| about_flight(&flight))
}

fn everything(_: &[u8]) -> Result<Asked, DecodeError> {
    Ok(Asked { scope: Scope::All, locations: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_method_of_every_service_has_a_row_and_no_other_has() {
        let described = FileDescriptorSet::decode(crate::proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut expected = BTreeSet::new();
        for file in &described.file {
            for service in &file.service {
                let name = format!("/{}.{}", file.package(), service.name());
                expected.extend(service.method.iter().map(|method| format!("{name}/{}", method.name())));
            }
        }
        assert!(expected.len() > 20, "{expected:?}");
        let flight = [
            "Handshake",
            "ListFlights",
            "GetFlightInfo",
            "PollFlightInfo",
            "GetSchema",
            "DoGet",
            "DoPut",
            "DoExchange",
            "DoAction",
            "ListActions",
        ];
        expected.extend(flight.map(|method| format!("/arrow.flight.protocol.FlightService/{method}")));
        let ours: BTreeSet<String> = METHODS.iter().map(|method| method.path.to_string()).collect();
        assert_eq!(ours.len(), METHODS.len(), "a row is there twice");
        let rows: BTreeSet<String> = ours.into_iter().filter(|path| !path.starts_with("/grpc.")).collect();
        assert_eq!(rows, expected, "give a new method a row that says who may call it");
    }

    #[test]
    fn nothing_but_health_may_be_called_by_everybody() {
        let open = METHODS.iter().filter(|method| method.who == Who::Everybody);
        assert!(open.map(|method| method.path).all(|path| path.starts_with("/grpc.health.v1.Health/")));
    }

    #[test]
    fn a_definition_is_about_its_pipeline_and_every_place_that_it_names() {
        let pipeline = crate::convert::pipeline_to_proto(&crate::convert::tests::pipeline());
        let request = proto::RunBatchRequest { pipeline: Some(pipeline.clone()), ..Default::default() };
        let asked = run_batch(&request.encode_to_vec()).unwrap();
        assert_eq!(asked.scope, Scope::Pipeline(pipeline.name.clone()));
        let target = pipeline.target.unwrap().path;
        let errors = pipeline.error_table.map(|table| table.path);
        assert_eq!(asked.locations.len(), pipeline.sources.len() + 1 + usize::from(errors.is_some()));
        assert!(asked.locations.contains(&target) && errors.is_none_or(|path| asked.locations.contains(&path)));
        let stored = proto::RunBatchRequest { pipeline_name: "orders".to_string(), ..Default::default() };
        let asked = run_batch(&stored.encode_to_vec()).unwrap();
        assert_eq!((asked.scope, asked.locations), (Scope::Pipeline("orders".to_string()), Vec::new()));
        let both = proto::RunBatchRequest { pipeline_name: "orders".to_string(), ..request };
        assert_eq!(run_batch(&both.encode_to_vec()).unwrap().scope, Scope::All, "neither name is believed");
        let topic = proto::Source {
            kind: proto::SourceKind::Kafka as i32,
            kafka: Some("{\"brokers\":\"b:9092\",\"topic\":\"orders\",\"kafka\":{}}".to_string()),
            ..Default::default()
        };
        assert_eq!(topic_of(&topic).unwrap(), "kafka://b:9092/orders");
        let broken = proto::Source { kafka: Some("no json".to_string()), ..topic };
        assert_eq!(topic_of(&broken).unwrap(), "kafka:///", "which no prefix has");
    }

    #[test]
    fn a_flight_of_a_batch_is_its_pipelines_and_any_other_is_everybodys() {
        let about_flight = |flight: &str| super::about_flight(&asked::of_bytes(flight.as_bytes()));
        assert_eq!(about_flight("batch:orders/1").scope, Scope::Pipeline("orders".to_string()));
        assert_eq!(about_flight("batch:").scope, Scope::Pipeline(String::new()));
        assert_eq!(about_flight("SELECT 1").scope, Scope::All);
        assert_eq!(about_flight("table:orders@20250606182826197").scope, Scope::All);
        assert!(run_batch(b"\xff\xff").is_err());
    }
}
