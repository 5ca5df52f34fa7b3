# SPDX-License-Identifier: Apache-2.0
"""The control plane, driven by code that anybody generates from proto/ with grpcio-tools and nothing of ours."""

import shutil
import tempfile
import threading
import unittest

import grpc
from google.rpc import error_details_pb2, status_pb2
from tributary.common.v1 import common_pb2
from tributary.coordinator.v1 import coordinator_pb2 as proto
from tributary.coordinator.v1 import coordinator_pb2_grpc
from server import Lake, Server

# Hours of work over any table.
ENDLESS = "SELECT a.order_id, count(*) AS n, sum(a.amount + b.amount + c.amount + k.amount) AS s FROM <SRC:orders> a, " \
    + ", ".join(f"<SNAP:orders> {alias}" for alias in "bcdefghijk") + " GROUP BY a.order_id"


def details(error):
    """The details of a failed call by the names of their types."""
    trailer = dict(error.trailing_metadata())["grpc-status-details-bin"]
    found = {}
    for any_ in status_pb2.Status.FromString(trailer).details:
        found[any_.type_url.rpartition("/")[2]] = any_.value
    info = error_details_pb2.ErrorInfo.FromString(found["google.rpc.ErrorInfo"])
    retry = found.get("google.rpc.RetryInfo")
    return info, retry and error_details_pb2.RetryInfo.FromString(retry)


