# SPDX-License-Identifier: Apache-2.0
"""A small client of the coordinator: starts a batch, follows it to its end, cancels it.

A lost answer, a server that restarts and a follower that starts anew all come down to one thing: asking again with the
same request id. A batch that runs is joined, one that ended well is answered from memory, from its record or from the
target, and one that failed for now is run again.
"""

import logging
import time
from pathlib import Path

import grpc
from google.rpc import status_pb2
from tributary.common.v1 import common_pb2
from tributary.coordinator.v1 import coordinator_pb2, coordinator_pb2_grpc

log = logging.getLogger(__name__)

# How long one attempt to reach the server, and one call that answers at once, may take.
ANSWER_WITHIN = 30.0
# First and longest pause before a server that does not answer is asked again.
PAUSE, LONGEST_PAUSE = 1.0, 30.0
# Answers of which the call may have been lost: the server was not reached, or went away.
LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED}


class BatchError(Exception):
    """A batch that did not commit, or a request that was refused."""

    def __init__(self, message, reason, retry):
        super().__init__(message)
        # The name in the error catalogue.
        self.reason = reason
        # What helps: `NEVER`, `AGAIN`, `REBASE`, `READ_BACK`.
        self.retry = retry


class DeadlinePassed(Exception):
    """The time was over before the batch was."""


def fault_of(error):
    """The `Fault` that a failed call brought; `None` when the call did not reach the service."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                if detail.type_url.endswith("/tributary.common.v1.Fault"):
                    return common_pb2.Fault.FromString(detail.value)
    return None


def _short(enum, number, prefix):
    """`READ_BACK` of `RETRY_READ_BACK`."""
    return enum.Name(number).removeprefix(prefix)


def outcome_of(batch):
    """`COMMITTED`, `FAILED`, …; `UNSPECIFIED` while it runs."""
    return _short(common_pb2.Outcome, batch.outcome, "OUTCOME_")


def channel_to(server, options, ca_file=None, token_file=None):
    """A channel to `http://HOST:PORT`, or an encrypted one to `https://HOST:PORT`, over which alone a token is sent."""
    scheme, found, address = server.rstrip("/").rpartition("://")
    if found and scheme not in ("http", "https"):
        raise ValueError(f"{server}: write the server as http://HOST:PORT or https://HOST:PORT")
    if scheme != "https":
        if token_file:
            raise ValueError(f"{server}: a token would cross the network in the clear; use https://")
        return grpc.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(Path(ca_file).read_bytes() if ca_file else None)
    if token_file:
        def say_who(_, say):
            # Read for every call, so that a token that is replaced takes hold.
            say((("authorization", f"Bearer {Path(token_file).read_text().strip()}"),), None)

        credentials = grpc.composite_channel_credentials(credentials, grpc.metadata_call_credentials(say_who))
    return grpc.secure_channel(address, credentials, options=options)


class Client:
    """Calls one server, as `channel_to` says."""

    def __init__(self, server, clock=time.monotonic, sleep=time.sleep, ca_file=None, token_file=None):
        # 10 MB: plans and batches of many sources. Keep-alive notices a server that vanished.
        options = [("grpc.max_receive_message_length", 10 << 20), ("grpc.keepalive_time_ms", 20_000),
                   ("grpc.keepalive_timeout_ms", 10_000)]
        self.channel = channel_to(server, options, ca_file, token_file)
        self.calls = coordinator_pb2_grpc.CoordinatorServiceStub(self.channel)
        self.clock = clock
        self.sleep = sleep

    def close(self):
        self.channel.close()

    def run(self, pipeline, request_id, deadline, asked_by="", allow_empty=False, on_change=None):
        """Runs the batch of `request_id` and follows it to its end, which is answered as a `Batch`.

        `deadline` is a time of `clock`. `on_change` is called with each state. Raises `BatchError` when the batch or the
        request was refused or failed, `DeadlinePassed` when the time was over; the batch then goes on.
        """
        request = coordinator_pb2.RunBatchRequest(
            pipeline=pipeline, request_id=request_id, asked_by=asked_by, allow_empty=allow_empty)
        pause, before = PAUSE, None
        while True:
            try:
                batch = self.calls.RunBatch(request, timeout=self._left(deadline, ANSWER_WITHIN)).batch
                ended = self._follow(batch, deadline, on_change)
            except grpc.RpcError as error:
                why = self._why(error)
            else:
                if outcome_of(ended) != "UNKNOWN":
                    return self._judged(ended)
                # The server finds out whether the commit arrived; asking again tells, or starts what did not happen.
                why = f"the outcome of {ended.name} is unknown still"
            rest = self._left(deadline, pause)
            if why != before:
                log.warning("%s; asking again", why)
            before = why
            self.sleep(rest)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _follow(self, batch, deadline, on_change):
        """Follows a batch until it has an outcome, or until the server goes away."""
        if on_change:
            on_change(batch)
        if outcome_of(batch) == "UNSPECIFIED":
            request = coordinator_pb2.WatchBatchRequest(name=batch.name)
            for batch in self.calls.WatchBatch(request, timeout=self._left(deadline)):
                if on_change:
                    on_change(batch)
        if outcome_of(batch) == "UNSPECIFIED":
            # The stream ended without an end: the process that ran the batch stopped. Its record tells what became of it.
            batch = self.get(batch.name, self._left(deadline, ANSWER_WITHIN))
        return batch

    def _why(self, error):
        """Why a call is to be repeated. Raises what no repetition of it mends."""
        fault = fault_of(error)
        if fault is None and error.code() not in LOST:
            raise BatchError(f"{error.code().name}: {error.details()}", "OTHER", "NEVER") from error
        if fault is not None:
            retry = _short(common_pb2.Retry, fault.retry, "RETRY_")
            # Refusals of the request itself; a server that is stopping says AGAIN.
            if retry not in ("AGAIN", "READ_BACK"):
                raise BatchError(f"{fault.reason}: {fault.message}", fault.reason, retry) from error
        return f"the server does not serve: {error.details()}"

    @staticmethod
    def _judged(batch):
        outcome = outcome_of(batch)
        if outcome in ("COMMITTED", "NO_NEW_DATA"):
            return batch
        retry = _short(common_pb2.Retry, batch.error.retry, "RETRY_")
        message = f"{batch.name}: {outcome}, {batch.error.reason}: {batch.error.message}"
        raise BatchError(message, batch.error.reason, retry)

    def _left(self, deadline, at_most=None):
        left = deadline - self.clock()
        if left <= 0:
            raise DeadlinePassed
        return left if at_most is None else min(left, at_most)

    def get(self, name, timeout=ANSWER_WITHIN):
        """The batch as it is now."""
        return self.calls.GetBatch(coordinator_pb2.GetBatchRequest(name=name), timeout=timeout)

    def cancel(self, name, timeout=ANSWER_WITHIN):
        """Asks the server to stop the batch before its commit; answers it as it is then."""
        return self.calls.CancelBatch(coordinator_pb2.CancelBatchRequest(name=name), timeout=timeout)
