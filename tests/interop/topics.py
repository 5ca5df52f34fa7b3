# SPDX-License-Identifier: Apache-2.0
"""Topics of a real Kafka broker as sources: Spark reads what became of their messages."""

import json
import random
import signal
import subprocess
import time

from kafkabroker import KafkaBroker
from rows import plain_spark
from sparkhudi import META_COLUMNS, HudiTable


class Clicks:
    """A pipeline that reads one topic into a table of its own."""

    def __init__(self, test, broker, topic, name, source="", operation="upsert", sql=None):
        self.test = test
        self.file = test.work / f"{name}.toml"
        self.table = HudiTable(test.spark, test.work / name)
        step = f'[[transform]]\nsql = """{sql}"""\n' if sql else ""
        self.file.write_text(
            f'name = "{name}"\n'
            f'[[source]]\nname = "clicks"\nkind = "kafka"\nbrokers = "{broker.address}"\ntopic = "{topic}"\n'
            f'format = "json"\nstart = "earliest"\n{source}\n{step}'
            f'[target]\npath = "{self.table.path}"\ntable_name = "{name}"\nrecord_key = ["id"]\n'
            f'operation = "{operation}"\n'
        )

    def command(self):
        return [self.test.tributary.binary, "run", "--pipeline", str(self.file), "--output", "json"]

    def run(self, outcome="COMMITTED"):
        """One run, which ends so."""
        done = subprocess.run(self.command(), capture_output=True, text=True, timeout=300)
        answer = json.loads(done.stdout)
        self.test.assertEqual(outcome, answer["outcome"], answer)
        return answer

    def rows(self):
        """What Spark reads, as sorted lists of values."""
        found = plain_spark(self.table.snapshot(), META_COLUMNS)
        return sorted(([row[name] for name in sorted(row)] for row in found), key=str)

    def cursors(self):
        """What each commit says, in the form that Hudi Streamer reads."""
        return [instant.extra["deltastreamer.checkpoint.key"] for instant in self.table.instants()]


def click(number, **more):
    return json.dumps({"id": number, **more})