class Control(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix="tributary-control-")
        self.addCleanup(shutil.rmtree, folder)
        self.lake = Lake(folder)
        self.serve()

    def serve(self, *arguments):
        self.server = Server(f"--data-dir={self.lake.folder}/data", *arguments)
        self.addCleanup(lambda server: server.process.poll() is None and server.kill(), self.server)
        self.channel = grpc.insecure_channel(self.server.address)
        self.addCleanup(self.channel.close)
        self.calls = coordinator_pb2_grpc.CoordinatorServiceStub(self.channel)

    def pipeline(self, name="orders", sql=None):
        source = proto.Source(name="orders", path=f"{self.lake.folder}/orders",
                              start=proto.Start(policy=proto.START_POLICY_SNAPSHOT))
        target = proto.Target(path=f"{self.lake.folder}/out/{name}", table_name=name, record_key=["order_id"])
        transforms = [proto.Transform(sql=sql)] if sql else []
        return proto.Pipeline(name=name, sources=[source], transforms=transforms, target=target)

    def refused(self, code, reason, call, request, **named):
        with self.assertRaises(grpc.RpcError) as refused:
            call(request, **named)
        self.assertEqual(code, refused.exception.code(), refused.exception.details())
        info, retry = details(refused.exception)
        self.assertEqual(reason, info.reason)
        return info, retry

    def run_by_name(self, name, request_id, **named):
        return self.calls.RunBatch(proto.RunBatchRequest(pipeline_name=name, request_id=request_id), **named).batch

    def test_a_pipeline_is_created_run_watched_and_outlives_the_server(self):
        looked = self.calls.CreatePipeline(proto.CreatePipelineRequest(pipeline=self.pipeline(), validate_only=True))
        self.assertEqual("", looked.etag)
        create = proto.CreatePipelineRequest(pipeline=self.pipeline(), request_id="create-1")
        created = self.calls.CreatePipeline(create)
        self.assertEqual(created, self.calls.CreatePipeline(create), "the answer that was lost")
        self.refused(grpc.StatusCode.ALREADY_EXISTS, "REQUEST_TAKEN", self.calls.CreatePipeline,
                     proto.CreatePipelineRequest(pipeline=self.pipeline("other"), request_id="create-1"))
        started = self.run_by_name("orders", "r1")
        seen = list(self.calls.WatchBatch(proto.WatchBatchRequest(name=started.name)))
        stages = [batch.stage for batch in seen]
        self.assertEqual(sorted(stages), stages)
        ended = seen[-1]
        self.assertEqual((proto.STAGE_DONE, common_pb2.OUTCOME_COMMITTED), (ended.stage, ended.outcome), ended.error)
        # Progress, source by source.
        self.assertEqual("orders", ended.sources[0].source)
        self.assertGreater(ended.sources[0].rows, 0)
        self.assertGreater(ended.sources[0].report.bytes, 0)
        self.assertGreater(ended.written.rows, 0)
        self.assertEqual(ended, self.calls.GetBatch(proto.GetBatchRequest(name=started.name)))

        self.assertEqual(0, self.server.stop())
        self.serve()
        self.assertEqual(created, self.calls.GetPipeline(proto.GetPipelineRequest(name="orders")))
        again = self.run_by_name("orders", "r1")
        self.assertEqual((ended.name, ended.instant, ended.outcome), (again.name, again.instant, again.outcome))
        self.assertEqual(common_pb2.OUTCOME_NO_NEW_DATA,
                         self.calls.WaitBatch(proto.WaitBatchRequest(name=self.run_by_name("orders", "r2").name)).outcome)
        cursors = self.calls.GetCursors(proto.GetCursorsRequest(pipeline="orders"))
        self.assertEqual((ended.instant, "orders"), (cursors.instant, cursors.sources[0].source))

    def test_a_lost_reply_is_asked_for_again_and_another_body_under_the_id_is_refused(self):
        self.calls.CreatePipeline(proto.CreatePipelineRequest(pipeline=self.pipeline()))
        try:
            # Whether it arrived is not known.
            self.run_by_name("orders", "lost", timeout=0.001)
        except grpc.RpcError as error:
            self.assertIn(error.code(), (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED))
        started = self.run_by_name("orders", "lost")
        ended = self.calls.WaitBatch(proto.WaitBatchRequest(name=started.name))
        self.assertEqual(common_pb2.OUTCOME_COMMITTED, ended.outcome, ended.error)
        batches = self.calls.ListBatches(proto.ListBatchesRequest(pipeline="orders")).batches
        self.assertEqual(["orders/lost"], [batch.name for batch in batches])
        inline = proto.RunBatchRequest(pipeline=self.pipeline(), request_id="lost")
        info, retry = self.refused(grpc.StatusCode.ALREADY_EXISTS, "REQUEST_REUSED", self.calls.RunBatch, inline)
        self.assertEqual(("Never", None), (info.metadata["retry"], retry))

    def test_a_batch_is_waited_for_with_a_deadline_and_cancelled(self):
        self.calls.CreatePipeline(proto.CreatePipelineRequest(pipeline=self.pipeline("endless", ENDLESS)))
        started = self.run_by_name("endless", "r")
        wait = proto.WaitBatchRequest(name=started.name)
        wait.timeout.FromMilliseconds(200)
        running = self.calls.WaitBatch(wait)
        self.assertEqual(common_pb2.OUTCOME_UNSPECIFIED, running.outcome)
        with self.assertRaises(grpc.RpcError) as late:
            self.calls.WaitBatch(proto.WaitBatchRequest(name=started.name), timeout=0.2)
        # The server knows the deadline too, and whichever side notices it first says so.
        self.assertIn(late.exception.code(), (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED))
        watched = []
        stream = self.calls.WatchBatch(proto.WatchBatchRequest(name=started.name))
        watching = threading.Thread(target=lambda: watched.extend(stream), daemon=True)
        watching.start()
        self.calls.CancelBatch(proto.CancelBatchRequest(name=started.name))
        watching.join(timeout=120)
        self.assertFalse(watching.is_alive())
        self.assertEqual(common_pb2.OUTCOME_CANCELLED, watched[-1].outcome)
        self.assertEqual("CANCELLED", watched[-1].error.reason)

    def test_changes_with_an_old_etag_are_aborted_and_a_paused_pipeline_starts_nothing(self):
        created = self.calls.CreatePipeline(proto.CreatePipelineRequest(pipeline=self.pipeline()))
        paused = self.calls.PausePipeline(proto.PausePipelineRequest(name="orders", etag=created.etag))
        self.assertEqual(proto.PIPELINE_STATE_PAUSED, paused.state)
        info, _ = self.refused(grpc.StatusCode.ABORTED, "PIPELINE_CHANGED", self.calls.UpdatePipeline,
                               proto.UpdatePipelineRequest(pipeline=self.pipeline(), etag=created.etag))
        self.assertEqual("Rebase", info.metadata["retry"])
        self.refused(grpc.StatusCode.FAILED_PRECONDITION, "PIPELINE_PAUSED", self.calls.RunBatch,
                     proto.RunBatchRequest(pipeline_name="orders", request_id="r"))
        resumed = self.calls.ResumePipeline(proto.ResumePipelineRequest(name="orders"))
        self.refused(grpc.StatusCode.ABORTED, "PIPELINE_CHANGED", self.calls.DeletePipeline,
                     proto.DeletePipelineRequest(name="orders", etag=paused.etag))
        self.calls.DeletePipeline(proto.DeletePipelineRequest(name="orders", etag=resumed.etag))
        self.refused(grpc.StatusCode.NOT_FOUND, "PIPELINE_NOT_FOUND", self.calls.GetPipeline,
                     proto.GetPipelineRequest(name="orders"))

    def test_pages_of_pipelines_follow_each_other(self):
        for name in ("c", "a", "b"):
            self.calls.CreatePipeline(proto.CreatePipelineRequest(pipeline=self.pipeline(name)))
        names, token = [], ""
        while True:
            page = self.calls.ListPipelines(proto.ListPipelinesRequest(page_size=2, page_token=token))
            names += [stored.name for stored in page.pipelines]
            token = page.next_page_token
            if not token:
                break
        self.assertEqual(["a", "b", "c"], names)
        info, _ = self.refused(grpc.StatusCode.INVALID_ARGUMENT, "PIPELINE_INVALID", self.calls.CreatePipeline,
                               proto.CreatePipelineRequest(pipeline=proto.Pipeline(
                                   name="wrong", sources=self.pipeline().sources, target=proto.Target(path="/t"))))
        self.assertEqual("Never", info.metadata["retry"])

    def test_a_server_that_stops_says_that_asking_again_helps(self):
        self.calls.CreatePipeline(proto.CreatePipelineRequest(pipeline=self.pipeline("endless", ENDLESS)))
        self.assertEqual(0, self.server.stop())
        self.serve("--drain=20s")
        started = self.run_by_name("endless", "r")
        wait = proto.WaitBatchRequest(name=started.name)
        wait.timeout.FromMilliseconds(500)
        self.calls.WaitBatch(wait)
        # It drains: the batch that runs holds the port open, and new ones are turned away.
        self.server.process.terminate()
        give_up, told = threading.Event(), None
        for _ in range(200):
            try:
                self.run_by_name("endless", "r2")
            except grpc.RpcError as error:
                told = error
                break
            give_up.wait(0.02)
        self.assertEqual(grpc.StatusCode.UNAVAILABLE, told.code(), told)
        info, retry = details(told)
        self.assertEqual("Again", info.metadata["retry"])
        self.assertEqual(1, retry.retry_delay.seconds)


if __name__ == "__main__":
    unittest.main()
