# SPDX-License-Identifier: Apache-2.0
"""Merge operators: what Tributary folded is what Spark computes from all events, and what Spark and
the `hudi` package read."""

import json

from hudi import HudiTableBuilder
from rows import plain_arrow, plain_spark
from sparkhudi import META_COLUMNS, HudiTable

PIPELINE = """
name = "folded"

[[source]]
name = "events"
kind = "json"
path = "events"
start = "earliest"
files = { order = "name" }

[target]
path = "target"
table_name = "folded"
record_key = ["id"]
partition_by = ["day"]
ordering = ["ts"]

[target.merge]
default = "last_non_null"
columns = { clicks = "sum", best = "max", first = "first_non_null", tags = "concat(', ')" }
"""

# The same, from all events at once.
ORACLE = """
    SELECT id, day, max(ts) AS ts, max_by(email, ts) FILTER (WHERE email IS NOT NULL) AS email,
           sum(clicks) AS clicks, max(best) AS best,
           min_by(first, ts) FILTER (WHERE first IS NOT NULL) AS first,
           nullif(concat_ws(', ', array_sort(collect_list(struct(ts, tags))
               FILTER (WHERE tags IS NOT NULL)).tags), '') AS tags
    FROM events GROUP BY id, day
"""

SCHEMA = "id string, day string, ts long, email string, clicks long, best double, first string, tags string"


def events(batch):
    """Sparse events of one batch: most lack some of the fields, and keys meet in it and across batches."""
    for number in range(12):
        key = (batch * 5 + number * number) % 9
        event = {"id": f"k{key}", "day": f"2024-05-0{key % 3 + 1}", "ts": batch * 100 + number}
        if number % 3 == 0:
            event |= {"email": f"k{key}@{batch}", "first": f"f{batch}.{number}"}
        if number % 2 == 0 or batch == 0:
            event |= {"clicks": number, "best": number / 4 - batch}
        if number % 4 < 2:
            event["tags"] = f"t{batch}.{number}"
        yield event


class Operators:
    """Tests for a case that has a Spark session and the binary."""

    def test_folded_rows_are_what_spark_computes_from_all_events(self):
        if not hasattr(self.tributary, "binary"):
            self.skipTest("the stand-in folds nothing")
        (self.work / "events").mkdir()
        file = self.work / "pipeline.toml"
        file.write_text(PIPELINE)
        target = HudiTable(self.spark, self.work / "target", key="id", partition=["day"], ordering="ts")
        told = []
        for batch in range(4):
            lines = [json.dumps(event) for event in events(batch)]
            (self.work / "events" / f"{batch}.json").write_text("\n".join(lines))
            told += lines
            answer = self.tributary.run(file)
            self.assertEqual("COMMITTED", answer["outcome"], answer)
            everything = self.spark.read.schema(SCHEMA).json(self.spark.sparkContext.parallelize(told))
            everything.createOrReplaceTempView("events")
            expected = plain_spark(self.spark.sql(ORACLE))
            for metadata in (True, False):
                frame = target.snapshot(metadata)
                self.assertEqual(expected, plain_spark(frame, META_COLUMNS), f"batch {batch}, metadata={metadata}")
            table = HudiTableBuilder.from_base_uri(target.path).build()
            self.assertEqual(expected, plain_arrow(table.read(), target.snapshot().schema, META_COLUMNS))
        kept = json.loads(target.last_write().extra["tributary.checkpoint.folded"])["operators"]
        self.assertEqual("sum", kept["clicks"])
