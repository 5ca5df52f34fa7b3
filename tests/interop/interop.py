# SPDX-License-Identifier: Apache-2.0
"""Spark writes sources, Tributary merges them, Spark and the `hudi` package read the target.

    TRIBUTARY_BIN=target/release/tributary make interop
    interop.py [--stand-in] [test name ...]

One Spark session serves all scenarios. The last line says `N passed, M failed`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
import zipfile
from pathlib import Path

import fixture_demo
import fixture_tables
from checks import (
    check_after_each_batch,
    check_archive,
    check_cleans,
    check_hudi_package,
    check_in_depth,
    check_incremental,
    check_metadata_table,
)
from csv_files import CsvFiles
from deletes import Deletes
from merge_on_read import MergeOnRead
from hdfs import Cluster
from objectstore import Bucket, JavaLock
from operators import Operators
from pulling import Server
from rows import in_order, plain_arrow, plain_spark
from scenarios import FileScenario, Scenario
from shared import SharedWriters
from skipping import Skipping
from sparkhudi import META_COLUMNS, HudiTable, start_session
from standin import StandIn
from topics import TopicTests

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

LOCK = "target/.hoodie/.locks/table_lock.json"

ORDERS_WITH_USERS = """
    SELECT o.order_id, o.user_id, o.amount, o.status, o.order_date, o.updated_at, o.note,
           u.name AS user_name, u.tier
    FROM <SRC:orders> o LEFT JOIN <SNAP:users> u ON o.user_id = u.user_id
"""

BOTH_SIDES = """
    SELECT COALESCE(l.id, r.id) AS id, l.label, r.score,
           COALESCE(l.ts, r.ts) AS ts
    FROM <SRC:labels> l FULL OUTER JOIN <SRC:scores> r ON l.id = r.id
