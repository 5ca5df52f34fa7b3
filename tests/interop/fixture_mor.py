# SPDX-License-Identifier: Apache-2.0
"""Small MERGE_ON_READ tables, one per shape of history that the reader must understand.

Each builder takes a session and a path, and leaves a table there. The data is fixed;
instants and file names differ from run to run.
"""

from pyspark.sql import functions

from fixture_tables import PARTITIONED, SIMPLE, typed_rows
from sparkhudi import HudiTable

MERGE_ON_READ = {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.compact.inline": "false",
    # Cleaning starts only where a table asks for it.
    "hoodie.clean.automatic": "false",
}

# Compacts right after the commit it is given to.
COMPACT = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
# Plans a compaction after the commit and leaves it pending.
PLAN_COMPACTION = {"hoodie.compact.schedule.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
CLUSTER = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}
LOG_COMPACT = {
    "hoodie.log.compaction.inline": "true",
    "hoodie.log.compaction.enable": "true",
    "hoodie.log.compaction.blocks.threshold": "2",
}


def _commits(spark, table, columns=SIMPLE):
    def commit(rows, operation="upsert", **options):
        table.write(spark.createDataFrame(rows, columns), operation, options=options)

    return commit


def _history(commit, pending):
    """Updates, a late row, deletes, a compaction in the middle, and one that never ran."""
    commit([(f"k{i}", f"name {i}", i * 10, 1) for i in range(1, 9)], "insert")
    commit([("k1", "name 1", 101, 3), ("k2", "name 2", 102, 3)])
    # k2 arrives with an older ordering value than the row in the log, k3 with an older one than in the base file.
    commit([("k2", "late", 0, 2), ("k3", "late", 0, 0), ("k4", "name 4", 104, 4)])
    commit([("k5", None, None, 5), ("k4", None, None, 5)], "delete")
    commit([("k1", "name 1", 301, 6), ("k9", "name 9", 90, 6)], **COMPACT)
    commit([("k6", "name 6", 106, 7), ("k5", "back again", 51, 7)])
    commit([("k1", "late", 0, 5), ("k7", "name 7", 107, 8)], **(PLAN_COMPACTION if pending else {}))
    if pending:
        commit([("k8", "name 8", 108, 9), ("k6", None, None, 9)])
        commit([("k2", None, None, 10)], "delete")


def build_compaction(spark, path, version=9, pending=True, **extra):
    """Not partitioned, metadata table on; the last two commits come after a compaction was planned."""
    table = HudiTable(spark, path, key="id", ordering="ts", extra={**MERGE_ON_READ, **extra}, version=version)
    _history(_commits(spark, table), pending)
    return table


def build_v8(spark, path):
    return build_compaction(spark, path, version=8)


def build_v6(spark, path):
    return build_compaction(spark, path, version=6, **{"hoodie.metadata.enable": "false"})


def build_typed(spark, path):
    """Two partition columns, every type in Avro log blocks, a schema that grows, a delete marker column."""
    options = {**MERGE_ON_READ, "hoodie.datasource.write.partitionpath.urlencode": "true"}
    table = HudiTable(
        spark, path, key="id", partition=["region", "kind"], ordering="ts", metadata=False, extra=options
    )
    columns = PARTITIONED + ", _hoodie_is_deleted boolean"
    marked = lambda rows, gone=(): [row + (row[0] in gone,) for row in rows]  # noqa: E731
    table.write(spark.createDataFrame(marked(typed_rows(range(9), 1)), columns), "insert")
    changed = spark.createDataFrame(marked(typed_rows([0, 1, 3, 4], 2), gone={"t03"}), columns)
    table.write(changed.withColumn("a_string", functions.concat(functions.lit("changed "), "a_string")))
    wider = columns.replace("an_int int", "an_int long") + ", added string"
    grown = marked(typed_rows([0, 2, 5], 3), gone={"t05"})
    grown = [row[:4] + (None if row[4] is None else (1 << 33) + row[4],) + row[5:] for row in grown]
    table.write(spark.createDataFrame([row + (f"new {row[0]}",) for row in grown], wider))
    return table