class TopicTests:
    """Mixed into the tests that have Spark and the binary."""

    broker = None

    def topic(self, name, partitions=1, **config):
        if not hasattr(self.tributary, "binary"):
            self.skipTest("the stand-in reads no topics")
        if TopicTests.broker is None:
            TopicTests.broker = KafkaBroker().__enter__()
        TopicTests.broker.create(name, partitions, **config)
        return TopicTests.broker

    @staticmethod
    def stop_broker():
        if TopicTests.broker is not None:
            TopicTests.broker.__exit__()
            TopicTests.broker = None

    def test_topic_transactions_codecs_and_new_partitions(self):
        broker = self.topic("mixed", 2)
        clicks = Clicks(self, broker, "mixed", "mixed")
        expected = []
        for at, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
            numbers = range(at * 100, at * 100 + 50)
            broker.send("mixed", [(n % 2, None, click(n, codec=codec)) for n in numbers], codec)
            expected += [[codec, n] for n in numbers]
        broker.send("mixed", [(0, None, click(n, codec="t")) for n in (900, 901)], transaction="tx")
        expected += [["t", 900], ["t", 901]]
        lost = [(n % 2, None, click(n, codec="aborted")) for n in range(1000, 1020)]
        broker.send("mixed", lost, "lz4", transaction="tx", commit=False)
        answer = clicks.run()
        self.assertEqual(len(expected), answer["rows"])
        self.assertEqual(sorted(expected, key=str), clicks.rows())
        clicks.run("NO_NEW_DATA")
        broker.grow("mixed", 3)
        broker.send("mixed", [(2, None, click(2000, codec="new"))])
        clicks.run()
        self.assertEqual(sorted(expected + [["new", 2000]], key=str), clicks.rows())
        # A marker of a transaction takes an offset too.
        ends = [len(broker.offsets("mixed", n)) for n in range(3)]
        self.assertEqual(f"mixed,0:{ends[0] + 12},1:{ends[1] + 11},2:1", clicks.cursors()[-1])

    def test_topic_that_is_compacted_with_deletes(self):
        config = {"cleanup_policy": "compact", "segment_ms": 200, "min_cleanable_dirty_ratio": 0.01}
        broker = self.topic("compacted", 1, max_compaction_lag_ms=500, delete_retention_ms=60000, **config)
        clicks = Clicks(self, broker, "compacted", "compacted", 'kafka = {key_columns = ["id"]}')
        for turn in range(30):
            broker.send("compacted", [(0, str(n), click(n, turn=turn)) for n in range(10)])
        broker.send("compacted", [(0, "3", None), (0, "4", None)])
        time.sleep(1)
        broker.send("compacted", [(0, "99", click(99, turn=0))])
        broker.compacted("compacted", 0, 60)
        clicks.run()
        expected = [[False, n, 29] for n in range(10) if n not in (3, 4)] + [[False, 99, 0]]
        self.assertEqual(sorted(expected, key=str), clicks.rows())
        self.assertEqual("compacted,0:303", clicks.cursors()[-1])
        broker.send("compacted", [(0, "3", click(3, turn=30)), (0, "5", None)])
        answer = clicks.run()
        self.assertEqual(1, answer["deletes"])
        expected = [row for row in expected if row[1] != 5] + [[False, 3, 30]]
        self.assertEqual(sorted(expected, key=str), clicks.rows())

    def test_topic_that_lost_messages_or_was_created_again(self):
        broker = self.topic("short", 2)
        clicks = Clicks(self, broker, "short", "short")
        broker.send("short", [(n % 2, None, click(n)) for n in range(10)])
        clicks.run()
        broker.send("short", [(n % 2, None, click(n)) for n in range(10, 30)])
        broker.expire("short", 1, 9)
        refused = clicks.run("REJECTED")["error"]
        self.assertEqual("OFFSETS_OUT_OF_RANGE", refused["reason"])
        self.assertIn("partition 1: offsets 5 to 8", refused["message"])
        self.assertEqual([[n] for n in range(10)], sorted(clicks.rows()))
        text = clicks.file.read_text()
        clicks.file.write_text(text.replace('start = "earliest"', 'start = "earliest"\nkafka = {on_out_of_range = "earliest"}'))
        clicks.run()
        gone = {11, 13, 15, 17}
        self.assertEqual([[n] for n in range(30) if n not in gone], sorted(clicks.rows()))
        clicks.file.write_text(text)
        broker.delete("short")
        broker.create("short", 2)
        broker.send("short", [(n % 2, None, click(n)) for n in range(100, 160)])
        refused = clicks.run("REJECTED")["error"]
        self.assertEqual("TOPIC_RECREATED", refused["reason"])
        self.assertEqual(2, len(clicks.table.instants()))

    def test_topic_starts_at_a_time_or_at_the_end(self):
        broker = self.topic("timed", 1)
        broker.send("timed", [(0, None, click(1))])
        latest = Clicks(self, broker, "timed", "latest")
        latest.file.write_text(latest.file.read_text().replace('"earliest"', '"latest"'))
        self.assertEqual(0, latest.run()["rows"])
        time.sleep(0.1)
        since = int(time.time() * 1000)
        time.sleep(0.1)
        broker.send("timed", [(0, None, click(2))])
        latest.run()
        self.assertEqual([[2]], latest.rows())
        timed = Clicks(self, broker, "timed", "since")
        timed.file.write_text(timed.file.read_text().replace('"earliest"', f'"timestamp:{since}"'))
        timed.run()
        self.assertEqual([[2]], timed.rows())

    def test_topic_whose_runs_are_killed_is_read_exactly_once(self):
        broker = self.topic("killed", 3)
        # Rows are added, so that one that is read twice is there twice.
        clicks = Clicks(self, broker, "killed", "killed", "kafka = {max_events = 4000}", operation="insert")
        broker.send("killed", [(n % 3, None, click(n, text="x" * 50)) for n in range(20000)], "lz4")
        started = time.monotonic()
        clicks.run()
        whole = time.monotonic() - started
        # Within the time that a whole run took, and with rows to read each time: a machine of any speed kills most.
        chance = random.Random(7)
        sent, killed = 20000, 0
        for _ in range(60):
            broker.send("killed", [(n % 3, None, click(n, text="x" * 50)) for n in range(sent, sent + 1000)], "lz4")
            sent += 1000
            with subprocess.Popen(clicks.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                try:
                    process.wait(timeout=chance.uniform(0, whole))
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    killed += 1
            if killed == 8:
                break
        self.assertEqual(8, killed, "runs are killed")
        while True:
            done = subprocess.run(clicks.command(), capture_output=True, text=True, timeout=300)
            answer = json.loads(done.stdout)
            if answer["outcome"] == "NO_NEW_DATA":
                break
            self.assertEqual("COMMITTED", answer["outcome"], answer)
        frame = clicks.table.snapshot()
        self.assertEqual(sent, frame.count())
        self.assertEqual(sent, frame.select("id").distinct().count())
        self.assertEqual([], clicks.table.pending_instants())