"""


class Tributary:
    """The binary under test, as its users call it."""

    def __init__(self, binary):
        self.binary = binary

    def start(self, pipeline_file, request_id=None, environment=None):
        command = [self.binary, "run", "--pipeline", str(pipeline_file), "--output", "json"]
        if request_id:
            command += ["--request-id", request_id]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, env=environment, **pipes)

    def finish(self, process):
        stdout, stderr = process.communicate(timeout=300)
        if process.returncode != 0:
            command = " ".join(process.args)
            raise AssertionError(f"{command} ended with {process.returncode}\n{stdout}\n{stderr}")
        return json.loads(stdout)

    def run(self, pipeline_file, request_id=None, environment=None):
        with self.start(pipeline_file, request_id, environment) as process:
            return self.finish(process)


class Interop(
    MergeOnRead, CsvFiles, TopicTests, SharedWriters, Skipping, Operators, Deletes, unittest.TestCase
):
    # Set by main().
    spark = None
    tributary = None

    maxDiff = 4000

    def setUp(self):
        began = time.monotonic()
        self.addCleanup(lambda: print(f"({time.monotonic() - began:.0f} s) ", end="", flush=True))
        self.work = Path(tempfile.mkdtemp(prefix="tributary-interop-"))
        self.addCleanup(shutil.rmtree, self.work, ignore_errors=True)

    def need_tributary(self, why):
        """Skips a test that the stand-in cannot play."""
        if not isinstance(self.tributary, Tributary):
            self.skipTest(why)

    # -- steps ------------------------------------------------------------------------

    def scenario(self, name, sources, sql, **target):
        folder = self.work / name
        tables = {source: make(folder / source) for source, make in sources.items()}
        return Scenario(self.spark, folder, tables, sql, **target)

    def files_scenario(self, name, columns, **target):
        """A scenario whose source needs no Spark: for tests of which the target is all that matters."""
        self.need_tributary("the stand-in reads tables, and writes copy-on-write ones")
        return FileScenario(self.spark, self.work / name, columns, **target)

    def file_batch(self, scenario, rows):
        """A file of rows, and the batch that takes it in."""
        scenario.add(rows)
        return self.batch(scenario)

    def source(self, key="id", **settings):
        return lambda path: HudiTable(self.spark, path, key=key, ordering="ts", **settings)

    def commit(self, table, rows, columns, operation="upsert"):
        table.write(self.spark.createDataFrame(rows, columns), operation)

    def batch(self, scenario, request_id=None, bucket=None):
        """One run of the binary that must commit, and the checks behind it."""
        rows = scenario.batch_expected()
        if bucket is None:
            answer = self.tributary.run(scenario.pipeline_file, request_id)
        else:
            bucket.upload(scenario)
            file, environment = bucket.pipeline_file(scenario), bucket.environment()
            answer = self.tributary.run(file, request_id, environment)
            bucket.download_target(scenario)
        self.assertEqual("COMMITTED", answer["outcome"], answer)
        self.assertEqual(len(rows), answer["rows"])
        scenario.committed(rows, answer["instant"], answer["completed"])
        # A compaction may have followed.
        newest = scenario.target.last_write()
        self.assertEqual((answer["instant"], answer["completed"]), newest[:2])
        check_after_each_batch(self, scenario)
        return answer

    def spark_writes(self, scenario, rows, columns, options):
        """Spark's own writer commits rows into the target; all must still be right."""
        scenario.target.write(self.spark.createDataFrame(rows, columns), options=options)
        theirs = scenario.target.last_write()
        rows = [dict(zip(scenario.schema.names, row)) for row in rows]
        scenario.committed(rows, theirs.requested, theirs.completed)
        for metadata in (True, False):
            frame = scenario.target.snapshot(metadata)
            self.assertEqual(scenario.snapshot_expected(), plain_spark(frame, META_COLUMNS))
        check_metadata_table(self, scenario.target)

    def nothing_new(self, scenario):
        """One more run must find nothing and leave the timeline as it is."""
        before = scenario.target.instants()
        answer = self.tributary.run(scenario.pipeline_file)
        self.assertEqual("NO_NEW_DATA", answer["outcome"], answer)
        self.assertEqual(before, scenario.target.instants())

    # -- joins, upserts ---------------------------------------------------------------

    def orders_scenario(self, name, **target):
        folder = self.work / name
        tables = dict(zip(("orders", "users"), fixture_demo.open_tables(self.spark, folder)))
        return Scenario(
            self.spark, folder, tables, ORDERS_WITH_USERS,
            key="order_id", ordering="updated_at", **target,
        )  # fmt: skip

    def write_orders(self, scenario, order_commits, user_commits):
        tables = (scenario.sources["orders"], scenario.sources["users"])
        fixture_demo.write_round(self.spark, tables, order_commits, user_commits)

    def test_left_join_into_a_partitioned_target(self):
        scenario = self.orders_scenario("enriched", partition=["order_date"])
        self.write_orders(scenario, fixture_demo.ORDERS_ROUND_1, fixture_demo.USERS_ROUND_1)
        self.batch(scenario)
        self.write_orders(scenario, fixture_demo.ORDERS_ROUND_2[:1], fixture_demo.USERS_ROUND_2)
        self.batch(scenario)
        self.write_orders(scenario, fixture_demo.ORDERS_ROUND_2[1:], [])
        self.batch(scenario)
        self.nothing_new(scenario)
        check_in_depth(self, scenario)
        self.assertTrue((Path(scenario.target.path) / "order_date=2024-05-01").is_dir())

    def test_the_same_request_twice_is_one_commit(self):
        scenario = self.orders_scenario("repeated")
        self.write_orders(scenario, fixture_demo.ORDERS_ROUND_1[:1], fixture_demo.USERS_ROUND_1[:1])
        request_id = new_request_id()
        first = self.batch(scenario, request_id)
        self.write_orders(scenario, fixture_demo.ORDERS_ROUND_1[1:2], [])
        again = self.tributary.run(scenario.pipeline_file, request_id)
        self.assertEqual(
            (first["outcome"], first["instant"], first["completed"]),
            (again["outcome"], again["instant"], again["completed"]),
        )
        self.assertEqual(1, len(scenario.target.instants()))
        self.batch(scenario, new_request_id())

    def test_full_outer_join_with_a_coalesced_key(self):
        labels, scores = "id string, label string, ts long", "id string, score double, ts long"
        sources = {"labels": self.source(), "scores": self.source(metadata=False)}
        scenario = self.scenario("both_sides", sources, BOTH_SIDES, key="id", ordering="ts")
        left, right = scenario.sources["labels"], scenario.sources["scores"]
        rounds = [
            ([("a", "A", 1), ("b", None, 1), ("c", "C", 1)], [("b", 2.5, 1), ("d", 4.0, 1)]),
            ([("a", "AA", 2), ("e", "E", 2)], [("a", 1.5, 2), ("d", None, 2), ("f", 6.0, 2)]),
            ([("c", "CC", 3)], [("e", -0.5, 3), ("g", 7.0, 3)]),
        ]
        for label_rows, score_rows in rounds:
            self.commit(left, label_rows, labels)
            self.commit(right, score_rows, scores)
            self.batch(scenario)
        self.nothing_new(scenario)
        check_in_depth(self, scenario)

    # -- other operations ---------------------------------------------------------------

    def append_in_two_rounds(self, operation, **target):
        columns = "id string, day string, value long, ts long"
        sources = {"events": self.source()}
        sql = "SELECT * FROM <SRC:events>"
        scenario = self.scenario(operation, sources, sql, key="id", operation=operation, **target)
        for number in (1, 2):
            rows = [(f"e{number}{i}", f"2024-05-0{i % 3 + 1}", i, number) for i in range(7)]
            self.commit(scenario.sources["events"], rows, columns)
            self.batch(scenario)
        check_in_depth(self, scenario)

    def test_insert_into_an_unpartitioned_target(self):
        self.append_in_two_rounds("insert", ordering="ts")

    def test_bulk_insert_into_a_partitioned_target(self):
        self.append_in_two_rounds("bulk_insert", partition=["day"], ordering="ts")

    def test_deletes_and_overwrites(self):
        columns = "id string, day string, value long, ts long"
        sql = "SELECT id, day, value, ts, value < 0 AS _hoodie_is_deleted FROM <SRC:events>"
        scenario = self.scenario(
            "changing", {"events": self.source()}, sql, key="id", partition=["day"], ordering="ts"
        )
        days = ("2024-05-01", "2024-05-02", "2024-05-03")
        rounds = [
            ("upsert", [(f"e{i}", days[i % 3], i, 1) for i in range(9)]),
            ("upsert", [("e0", days[0], -1, 2), ("e1", days[1], 10, 2), ("x", days[2], -1, 2)]),
            ("insert_overwrite", [("e3", days[0], 30, 3), ("y", days[0], 31, 3)]),
            ("delete", [("e4", days[1], 0, 4), ("y", days[0], 0, 4)]),
            ("upsert", [("e0", days[0], 50, 5), ("e5", days[2], 51, 5)]),
        ]
        answers = []
        for operation, rows in rounds:
            scenario.set_operation(operation)
            self.commit(scenario.sources["events"], rows, columns)
            answers.append(self.batch(scenario))
        self.assertEqual([0, 1, 0, 2, 0], [answer["deletes"] for answer in answers])
        self.assertEqual([0, 1, 0, 0, 0], [answer["absent"] for answer in answers])
        self.assertEqual([0, 0, 1, 0, 0], [answer["replaced_groups"] for answer in answers])
        self.nothing_new(scenario)
        check_in_depth(self, scenario)

    # -- values -------------------------------------------------------------------------

    def test_every_column_type_and_nulls(self):
        sources = {"typed": self.source()}
        sql = "SELECT * FROM <SRC:typed>"
        scenario = self.scenario("every_type", sources, sql, key="id", ordering="ts")
        table = scenario.sources["typed"]
        self.commit(table, fixture_tables.typed_rows(range(9), 1), fixture_tables.PARTITIONED)
        self.batch(scenario)
        self.commit(table, fixture_tables.typed_rows([2, 3, 9, 11], 2), fixture_tables.PARTITIONED)
        self.batch(scenario)
        check_in_depth(self, scenario)

    def test_special_characters_in_partition_values(self):
        columns = "id string, region string, value long, ts long"
        sql = "SELECT * FROM <SRC:places>"
        sources = {"places": self.source()}
        scenario = self.scenario(
            "places", sources, sql, key="id", partition=["region"], ordering="ts"
        )
        regions = fixture_tables.REGIONS
        for ts, numbers in ((1, range(len(regions))), (2, [1, 2, 3, 6, 8])):
            rows = [(f"p{i}", regions[i], i * ts, ts) for i in numbers]
            self.commit(scenario.sources["places"], rows, columns)
            self.batch(scenario)
        check_in_depth(self, scenario)

    # -- shipped tables -------------------------------------------------------------------

    def test_the_demo_archives(self):
        scenario = self.orders_scenario("demo", partition=["order_date"])
        for number in (1, 2):
            unpack(FIXTURES / "demo" / f"round{number}.zip", scenario.folder)
            self.batch(scenario)
        self.nothing_new(scenario)
        check_in_depth(self, scenario)

    def shipped_table(self, name):
        """The snapshot of a shipped table arrives as Spark once read it."""
        sql = "SELECT * FROM <SRC:shipped>"
        scenario = self.scenario(name, {"shipped": self.source()}, sql, key="id", ordering="ts")
        unpack(FIXTURES / "tables" / f"{name}.zip", scenario.folder)
        (scenario.folder / name).rename(scenario.folder / "shipped")
        self.batch(scenario)
        oracle = json.loads((FIXTURES / "tables" / f"{name}.expected.json").read_text())
        rows = [{k: v for k, v in row.items() if k not in META_COLUMNS} for row in oracle["snapshot"]]
        self.assertEqual(in_order(rows), scenario.snapshot_expected())
        self.nothing_new(scenario)

    def test_shipped_updates(self):
        self.shipped_table("cow_v9_updates")

    def test_shipped_partitioned(self):
        self.shipped_table("cow_v9_partitioned")

    def test_shipped_replace(self):
        self.shipped_table("cow_v9_replace")

    def test_shipped_pending(self):
        self.shipped_table("cow_v9_pending")

    def test_shipped_archived(self):
        self.shipped_table("cow_v9_archived")

    def test_shipped_tables_of_version_six(self):
        for name in ("updates", "partitioned", "replace", "archived", "upgraded"):
            with self.subTest(name):
                self.shipped_table(f"cow_v6_{name}")

    # -- an object store ------------------------------------------------------------------

    def test_sources_and_target_in_an_s3_store(self):
        self.need_tributary("the stand-in writes to the local disk")
        scenario = self.orders_scenario("remote", partition=["order_date"])
        with Bucket() as bucket:
            for number in (1, 2):
                unpack(FIXTURES / "demo" / f"round{number}.zip", scenario.folder)
                self.batch(scenario, bucket=bucket)
                expired, valid_until, owner = JavaLock(self.spark).read(bucket.read(f"remote/{LOCK}"))
                self.assertTrue(expired, "the lock is given back")
                self.assertGreater(valid_until, time.time() * 1000)
                self.assertIn("remote", owner)
            check_in_depth(self, scenario)

    def test_a_lock_that_java_holds_keeps_us_out_until_it_is_given_back(self):
        self.need_tributary("the stand-in writes to the local disk")
        scenario = self.orders_scenario("locked")
        unpack(FIXTURES / "demo" / "round1.zip", scenario.folder)
        with scenario.pipeline_file.open("a") as pipeline:
            pipeline.write('[limits]\ntimeout = "2s"\n')
        java, later = JavaLock(self.spark), int(time.time() * 1000) + 600_000
        with Bucket() as bucket:
            bucket.upload(scenario)
            bucket.write(f"locked/{LOCK}", java.write(False, later, "a Spark writer"))
            file, environment = bucket.pipeline_file(scenario), bucket.environment()
            with self.tributary.start(file, environment=environment) as refused:
                _, message = refused.communicate(timeout=60)
            self.assertEqual(3, refused.returncode, message)
            bucket.write(f"locked/{LOCK}", java.write(True, later, "a Spark writer"))
            self.batch(scenario, bucket=bucket)

    def test_two_runs_at_once_into_an_s3_store_commit_one_batch(self):
        self.need_tributary("the stand-in writes to the local disk")
        scenario = self.orders_scenario("raced")
        unpack(FIXTURES / "demo" / "round1.zip", scenario.folder)
        rows = scenario.batch_expected()
        with Bucket() as bucket:
            bucket.upload(scenario)
            file, environment = bucket.pipeline_file(scenario), bucket.environment()
            racing = [self.tributary.start(file, environment=environment) for _ in range(2)]
            answers = []
            for process in racing:
                with process:
                    answers.append(self.tributary.finish(process))
            bucket.download_target(scenario)
        self.assertEqual(["COMMITTED", "NO_NEW_DATA"], sorted(a["outcome"] for a in answers))
        winner = next(answer for answer in answers if answer["outcome"] == "COMMITTED")
        scenario.committed(rows, winner["instant"], winner["completed"])
        self.assertEqual(1, len(scenario.target.instants()))
        check_after_each_batch(self, scenario)

    # -- sources on HDFS -----------------------------------------------------------------

    def test_sources_on_hdfs_and_a_target_there_is_refused(self):
        if not isinstance(self.tributary, Tributary):
            self.skipTest("the stand-in reads the local disk")
        scenario = self.orders_scenario("from_hdfs", partition=["order_date"])
        with Cluster() as cluster:
            for number in (1, 2):
                unpack(FIXTURES / "demo" / f"round{number}.zip", scenario.folder)
                self.batch(scenario, bucket=cluster)
            check_in_depth(self, scenario)
            there = cluster.pipeline_file(scenario, target=f"{cluster.url}/lake/target")
            with self.tributary.start(there) as refused:
                message, _ = refused.communicate(timeout=60)
            self.assertEqual(2, refused.returncode, message)
            self.assertIn("tables on HDFS can be read but not written", message)

    # -- pulling a batch --------------------------------------------------------------------

    def test_pyarrow_pulls_the_batch_that_spark_reads(self):
        self.need_tributary("the stand-in has no server")
        scenario = self.orders_scenario("pulled", partition=["order_date"])
        with Server(self.tributary.binary) as server:
            for number in (1, 2):
                unpack(FIXTURES / "demo" / f"round{number}.zip", scenario.folder)
                expected = scenario.batch_expected()
                answer = server.run(scenario.pipeline_file)
                self.assertEqual("COMMITTED", answer["outcome"], answer)
                scenario.committed(expected, answer["instant"], answer["completed"])
                schema, batches = server.pull(answer["batch"])
                self.assertEqual(scenario.schema.names, schema.names)
                self.assertEqual(expected, plain_arrow(batches, scenario.schema))
                check_after_each_batch(self, scenario)
            self.assertIn("no-such-batch", server.pull_error("pulled/no-such-batch"))

    # -- table services -------------------------------------------------------------------

    def test_a_target_that_was_cleaned_archived_and_compacted(self):
        columns = "id string, day string, value long, ts long"
        services = {"clean_commits": 4, "archive_commits": 9, "compact_metadata_commits": 6}
        scenario = self.files_scenario(
            "serviced", columns, key="id", partition=["day"], ordering="ts", services=services
        )
        for number in range(40):
            keys = sorted({number % 11, (number * 3) % 11, 5})
            scenario.add([(f"e{key}", f"2024-05-0{key % 3 + 1}", number, number) for key in keys])
            rows = scenario.batch_expected()
            answer = self.tributary.run(scenario.pipeline_file)
            self.assertEqual(("COMMITTED", len(rows)), (answer["outcome"], answer["rows"]), answer)
            scenario.committed(rows, answer["instant"], answer["completed"])
            if number % 13 == 12:
                check_after_each_batch(self, scenario)
        self.nothing_new(scenario)
        check_after_each_batch(self, scenario)
        self.assertLessEqual(len(scenario.target.instants()), 3 * 9)
        check_cleans(self, scenario)
        check_archive(self, scenario)
        kept = [completed for _, completed, _ in scenario.rounds[-4:]]
        check_incremental(self, scenario, kept)
        check_hudi_package(self, scenario, kept[0])

        # Spark's own services go on from what ours left.
        foreign = [("e1", "2024-05-02", 100, 100), ("s1", "2024-05-02", 200, 100)]
        options = {
            "hoodie.clean.commits.retained": "2",
            "hoodie.keep.min.commits": "3",
            "hoodie.keep.max.commits": "4",
            "hoodie.metadata.compact.max.delta.commits": "1",
        }
        self.spark_writes(scenario, foreign, columns, options)
        self.assertLessEqual(len([i for i in scenario.target.instants() if i.action == "commit"]), 4)


