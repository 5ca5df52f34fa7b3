# SPDX-License-Identifier: Apache-2.0
"""pyarrow pulls a committed batch from a Tributary server over Arrow Flight.

    TRIBUTARY_SERVER=http://127.0.0.1:7373 TRIBUTARY_BATCH=orders/REQUEST-ID flight_client.py
    TRIBUTARY_BIN=target/debug/tributary flight_client.py

The second form starts a server on the demo's tables and runs the batches itself. The last line
says `N passed, M failed`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

TESTS = Path(__file__).resolve().parent.parent
SERVER = os.environ.get("TRIBUTARY_SERVER")
BATCH = os.environ.get("TRIBUTARY_BATCH")
EMPTY_BATCH = None  # a batch that committed nothing, where this script made one


class Demo:
    """A server of our own, with one batch that committed rows and one that found nothing new."""

    def __init__(self, binary):
        self.binary = str(Path(binary).resolve())
        self.directory = Path(tempfile.mkdtemp(prefix="tributary-flight-"))
        with zipfile.ZipFile(TESTS / "fixtures" / "demo" / "round1.zip") as archive:
            archive.extractall(self.directory)
        for file in (TESTS / "demo").glob("orders_enriched.*"):
            shutil.copy(file, self.directory)
        self.process = subprocess.Popen(
            [self.binary, "serve", "--listen", "127.0.0.1:0"],
            cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        line = self.process.stdout.readline()
        self.url = "http://" + line.removeprefix("listening on ").strip()

    def run(self, request_id):
        command = [self.binary, "run", "--server", self.url, "--pipeline", "orders_enriched.toml",
                   "--request-id", request_id, "--output", "json"]
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        shutil.rmtree(self.directory, ignore_errors=True)


class Pull(unittest.TestCase):
    def setUp(self):
        self.client = flight.connect(SERVER.replace("http://", "grpc://"))
        self.path = flight.FlightDescriptor.for_path(f"batch:{BATCH}")

    def tearDown(self):
        self.client.close()

    def pull(self):
        info = self.client.get_flight_info(self.path)
        return self.client.do_get(info.endpoints[0].ticket).read_all()

    def test_flight_info_says_what_the_batch_was(self):
        info = self.client.get_flight_info(self.path)
        self.assertEqual(1, len(info.endpoints))
        self.assertEqual(f"batch:{BATCH}".encode(), info.endpoints[0].ticket.ticket)
        metadata = info.schema.metadata
        self.assertEqual(BATCH.encode(), metadata[b"tributary.batch"])
        self.assertRegex(metadata[b"tributary.instant"].decode(), r"^\d{17}$")
        windows = [key for key in metadata if key.startswith(b"tributary.source.") and key.endswith(b".end")]
        self.assertTrue(windows, metadata)

    def test_a_command_names_the_same_flight_as_a_path(self):
        by_command = self.client.get_flight_info(flight.FlightDescriptor.for_command(f"batch:{BATCH}"))
        by_path = self.client.get_flight_info(self.path)
        self.assertEqual(by_path.schema, by_command.schema)
        self.assertEqual(by_path.endpoints[0].ticket.ticket, by_command.endpoints[0].ticket.ticket)

    def test_the_rows_are_all_there_in_the_schema_that_was_told(self):
        info = self.client.get_flight_info(self.path)
        table = self.pull()
        self.assertGreater(table.num_rows, 0)
        if info.total_records >= 0:
            self.assertEqual(info.total_records, table.num_rows)
        self.assertEqual(info.schema, table.schema)
        self.assertEqual(self.client.get_schema(self.path).schema, table.schema)
        table.validate(full=True)
        self.assertFalse([name for name in table.column_names if name.startswith("_hoodie_")])

    def test_a_batch_can_be_pulled_by_many_and_again(self):
        order = lambda table: sorted(map(repr, table.to_pylist()))  # noqa: E731
        expected = order(self.pull())
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: order(self.pull()), range(8)):
                self.assertEqual(expected, found)

    def test_the_batch_is_among_the_listed_flights(self):
        listed = [info.descriptor.path[0].decode() for info in self.client.list_flights()]
        self.assertIn(f"batch:{BATCH}", listed)
        pipeline = BATCH.split("/")[0].encode()
        of_pipeline = [info.descriptor.path[0].decode() for info in self.client.list_flights(pipeline)]
        self.assertIn(f"batch:{BATCH}", of_pipeline)

    def test_a_reader_may_stop_early(self):
        reader = self.client.do_get(flight.Ticket(f"batch:{BATCH}".encode()))
        reader.read_chunk()
        reader.cancel()
        self.assertGreater(self.pull().num_rows, 0)

    def test_an_unknown_batch_is_named(self):
        unknown = flight.FlightDescriptor.for_path("batch:nobody/nothing")
        with self.assertRaisesRegex((flight.FlightError, pa.ArrowException), "there is no batch `nobody/nothing`"):
            self.client.get_flight_info(unknown)

    def test_what_is_no_batch_is_refused_with_the_form_it_should_have(self):
        with self.assertRaisesRegex((flight.FlightError, pa.ArrowException), "a batch is `batch:"):
            self.client.do_get(flight.Ticket(b"table:x")).read_all()

    def test_a_batch_without_a_commit_cannot_be_pulled(self):
        if EMPTY_BATCH is None:
            self.skipTest("no such batch is known on this server")
        with self.assertRaisesRegex((flight.FlightError, pa.ArrowException), "can no longer be pulled"):
            self.client.get_flight_info(flight.FlightDescriptor.for_path(f"batch:{EMPTY_BATCH}"))

    def test_rows_cannot_be_put(self):
        schema = pa.schema([("id", pa.int64())])
        with self.assertRaisesRegex((flight.FlightError, pa.ArrowException), "DoPut is not offered here"):
            writer, _ = self.client.do_put(flight.FlightDescriptor.for_path("anything"), schema)
            writer.write_table(pa.table({"id": [1]}))
            writer.close()


def main():
    global SERVER, BATCH, EMPTY_BATCH
    demo = None
    if not SERVER:
        demo = Demo(os.environ["TRIBUTARY_BIN"])
        SERVER, BATCH = demo.url, demo.run("first")["batch"]
        EMPTY_BATCH = demo.run("second")["batch"]
    try:
        result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Pull))
    finally:
        if demo:
            demo.stop()
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
