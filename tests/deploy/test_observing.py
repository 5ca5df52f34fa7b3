# SPDX-License-Identifier: Apache-2.0
"""Traces and events of lineage, read with the packages of OpenTelemetry and OpenLineage."""

import importlib
import inspect
import json
import pkgutil
import queue
import tempfile
import threading
import unittest
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import openlineage.client.generated as generated
from google.protobuf.unknown_fields import UnknownFieldSet
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.generated.column_lineage_dataset import Fields, InputField, Transformation
from openlineage.client.generated.schema_dataset import SchemaDatasetFacetFields
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from server import Lake, Server, command_line


def facet_classes():
    """The class of each facet by the address of its schema."""
    found = {}
    for module in pkgutil.iter_modules(generated.__path__):
        members = vars(importlib.import_module(f"{generated.__name__}.{module.name}")).values()
        for member in members:
            if inspect.isclass(member) and hasattr(member, "_get_schema"):
                found[member._get_schema()] = member
    return found


FACETS = facet_classes()
# Facets of ours: their schema is the one of any facet of their kind.
OWN = {"tributary_batch", "tributary_window"}


def check_fields(fields):
    for field in fields:
        inner = field.pop("fields", [])
        SchemaDatasetFacetFields(**field)
        check_fields(inner)


def check_facets(facets):
    """Fails for a facet that OpenLineage does not know, and for a field that its facet does not have."""
    for name, facet in facets.items():
        schema = facet.pop("_schemaURL")
        assert facet.pop("_producer"), name
        kind = FACETS[schema]
        if name in OWN:
            continue
        kind(**facet)
        if name == "schema":
            check_fields(facet["fields"])
        if name == "columnLineage":
            for made_of in facet["fields"].values():
                for origin in Fields(**made_of).inputFields:
                    for how in InputField(**origin).transformations:
                        Transformation(**how)


def check_event(event):
    """Fails for an event that OpenLineage's own client could not have made."""
    for dataset in event["inputs"] + event["outputs"]:
        assert dataset["namespace"] and dataset["name"], dataset
        for kind in ("facets", "inputFacets", "outputFacets"):
            check_facets(dataset.pop(kind, {}))
        assert set(dataset) == {"namespace", "name"}, dataset
    run, job = event.pop("run"), event.pop("job")
    check_facets(run.pop("facets"))
    check_facets(job.pop("facets"))
    schema = event.pop("schemaURL")
    made = RunEvent(
        eventType=RunState[event.pop("eventType")],
        eventTime=event.pop("eventTime"),
        run=Run(**run),
        job=Job(**job),
        producer=event.pop("producer"),
        inputs=event.pop("inputs"),
        outputs=event.pop("outputs"),
    )
    assert made.schemaURL == schema, schema
    assert event == {}, event
    return made