class Told(unittest.TextTestResult):
    """Says what failed as soon as it did: a run that is cut off would never say it."""

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.stream.writeln(self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.stream.writeln(self.errors[-1][1])


def unpack(archive, folder):
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)


def new_request_id():
    """A version 7 UUID: milliseconds since 1970, then random bits."""
    bits = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    bits = bits & ~(0xF << 76) | 0x7 << 76
    bits = bits & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=bits))


def choose_tributary(options, spark):
    if options.stand_in:
        return StandIn(spark)
    return Tributary(os.environ["TRIBUTARY_BIN"])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stand-in", action="store_true", help="Spark plays tributary: tests the tests")
    parser.add_argument("tests", nargs="*", help="names of tests, with or without `test_`")
    options = parser.parse_args()
    binary = os.environ.get("TRIBUTARY_BIN", "")
    if not options.stand_in and not os.access(binary, os.X_OK):
        parser.error(f"TRIBUTARY_BIN={binary!r} is no executable; build it first")
    return options


def main():
    options = parse_arguments()
    names = [name if name.startswith("test_") else f"test_{name}" for name in options.tests]
    names = names or unittest.defaultTestLoader.getTestCaseNames(Interop)
    Interop.spark = start_session("tributary-interop")
    Interop.tributary = choose_tributary(options, Interop.spark)
    suite = unittest.TestSuite(Interop(name) for name in names)
    try:
        result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Told).run(suite)
    finally:
        TopicTests.stop_broker()
    Interop.spark.stop()
    failed = len(result.failures) + len(result.errors)
    passed = result.testsRun - failed - len(result.skipped)
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(0 if passed and not failed else 1)


if __name__ == "__main__":
    main()
