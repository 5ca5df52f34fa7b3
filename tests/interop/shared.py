# SPDX-License-Identifier: Apache-2.0
"""Spark beside us: one target that both write, with `target.writers = "shared"`.

Under optimistic concurrency control with `FileSystemBasedLockProvider` both go on at the
same time; a Spark writer with the defaults of a single writer rolls our batches back.
"""

import json
import os
import signal
import threading
import time
from pathlib import Path

from checks import check_metadata_table
from rows import in_order, plain_spark
from sparkhudi import META_COLUMNS

# What a Spark writer needs beside us on a local disk.
BESIDE_US = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.wait_time_ms_between_retry": "100",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "200",
    "hoodie.write.lock.client.num_retries": "300",
}

COLUMNS = "id string, day string, value long, ts long"
PASS_THROUGH = "SELECT id, day, value, ts FROM <SRC:events>"
LOCK = "target/.hoodie/lock"

# Commits of each side while both write.
ROUNDS = int(os.environ.get("INTEROP_SHARED_ROUNDS", "6"))
# Longest wait for something that must happen, in seconds.
PATIENCE = 60


def wait_for(what, found):
    """Asks `found` until it answers something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        answer = found()
        if answer:
            return answer
        time.sleep(0.002)
    raise AssertionError(f"no {what} in {PATIENCE} s")


class SharedWriters:
    """Tests of one target with several writers; part of the one test class."""

    def shared_scenario(self, name, sql=PASS_THROUGH, **target):
        return self.scenario(
            name, {"events": self.source()}, sql,
            key="id", partition=["day"], ordering="ts", writers="shared", **target,
        )  # fmt: skip

    def foreign(self, scenario, rows, options=None, operation="upsert"):
        """A commit of Spark's into the target, which the expectation takes in."""
        frame = self.spark.createDataFrame(rows, COLUMNS)
        scenario.target.write(frame, operation, {**BESIDE_US, **(options or {})})
        theirs = scenario.target.last_write()
        scenario.committed(plain_spark(frame), theirs.requested, theirs.completed)
        self.assertFalse((scenario.folder / LOCK).exists(), "Spark gave its lock back")

    def attempt(self, scenario):
        """One run of the binary, however it ends: its answer."""
        with self.tributary.start(scenario.pipeline_file) as process:
            stdout, stderr = process.communicate(timeout=300)
        self.assertTrue(stdout.strip(), stderr)
        return json.loads(stdout)

    # -- one after the other ------------------------------------------------------------

    def test_spark_writes_and_serves_our_table_and_we_go_on(self):
        scenario = self.shared_scenario("continued")
        events = scenario.sources["events"]
        self.commit(events, [(f"e{i}", "2024-05-01", i, 1) for i in range(20)], COLUMNS)
        self.batch(scenario)
        services = {
            "none": {},
            "clustering": {
                "hoodie.clustering.inline": "true",
                "hoodie.clustering.inline.max.commits": "1",
                "hoodie.clustering.plan.strategy.small.file.limit": "100000000",
            },
            "clean": {"hoodie.clean.commits.retained": "1"},
            "archive": {
                "hoodie.clean.commits.retained": "1",
                "hoodie.keep.min.commits": "2",
                "hoodie.keep.max.commits": "3",
                "hoodie.metadata.compact.max.delta.commits": "1",
            },
        }
        for number, (service, options) in enumerate(services.items(), start=2):
            theirs = [("e1", "2024-05-01", number * 100, number), (f"s{number}", "2024-05-02", number, number)]
            self.foreign(scenario, theirs, options)
            ours = [("e2", "2024-05-01", number * 10, number), (f"o{number}", "2024-05-02", number, number)]
            self.commit(events, ours, COLUMNS)
            self.batch(scenario)
            done = {i.operation for i in scenario.target.instants()}
            if service == "clustering":
                self.assertIn("CLUSTER", done)
        self.assertGreater(len(scenario.target.archived_instants()), 0)

    def test_spark_compacts_our_merge_on_read_table_and_we_go_on(self):
        services = {"compact_delta_commits": 0}
        scenario = self.shared_scenario("compacted", table_type="merge_on_read", services=services)
        events = scenario.sources["events"]
        self.commit(events, [(f"e{i}", "2024-05-01", i, 1) for i in range(20)], COLUMNS)
        self.batch(scenario)
        for number in range(2, 5):
            self.commit(events, [("e2", "2024-05-01", number * 10, number)], COLUMNS)
            self.batch(scenario)
            options = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "2"}
            self.foreign(scenario, [("e1", "2024-05-01", number * 100, number)], options)
        compactions = [i for i in scenario.target.instants() if i.operation == "COMPACT"]
        self.assertGreater(len(compactions), 0)
        self.commit(events, [("e2", "2024-05-01", 999, 9)], COLUMNS)
        self.batch(scenario)

    # -- at the same time ---------------------------------------------------------------

    def test_spark_and_we_write_one_table_at_the_same_time(self):
        scenario = self.shared_scenario("together")
        events = scenario.sources["events"]
        self.commit(events, [(f"o{i}", "2024-05-01", 0, 0) for i in range(5)], COLUMNS)
        self.batch(scenario)

        written, met, failed = [], [], []

        def spark_writes():
            try:
                for number in range(1, ROUNDS + 1):
                    rows = [
                        ("s0", "2024-05-01", number, number),
                        (f"s{number}", "2024-05-01", number, number),
                        (f"t{number}", "2024-05-03", number, number),
                    ]
                    self.spark_until_committed(scenario, rows, met)
                    written.extend(rows)
            except Exception as error:  # pylint: disable=broad-except
                failed.append(error)

        spark = threading.Thread(target=spark_writes)
        spark.start()
        ours, conflicts = [], []
        for number in range(1, ROUNDS + 1):
            rows = [("o0", "2024-05-01", number, number), (f"o{number + 10}", "2024-05-02", number, number)]
            self.commit(events, rows, COLUMNS)
            ours.extend(rows)
            while True:
                answer = self.attempt(scenario)
                if answer["outcome"] == "COMMITTED":
                    break
                self.assertEqual("CONFLICT", answer["outcome"], answer)
                self.assertEqual("WRITER_CONFLICT", answer["error"]["reason"], answer)
                conflicts.append(answer["error"]["message"])
        spark.join(timeout=600)
        self.assertEqual([], failed)
        print(f"together: {ROUNDS} commits each, {len(conflicts)} conflicts of ours, {len(met)} of Spark's")
        for message in conflicts:
            self.assertRegex(message, r"conflict on target .* [A-Z_]+ \d{17} of another writer ")

        expected = {f"o{i}": ("2024-05-01", 0, 0) for i in range(5)}
        for key, day, value, ts in ours + written:
            expected[key] = (day, value, ts)
        rows = [{"id": k, "day": day, "value": value, "ts": ts} for k, (day, value, ts) in expected.items()]
        for metadata in (True, False):
            found = plain_spark(scenario.target.snapshot(metadata), META_COLUMNS)
            self.assertEqual(in_order(rows), found, f"metadata={metadata}")
        check_metadata_table(self, scenario.target)
        key = f"tributary.checkpoint.{scenario.name}"
        commits = [i for i in scenario.target.archived_instants() + scenario.target.instants() if key in i.extra]
        self.assertEqual(ROUNDS + 1, len(commits), "one commit for each window of ours")
        self.assertEqual([], scenario.target.pending_instants())

    def spark_until_committed(self, scenario, rows, met):
        """Spark repeats a write that met one of ours, as its users must."""
        frame = self.spark.createDataFrame(rows, COLUMNS)
        while True:
            try:
                scenario.target.write(frame, options=BESIDE_US)
                return
            except Exception as error:  # pylint: disable=broad-except
                if "HoodieWriteConflictException" not in str(error):
                    raise
                met.append(str(error))

    def start_and_stop(self, scenario):
        """Starts a batch and stops its process while it stages rows: it holds no lock that
        Spark knows. Answers the process and the batch's instant."""
        timeline = Path(scenario.target.path, ".hoodie", "timeline")
        before = {file.name for file in timeline.glob("*.inflight")}
        process = self.tributary.start(scenario.pipeline_file)
        self.addCleanup(process.kill)

        def opened():
            found = [file.name for file in timeline.glob("*.inflight") if file.name not in before]
            return found if not (scenario.folder / LOCK).exists() else None

        name = wait_for("open instant", opened)[0]
        process.send_signal(signal.SIGSTOP)
        instant = name.split(".")[0]
        self.assertEqual([], list(timeline.glob(f"{instant}_*")), "the batch was not over yet")
        self.assertFalse((scenario.folder / LOCK).exists())
        return process, instant

    def answer_of(self, process):
        process.send_signal(signal.SIGCONT)
        stdout, stderr = process.communicate(timeout=300)
        self.assertTrue(stdout.strip(), stderr)
        return json.loads(stdout)

    def many(self, scenario, count):
        """Rows enough for a batch to be stopped in their midst."""
        events = scenario.sources["events"]
        frame = self.spark.range(count).selectExpr(
            "concat('o', id) AS id", "'2024-05-01' AS day", "id AS value", "CAST(1 AS long) AS ts"
        )
        events.write(frame)

    def test_spark_commits_and_compacts_the_metadata_table_while_a_batch_is_open(self):
        scenario = self.shared_scenario("long")
        events = scenario.sources["events"]
        self.commit(events, [("o0", "2024-05-01", 0, 0)], COLUMNS)
        self.batch(scenario)
        self.many(scenario, 60_000)
        rows = scenario.batch_expected()
        process, instant = self.start_and_stop(scenario)
        options = {"hoodie.metadata.compact.max.delta.commits": "2"}
        for number in range(1, 7):
            self.foreign(scenario, [(f"s{number}", "2024-05-03", number, number)], options)
        answer = self.answer_of(process)
        self.assertEqual(("COMMITTED", instant), (answer["outcome"], answer["instant"]), answer)
        scenario.committed(rows, answer["instant"], answer["completed"])
        for metadata in (True, False):
            found = plain_spark(scenario.target.snapshot(metadata), META_COLUMNS)
            self.assertEqual(scenario.snapshot_expected(), found, f"metadata={metadata}")
        check_metadata_table(self, scenario.target)
        self.nothing_new(scenario)

    def test_a_spark_writer_that_knows_of_nobody_rolls_our_batch_back(self):
        scenario = self.shared_scenario("eager")
        events = scenario.sources["events"]
        self.commit(events, [("o0", "2024-05-01", 0, 0)], COLUMNS)
        self.batch(scenario)
        self.many(scenario, 60_000)
        process, instant = self.start_and_stop(scenario)
        # The defaults of a single writer: no lock, and every pending write is rolled back.
        frame = self.spark.createDataFrame([("s1", "2024-05-03", 1, 1)], COLUMNS)
        scenario.target.write(frame)
        theirs = scenario.target.last_write()
        scenario.committed(plain_spark(frame), theirs.requested, theirs.completed)
        answer = self.answer_of(process)
        self.assertEqual("CONFLICT", answer["outcome"], answer)
        self.assertIn("rolled back by another writer", answer["error"]["message"])
        self.assertIn("LAZY", answer["error"]["message"])
        left = [str(file) for file in Path(scenario.target.path).rglob(f"*_{instant}*.parquet")]
        self.assertEqual([], left, "files of the batch that was rolled back")
        self.batch(scenario)

    # -- other tables -------------------------------------------------------------------

    def test_a_target_of_version_eight_stays_one(self):
        scenario = self.shared_scenario("eight")
        text = scenario.pipeline_file.read_text()
        self.assertIn("table_version = 9", text)
        scenario.pipeline_file.write_text(text.replace("table_version = 9", "table_version = 8"))
        eight = {"hoodie.write.table.version": "8", "hoodie.datasource.write.precombine.field": "ts"}
        events = scenario.sources["events"]
        self.commit(events, [(f"e{i}", "2024-05-01", i, 1) for i in range(20)], COLUMNS)
        self.batch(scenario)
        for number in range(2, 4):
            theirs = [("e1", "2024-05-01", number * 100, number), (f"s{number}", "2024-05-02", number, number)]
            self.foreign(scenario, theirs, eight)
            ours = [("e1", "2024-05-01", 1, 1), ("e2", "2024-05-01", number * 10, number)]
            self.commit(events, ours, COLUMNS, "insert")
            self.batch(scenario)
        self.assertEqual("8", scenario.target.properties()["hoodie.table.version"])

    def test_a_merge_on_read_table_that_spark_created_is_a_target_once_its_indexes_are_dropped(self):
        scenario = self.shared_scenario("stock", table_type="merge_on_read")
        theirs = [(f"e{i}", "2024-05-01", i, 1) for i in range(20)]
        index = "hoodie.metadata.index.column.stats.enable"
        logged = {"hoodie.datasource.write.table.type": "MERGE_ON_READ"}
        self.foreign(scenario, theirs, {**logged, index: "true"})
        self.assertIn("column_stats", scenario.target.properties()["hoodie.table.metadata.partitions"])
        events = scenario.sources["events"]
        self.commit(events, [("e2", "2024-05-01", 20, 2), ("o1", "2024-05-02", 1, 2)], COLUMNS)
        refused = self.attempt(scenario)
        self.assertEqual("REJECTED", refused["outcome"], refused)
        self.assertIn("column_stats", refused["error"]["message"])
        self.assertIn(f"{index}=false", refused["error"]["message"])
        # What the message says to do.
        self.foreign(scenario, [("e1", "2024-05-01", 100, 2)], {**logged, index: "false"})
        self.assertEqual("files", scenario.target.properties()["hoodie.table.metadata.partitions"])
        self.batch(scenario)