class Receiver:
    """A server that takes events of lineage."""

    def __init__(self):
        self.events = events = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                events.put((self.path, json.loads(body)))
                self.send_response(201)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A collector of traces."""

    def __init__(self):
        self.requests = []

    def Export(self, request, _):
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()


def unknown_fields(message):
    """Fields of a message, and of those in it, that its type does not have."""
    found = [(message.DESCRIPTOR.name, field.field_number) for field in UnknownFieldSet(message)]
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for part in value if not hasattr(value, "ListFields") else [value]:
                found += unknown_fields(part)
    return found


class Observing(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tributary-observing-")
        self.addCleanup(self.folder.cleanup)
        self.lake = Lake(self.folder.name)

    def test_every_event_of_lineage_is_one_that_openlineage_knows(self):
        broken = self.lake.folder / "broken.toml"
        broken.write_text(self.lake.pipeline("orders_enriched").read_text().replace("orders_enriched.sql", "broken.sql"))
        (self.lake.folder / "broken.sql").write_text("SELECT nothing FROM <SRC:orders> LEFT JOIN <SNAP:users> u ON true")
        with Receiver() as receiver:
            server = Server("--lineage", receiver.url, "--lineage-namespace", "shop")
            for pipeline, expected in ((self.lake.pipeline("orders_enriched"), 0), (broken, 2)):
                code, out, err = command_line("run", "--server", server.url, "--pipeline", pipeline)
                self.assertEqual(expected, code, out + err)
            code, _, err = command_line("run", "--server", server.url, "--pipeline", self.lake.pipeline("orders_enriched"))
            self.assertEqual(0, code, err)
            self.assertEqual(0, server.stop())
            told = list(receiver.events.queue)
        self.assertEqual({"/api/v1/lineage"}, {path for path, _ in told})
        events = [event for _, event in told]
        types = [event["eventType"] for event in events]
        # A commit, a pipeline that is refused before it is planned to the end, and a batch without news.
        self.assertEqual(["START", "RUNNING", "COMPLETE", "START", "FAIL", "START", "RUNNING", "COMPLETE"], types)
        committed, failed, idle = events[2], events[4], events[7]
        self.assertEqual(1, len({event["run"]["runId"] for event in events[:3]}))
        self.assertEqual(3, len({event["run"]["runId"] for event in events}))
        self.assertEqual({"shop"}, {event["job"]["namespace"] for event in events})
        output = committed["outputs"][0]
        self.assertGreater(output["outputFacets"]["outputStatistics"]["rowCount"], 0)
        self.assertIn("order_id", [field["name"] for field in output["facets"]["schema"]["fields"]])
        made_of = output["facets"]["columnLineage"]["fields"]
        self.assertEqual("order_id", made_of["order_id"]["inputFields"][0]["field"])
        self.assertGreater(committed["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"], 0)
        self.assertIn("nothing", failed["run"]["facets"]["errorMessage"]["message"])
        self.assertEqual({}, idle["outputs"][0]["outputFacets"])
        for event in events:
            with self.subTest(type=event["eventType"]):
                check_event(event)

    def test_a_wrong_event_would_be_found(self):
        with self.assertRaises(TypeError):
            check_facets({"sql": {"_producer": "p", "_schemaURL": FACETS_BY_NAME["SQLJobFacet"], "text": "SELECT 1"}})
        with self.assertRaises(KeyError):
            check_facets({"sql": {"_producer": "p", "_schemaURL": "https://openlineage.io/spec/none", "query": "SELECT 1"}})

    def test_a_collector_of_opentelemetry_understands_the_spans_of_a_batch(self):
        collector = Collector()
        server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        code, out, err = command_line("run", "--pipeline", self.lake.pipeline("orders_enriched"),
                                      "--otlp-endpoint", f"http://127.0.0.1:{port}")
        self.assertEqual(0, code, out + err)
        server.stop(0)
        self.assertEqual([], [field for request in collector.requests for field in unknown_fields(request)])
        resources = [resource for request in collector.requests for resource in request.resource_spans]
        process = {attribute.key: attribute.value.string_value for attribute in resources[0].resource.attributes}
        self.assertEqual("tributary", process["service.name"])
        spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
        self.assertEqual(1, len({span.trace_id for span in spans}))
        by_id = {span.span_id: span for span in spans}
        roots = [span for span in spans if not span.parent_span_id]
        self.assertEqual(["run"], [span.name for span in roots])
        for span in spans:
            self.assertEqual((16, 8), (len(span.trace_id), len(span.span_id)))
            self.assertLessEqual(span.start_time_unix_nano, span.end_time_unix_nano)
            self.assertTrue(span in roots or span.parent_span_id in by_id, span.name)
        batch = next(span for span in spans if span.name == "batch")
        said = {attribute.key: attribute.value for attribute in batch.attributes}
        self.assertEqual("COMMITTED", said["outcome"].string_value)
        self.assertGreater(said["rows"].int_value, 0)
        self.assertEqual(batch.SPAN_KIND_INTERNAL, batch.kind)


FACETS_BY_NAME = {kind.__name__: schema for schema, kind in FACETS.items()}