def build_commit_time(spark, path):
    """By region, last write wins, parquet log blocks, clustering between, old slices cleaned."""
    extra = {
        **MERGE_ON_READ,
        "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
        "hoodie.logfile.data.block.format": "parquet",
    }
    table = HudiTable(spark, path, key="id", partition=["region"], extra=extra)
    commit = _commits(spark, table, "id string, region string, score long, ts long")

    def region(name, ids, ts):
        return [(f"{name}{i}", name, i * ts, ts) for i in ids]

    commit(region("a", range(4), 1) + region("b", range(4), 1), "insert")
    commit(region("a", [1, 2], 9) + region("b", [0], 9))
    # An older ts: it counts for nothing here.
    commit(region("a", [1], 2))
    commit(region("b", [3], 3), "delete")
    commit(region("a", [2], 5) + region("b", [1], 5), **CLUSTER)
    commit(region("a", [0], 6) + region("b", [0], 6))
    commit(region("b", [2, 9], 7), "insert_overwrite")
    commit(region("b", [2], 8), **COMPACT)
    return table


def build_log_compaction(spark, path):
    """Two buckets whose logs are compacted, which stamps their rows anew, and later the buckets themselves."""
    extra = {
        **MERGE_ON_READ,
        "hoodie.index.type": "BUCKET",
        "hoodie.index.bucket.engine": "SIMPLE",
        "hoodie.bucket.index.num.buckets": "2",
        "hoodie.storage.layout.type": "BUCKET",
        "hoodie.storage.layout.partitioner.class": "org.apache.hudi.table.action.commit.SparkBucketIndexPartitioner",
    }
    table = HudiTable(spark, path, key="id", ordering="ts", metadata=True, extra=extra)
    commit = _commits(spark, table)
    commit([(f"k{i}", f"name {i}", i * 10, 1) for i in range(1, 7)])
    commit([("k1", "name 1", 101, 2), ("k2", "name 2", 102, 2), ("k3", "name 3", 103, 2)])
    commit([("k4", None, None, 3)], "delete")
    commit([("k1", "name 1", 201, 4), ("k5", "late", 0, 0)], **LOG_COMPACT)
    commit([("k2", "name 2", 202, 5), ("k7", "name 7", 70, 5)])
    commit([("k3", "name 3", 203, 6)], **COMPACT)
    commit([("k6", "name 6", 106, 7)])
    return table


def build_log_only(spark, path):
    """An index that finds rows in logs lets new groups begin with a log file; one is compacted, one is not."""
    extra = {**MERGE_ON_READ, "hoodie.index.type": "INMEMORY"}
    table = HudiTable(spark, path, key="id", partition=["region"], ordering="ts", extra=extra)
    commit = _commits(spark, table, "id string, region string, score long, ts long")
    commit([("a1", "a", 10, 1), ("a2", "a", 20, 1)])
    commit([("a1", "a", 11, 2), ("a3", "a", 30, 2)])
    commit([("a2", "a", 0, 3)], "delete", **COMPACT)
    commit([("a1", "a", 12, 4), ("b1", "b", 10, 4), ("b2", "b", 20, 4)])
    commit([("b1", "b", 0, 3), ("b2", "b", 21, 5)])
    return table


def build_cleaned(spark, path):
    """Compacted after every other commit, old slices cleaned: early windows can no longer be read."""
    extra = {**MERGE_ON_READ, "hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}
    table = HudiTable(spark, path, key="id", ordering="ts", extra=extra)
    commit = _commits(spark, table)
    commit([(f"k{i}", f"name {i}", i * 10, 1) for i in range(1, 5)], "insert")
    for ts in range(2, 8):
        compact = {**COMPACT} if ts % 2 else {}
        commit([(f"k{1 + ts % 4}", f"name at {ts}", ts, ts)], **compact)
    return table


BUILDERS = {
    "mor_v9_compaction": build_compaction,
    "mor_v9_typed": build_typed,
    "mor_v9_commit_time": build_commit_time,
    "mor_v9_log_compaction": build_log_compaction,
    "mor_v9_log_only": build_log_only,
    "mor_v9_cleaned": build_cleaned,
    "mor_v8_compaction": build_v8,
    "mor_v6_compaction": build_v6,
}
