# SPDX-License-Identifier: Apache-2.0
"""An Airflow operator that runs one batch of a pipeline on a Tributary server.

The batch belongs to the server: it survives the worker. The request id is made from the run of the task, so a second
attempt, or another worker after the first one died, joins the batch that is there and never runs it twice.

    merge = TributaryBatchOperator(
        task_id="orders_enriched",
        server="http://tributary.data.svc:7373",
        pipeline_file="/opt/pipelines/orders_enriched.toml",
        timeout=timedelta(hours=2),
        retries=3,
    )

What the server advises decides what Airflow does: NEVER fails the task for good (`AirflowFailException`), everything
else fails this attempt (`AirflowException`), so that `retries` applies. The answer, pushed as XCom, says what was
committed.
"""

import time
from datetime import timedelta

import grpc
from tributary_airflow.client import BatchError, Client, DeadlinePassed, outcome_of
from tributary_airflow.pipeline_file import PipelineFileError, load_pipeline
from tributary_airflow.request_id import request_id_of

try:
    from airflow.sdk import BaseOperator
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
except ImportError:
    try:
        from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException
        from airflow.models import BaseOperator  # before Airflow 3.1
    except ImportError:
        from tributary_airflow.without_airflow import (
            AirflowException, AirflowFailException, AirflowSkipException, BaseOperator)


class TributaryBatchOperator(BaseOperator):
    """Runs one batch and waits for its end.

    :param server: address of the server, `http://HOST:PORT` or `https://HOST:PORT`
    :param ca_file: authorities that the server's certificate is checked with, a file the worker reads
    :param token_file: the token that says who calls, a file the worker reads
    :param pipeline_file: the pipeline, as `tributary run --pipeline` takes it; the worker reads it
    :param timeout: how long to wait for the batch, all attempts to reach the server included
    :param skip_on_no_new_data: skip the task, and what follows it, when no source had news
    :param cancel_on_kill: cancel the batch when the task is killed or marked from outside; a worker that just dies
        leaves it running, for the next attempt to join
    :param cancel_on_timeout: cancel the batch when the time is over
    :param allow_empty: commit at the old cursors even if nothing is new
    """

    template_fields = ("server", "pipeline_file", "ca_file", "token_file")
    ui_color = "#cfe3f1"

    def __init__(self, *, server, pipeline_file, timeout=timedelta(hours=2), skip_on_no_new_data=False,
                 cancel_on_kill=True, cancel_on_timeout=True, allow_empty=False, ca_file=None, token_file=None, **kwargs):
        super().__init__(**kwargs)
        self.server = server
        self.ca_file = ca_file
        self.token_file = token_file
        self.pipeline_file = pipeline_file
        self.timeout = timeout
        self.skip_on_no_new_data = skip_on_no_new_data
        self.cancel_on_kill = cancel_on_kill
        self.cancel_on_timeout = cancel_on_timeout
        self.allow_empty = allow_empty
        self.batch_name = None

    def execute(self, context):
        try:
            pipeline = load_pipeline(self.pipeline_file)
        except PipelineFileError as error:
            raise AirflowFailException(str(error)) from error
        request_id = self.request_id(context, pipeline.name)
        # Known before the server is asked, so that on_kill can cancel a batch whose start was not answered yet.
        self.batch_name = f"{pipeline.name}/{request_id}"
        client = self._client()
        try:
            batch = client.run(pipeline, request_id, time.monotonic() + self.timeout.total_seconds(),
                               asked_by=self.asked_by(context), allow_empty=self.allow_empty)
        except DeadlinePassed as error:
            raise self.out_of_time(client) from error
        except BatchError as error:
            kind = AirflowFailException if error.retry == "NEVER" else AirflowException
            raise kind(f"{error} (advice: {error.retry})") from error
        finally:
            client.close()
        if outcome_of(batch) == "NO_NEW_DATA" and self.skip_on_no_new_data:
            raise AirflowSkipException(f"{batch.name}: no source had news")
        return summary(batch)

    def _client(self):
        return Client(self.server, ca_file=self.ca_file, token_file=self.token_file)

    def out_of_time(self, client):
        """What to raise when the time was over; the batch is cancelled first, where that is wanted."""
        text = f"{self.batch_name} did not end within {self.timeout}"
        if not self.cancel_on_timeout:
            return AirflowException(f"{text}; it goes on, and the next attempt joins it")
        try:
            client.cancel(self.batch_name)
        except grpc.RpcError as error:
            return AirflowException(f"{text}, and it could not be cancelled: {error.details()}")
        return AirflowException(f"{text} and was cancelled, unless it commits already")

    def on_kill(self):
        """Called by Airflow when the task is to end; the batch ends with it, before its commit."""
        if not (self.cancel_on_kill and self.batch_name):
            return
        client = self._client()
        try:
            client.cancel(self.batch_name)
        except grpc.RpcError as error:
            # A batch that never started has nothing to cancel.
            if error.code() != grpc.StatusCode.NOT_FOUND:
                raise
        finally:
            client.close()

    def request_id(self, context, pipeline):
        """The same for every attempt at this task of this run of the DAG."""
        run, task = context["dag_run"], context["ti"]
        started = run.start_date or getattr(run, "queued_at", None)
        if started is None:
            raise AirflowFailException("the run of the DAG has no start date, so no request id can be made from it")
        parts = (task.dag_id, task.run_id, task.task_id, getattr(task, "map_index", -1), pipeline)
        return request_id_of(parts, started)

    def asked_by(self, context):
        """Who asks, for the server's history."""
        task = context["ti"]
        return f"Airflow {task.dag_id}.{task.task_id} run {task.run_id}"


def summary(batch):
    """What is pushed as XCom: plain values only."""
    return {
        "batch": batch.name,
        "outcome": outcome_of(batch),
        "instant": batch.instant,
        "completed": batch.completed,
        "rows": batch.written.rows,
        "inserts": batch.written.inserts,
        "updates": batch.written.updates,
        "deletes": batch.written.deletes,
        "sources": [
            {"source": source.source, "rows": source.rows, "begin": source.window.begin.instant,
             "end": source.window.end.instant, "lag_seconds": source.report.lag_seconds}
            for source in batch.sources
        ],
    }
