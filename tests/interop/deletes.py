# SPDX-License-Identifier: Apache-2.0
"""Spark deletes records of a source in every way that it has; the target follows."""

import fixture_mor
from rows import plain_spark
from sparkhudi import META_COLUMNS, HudiTable

COLUMNS = "id string, region string, score long, ts long"
# The source is only read here, and its listing is all that is wanted of its metadata table.
QUIET = {"hoodie.metadata.index.column.stats.enable": "false", "hoodie.embed.timeline.server": "false"}

PIPELINE = """
name = "followed"

[[source]]
name = "scores"
path = "source"
start = "snapshot"
deletes = "propagate"

[[transform]]
sql = "SELECT id, region, score, ts, _hoodie_is_deleted FROM <SRC:scores>"

[target]
path = "target"
table_name = "followed"
record_key = ["id"]
partition_by = ["region"]
"""


def region(name, ids, ts):
    return [(f"{name}{i}", name, i * 10 + ts, ts) for i in ids]


class Deletes:
    """Tests of the class that has this one among its bases."""

    def test_a_target_follows_the_deletes_of_a_copy_on_write_source(self):
        self.follow_deletes("followed", {})

    def test_a_target_follows_the_deletes_of_a_merge_on_read_source(self):
        self.follow_deletes("followed_logs", fixture_mor.MERGE_ON_READ)

    def follow_deletes(self, name, extra):
        self.need_tributary("the stand-in knows of no deletes")
        folder = self.work / name
        source = HudiTable(self.spark, folder / "source", key="id", partition=["region"], ordering="ts", extra=extra)
        target = HudiTable(self.spark, folder / "target", key="id", partition=["region"])
        pipeline = folder / "pipeline.toml"

        def followed(what):
            answer = self.tributary.run(pipeline)
            self.assertEqual("COMMITTED", answer["outcome"], f"{what}: {answer}")
            expected = plain_spark(source.snapshot(), META_COLUMNS)
            for metadata in (True, False):
                found = plain_spark(target.snapshot(metadata), (*META_COLUMNS, "_hoodie_is_deleted"))
                self.assertEqual(expected, found, what)
            return answer

        first = region("a", range(6), 1) + region("b", range(6), 1) + region("c", range(6), 1)
        self.commit(source, first, COLUMNS, "insert")
        pipeline.write_text(PIPELINE)
        followed("the whole table")

        table = f"source_of_{name}"
        self.spark.sql(f"CREATE TABLE {table} USING hudi LOCATION '{source.path}'")
        try:
            for key, value in QUIET.items():
                self.spark.sql(f"SET {key}={value}")
            self.spark.sql(f"DELETE FROM {table} WHERE id IN ('a1', 'b2')")
        finally:
            for key in QUIET:
                self.spark.sql(f"RESET {key}")
            self.spark.sql(f"DROP TABLE {table}")
        deleted = followed("DELETE FROM")
        self.assertEqual(2, deleted["deletes"], deleted)

        self.commit(source, [("a2", "a", 0, 9), ("c3", "c", 0, 9)], COLUMNS, "delete")
        self.commit(source, region("a", [2, 7], 10), COLUMNS)
        followed("a delete, and the record again")

        self.commit(source, region("b", [2, 3, 9], 11), COLUMNS, "insert_overwrite")
        followed("insert_overwrite")

        partitions = {"hoodie.datasource.write.partitions.to.delete": "region=c"}
        gone = self.spark.createDataFrame(region("c", [0], 12), COLUMNS)
        source.write(gone, "delete_partition", partitions)
        followed("delete_partition")

        clustering = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}
        source.write(self.spark.createDataFrame(region("a", [3], 13), COLUMNS), options=clustering)
        self.commit(source, [("a3", "a", 0, 14), ("b9", "b", 0, 14)], COLUMNS, "delete")
        followed("deletes after a clustering")
