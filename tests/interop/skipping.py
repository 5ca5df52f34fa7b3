# SPDX-License-Identifier: Apache-2.0
"""A target whose metadata table keeps column and partition statistics, as Spark creates one by default.

Spark skips files by them, so a record that is missing is slow and one that is wrong loses rows.
"""

import json
from pathlib import Path

from rows import plain_spark
from shared import BESIDE_US
from sparkhudi import META_COLUMNS

STATISTICS = {
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.partition.stats.enable": "true",
    "hoodie.metadata.index.column.stats.column.list": "id,day,value,ts,ratio,amount,at,even,small,born,part",
}

EVENTS = "id string, day string, value long, ts long"
QUERY = (
    "SELECT id, day, value, ts, value / 4.0E0 AS ratio, CAST(value AS DECIMAL(12,2)) AS amount, "
    "to_timestamp_micros(value * 1000000) AS at, value % 2 = 0 AS even, CAST(value AS INT) AS small, "
    "CAST(CAST(value AS INT) AS DATE) AS born, CAST(value AS FLOAT) AS part FROM <SRC:events>"
)

# Each finds rows of some files only, at a bound of one, or none.
PREDICATES = [
    "value = 500",
    "value > 1100",
    "value <= 1",
    "value BETWEEN 399 AND 401",
    "id = 'e3'",
    "id > 'o5'",
    "day = '2024-05-02'",
    "ratio >= 300.25",
    "ratio < 0.5",
    "amount = 500.00",
    "at >= timestamp '1970-01-01 00:16:40'",
    "small = 400",
    "born > date '1972-01-01'",
    "part <= 3.5",
    "NOT even",
    "value IS NULL",
    "value IS NOT NULL AND value < 0",
    "ratio > 1000000",
    "day = '2024-05-01' AND value > 600",
]


class Skipping:
    """Part of the one test class."""

    def test_a_target_with_column_statistics_is_written_and_spark_skips_rightly(self):
        self.statistics_of("statistics", {}, 9, last=11)

    def test_a_version_8_target_with_column_statistics_is_written_and_spark_skips_rightly(self):
        self.statistics_of("statistics_v8", {"hoodie.write.table.version": "8"}, 8, last=6)

    def statistics_of(self, name, version_options, version, last):
        services = {"compact_metadata_commits": 3, "clean_commits": 2}
        scenario = self.scenario(
            name, {"events": self.source()}, QUERY,
            key="id", partition=["day"], ordering="ts", writers="shared", services=services,
        )  # fmt: skip
        if version == 8:
            text = scenario.pipeline_file.read_text()
            scenario.pipeline_file.write_text(text.replace("table_version = 9", "table_version = 8"))
            scenario.target.version = 8
        options = {**STATISTICS, **version_options}
        self.foreign_with_statistics(scenario, [(f"s{n}", f"2024-05-0{1 + n % 3}", n, 1) for n in range(9)], options)
        partitions = scenario.target.properties()["hoodie.table.metadata.partitions"].split(",")
        self.assertLessEqual({"column_stats", "partition_stats"}, set(partitions))
        events = scenario.sources["events"]
        self.commit(events, [(f"e{n}", "2024-05-01", n, 1) for n in range(5)], EVENTS)
        for number in range(2, last + 1):
            rows = [("e3", "2024-05-01", number * 100, number), (f"o{number}", f"2024-05-0{number}"[:10], number * 100, 1)]
            if number == 6:
                rows.append(("n6", "2024-05-02", None, 1))
            self.commit(events, rows, EVENTS)
            self.run_statistics(scenario)
            if number % 4 == 0:
                theirs = [("s1", "2024-05-02", number * 10, number), (f"t{number}", "2024-05-02", number * 7, 1)]
                self.foreign_with_statistics(scenario, theirs, options)
            if number == 5:
                # Before anything of these groups was compacted.
                self.check_skipping(scenario, PREDICATES[::4])
        self.check_skipping(scenario, PREDICATES)
        self.check_statistics(scenario)
        self.assertGreater(self.metadata_compactions(scenario), 0, "the metadata table was compacted by us")

    def foreign_with_statistics(self, scenario, rows, options):
        frame = self.spark.createDataFrame(rows, EVENTS).selectExpr(
            "*",
            "CAST(value AS DOUBLE) / 4 AS ratio",
            "CAST(value AS DECIMAL(12,2)) AS amount",
            "timestamp_seconds(value) AS at",
            "value % 2 = 0 AS even",
            "CAST(value AS INT) AS small",
            "date_from_unix_date(CAST(value AS INT)) AS born",
            "CAST(value AS FLOAT) AS part",
        )
        scenario.target.write(frame, "upsert", {**BESIDE_US, **options})

    def run_statistics(self, scenario):
        answer = self.tributary.run(scenario.pipeline_file)
        self.assertEqual("COMMITTED", answer["outcome"], answer)

    def check_skipping(self, scenario, predicates):
        plain = scenario.target.snapshot(metadata=False).cache()
        fewest = None
        for predicate in predicates:
            rows, files = self.skipped(scenario, predicate)
            self.assertEqual(plain_spark(plain.filter(predicate), META_COLUMNS), rows, predicate)
            fewest = files if fewest is None else min(fewest, files)
        plain.unpersist()
        self.assertLess(fewest, 3, "files are skipped")

    def skipped(self, scenario, predicate):
        """Rows and the number of files that were read for them."""
        reader = self.spark.read.format("hudi").option("hoodie.metadata.enable", "true")
        frame = reader.option("hoodie.enable.data.skipping", "true").load(scenario.target.path).filter(predicate)
        rows = plain_spark(frame, META_COLUMNS)
        plan = frame._jdf.queryExecution().executedPlan()
        leaf = plan.collectLeaves().head()
        metric = leaf.metrics().get("numFiles")
        return rows, metric.get().value() if metric.isDefined() else 0

    def check_statistics(self, scenario):
        """A live record for each live file and indexed column, and none for a file that is gone."""
        base = Path(scenario.folder, "target")
        definitions = json.loads((base / ".hoodie/.index_defs/index.json").read_text())
        columns = definitions["indexDefinitions"]["column_stats"]["sourceFields"]
        metadata = self.spark.read.format("hudi").load(f"{base}/.hoodie/metadata")
        live = metadata.filter("type = 3 AND NOT ColumnStatsMetadata.isDeleted")
        found = {(r[0], r[1]) for r in live.selectExpr("ColumnStatsMetadata.fileName", "ColumnStatsMetadata.columnName").collect()}
        files = {f.name for f in base.glob("*/*.parquet")}
        self.assertEqual({(f, c) for f in files for c in columns}, found)

    def metadata_compactions(self, scenario):
        timeline = Path(scenario.folder, "target/.hoodie/metadata/.hoodie/timeline")
        return len(list(timeline.glob("*.commit")))
