# SPDX-License-Identifier: Apache-2.0
"""Small tables of versions 6 and 9, one per shape of history that the reader must understand.

Each builder takes a session and a path, and leaves a table there. The data is fixed;
instants and file names differ from run to run.
"""

import datetime
import functools
from decimal import Decimal
from pathlib import Path

from pyspark.sql import functions

from sparkhudi import HudiTable

SIMPLE = "id string, name string, score long, ts long"


def build_updates(spark, path, version=9):
    """Not partitioned, metadata table on: the same keys written again and again, and a delete."""
    table = HudiTable(spark, path, key="id", ordering="ts", version=version)

    def commit(rows, operation="upsert"):
        table.write(spark.createDataFrame(rows, SIMPLE), operation)

    commit([(f"k{i}", f"name {i}", i * 10, 1) for i in range(1, 9)], "insert")
    commit([("k1", "name 1", 101, 2), ("k2", "name 2", 102, 2), ("k9", "name 9", 90, 2)])
    # k2 arrives with an older ordering value than the stored row: the stored row wins.
    commit([("k1", "name 1", 201, 3), ("k2", "late", 0, 1)])
    commit([("k3", "name 3", 30, 4), ("k4", "name 4", 40, 4)], "delete")
    commit([("k1", "name 1", 301, 5), ("k3", "back again", 31, 5), ("k5", None, None, 5)])
    commit([("k10", "name 10", 100, 6)], "insert")
    return table


PARTITIONED = """
    id string, region string, kind string, a_bool boolean, an_int int, a_long long,
    a_float float, a_double double, a_decimal decimal(18,4), a_string string,
    a_binary binary, a_date date, a_timestamp timestamp, an_array array<int>,
    a_map map<string,long>, a_struct struct<x:int,y:string,inner:struct<z:double>>, ts long
"""

# Partition values that a path must encode, and one that is missing.
REGIONS = ["plain", "a/b", "x=y", "50% off", "sp ace", "c:d", "Zürich", "q?u*o\"te", None]


def _typed_row(i, region, ts):
    if i % 4 == 3:
        # Every value column null.
        return (f"t{i:02}", region, f"k{i % 2}") + (None,) * 13 + (ts,)
    moment = datetime.datetime(2024, 2, 29, 12, 30, i, 123456)
    return (
        f"t{i:02}",
        region,
        f"k{i % 2}",
        i % 2 == 0,
        i - 5,
        (1 << 40) + i,
        i + 0.1,
        i / 7,
        Decimal(i) * Decimal("1234.5678"),
        f"text {i} é ' \" ,",
        bytes([0, i, 255]),
        datetime.date(1969, 12, 28) + datetime.timedelta(days=i),
        moment,
        # No null elements: Hudi writes lists in Parquet's old form, which has none.
        [i, 0, -i] if i % 2 else [],
        {"one": 1, f"k{i}": i, "none": None},
        (i, f"s{i}", (i / 2,)) if i % 3 else (i, None, None),
        ts,
    )


def typed_rows(numbers, ts):
    return [_typed_row(i, REGIONS[i % len(REGIONS)], ts) for i in numbers]


def build_partitioned(spark, path, version=9):
    """Two partition columns, hive style and url encoded, every type, a schema that grows."""
    table = HudiTable(
        spark,
        path,
        key="id",
        partition=["region", "kind"],
        ordering="ts",
        extra={
            "hoodie.datasource.write.partitionpath.urlencode": "true",
            # Before version 9 Hudi asks whether a key of one column is encoded as older releases did.
            "hoodie.write.complex.keygen.validation.enable": "false",
        },
        version=version,
    )
    table.write(spark.createDataFrame(typed_rows(range(9), 1), PARTITIONED), "insert")

    changed = spark.createDataFrame(typed_rows([0, 1, 4, 9], 2), PARTITIONED)
    table.write(changed.withColumn("a_string", functions.concat(functions.lit("changed "), "a_string")))

    # A nullable column is added and `an_int` becomes a long; untouched files keep the old types.
    wider = PARTITIONED.replace("an_int int", "an_int long") + ", added string"
    grown = typed_rows([0, 2, 10], 3)
    grown = [row[:4] + (None if row[4] is None else (1 << 33) + row[4],) + row[5:] for row in grown]
    table.write(spark.createDataFrame([row + (f"new {row[0]}",) for row in grown], wider))
    return table


BY_REGION = "id string, region string, score long, ts long"


def region(name, ids, ts):
    return [(f"{name}{i}", name, i * ts, ts) for i in ids]


def build_replace(spark, path, version=9):
    """Insert, upsert, overwrite of one partition, clustering, one more upsert."""
    table = HudiTable(spark, path, key="id", partition=["region"], ordering="ts", version=version)

    def commit(rows, operation="upsert", **options):
        table.write(spark.createDataFrame(rows, BY_REGION), operation, options=options)

    commit(region("a", range(4), 1) + region("b", range(4), 1) + region("c", range(4), 1), "insert")
    commit(region("a", [1], 2) + region("b", [2, 9], 2))
    commit(region("b", [2, 7], 3), "insert_overwrite")
    # Clusters after its own commit: every file group of every partition is replaced.
    clustering = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}
    commit(region("c", [0, 8], 4), **clustering)
    commit(region("a", [3], 5) + region("b", [7, 5], 5))
    return table


def build_pending(spark, path):
    """Three commits, the last of which never completed: its files are there, its end is not."""
    table = HudiTable(spark, path, key="id", ordering="ts")
    for ts, ids in enumerate([range(6), [1, 6], [2, 7]], start=1):
        rows = [(f"k{i}", f"name {i}", i * ts, ts) for i in ids]
        table.write(spark.createDataFrame(rows, SIMPLE))
    last = table.instants()[-1]
    Path(path, ".hoodie", "timeline", f"{last.requested}_{last.completed}.commit").unlink()
    return table


def build_archived(spark, path, version=9):
    """Fourteen commits of which most are in the timeline's history, and old files cleaned."""
    table = HudiTable(
        spark,
        path,
        key="id",
        ordering="ts",
        # With a metadata table, archiving would wait for that table's compaction.
        metadata=False,
        extra={
            "hoodie.keep.min.commits": "4",
            "hoodie.keep.max.commits": "5",
            "hoodie.clean.commits.retained": "2",
            # History files are merged early, so that two levels of them exist.
            "hoodie.timeline.compaction.batch.size": "3",
        },
        version=version,
    )
    for ts in range(1, 15):
        rows = [(f"k{i}", f"name {i}", i * ts, ts) for i in {ts % 3, ts % 5, 5 + ts}]
        table.write(spark.createDataFrame(rows, SIMPLE))
    return table


def build_hole(spark, path):
    """Five commits by region. A clustering is planned after the second and never runs, which
    holds nobody up; the fourth never completed, and readers by request stop before it."""
    table = HudiTable(spark, path, key="id", partition=["region"], ordering="ts", version=6)

    def commit(name, ts, **options):
        table.write(spark.createDataFrame(region(name, range(3), ts), BY_REGION), options=options)

    commit("a", 1)
    commit("b", 2, **{"hoodie.clustering.schedule.inline": "true", "hoodie.clustering.async.max.commits": "1"})
    for ts, name in enumerate(["c", "d", "e"], start=3):
        commit(name, ts)
    hole = [i for i in table.instants() if i.action == "commit"][3]
    Path(path, ".hoodie", f"{hole.requested}.commit").unlink()
    return table


def before_the_hole(table):
    """Requested time of the last commit that a reader by request may deliver."""
    hole = [requested for requested, action, _ in table.pending_instants() if action == "commit"][0]
    return max(i.requested for i in table.instants() if i.operation and i.requested < hole)


def build_upgraded(spark, path):
    """Written as version 6, archived and all, then brought to version 9 by a later write."""
    table = build_archived(spark, path, version=6)
    table.upgrade(9)
    for ts in range(15, 18):
        rows = [(f"k{i}", f"name {i}", i * ts, ts) for i in {ts % 3, ts % 5, 5 + ts}]
        table.write(spark.createDataFrame(rows, SIMPLE))
    return table


def build_upgraded_metadata(spark, path):
    """Written as version 6 with a metadata table, then brought to version 9."""
    table = build_updates(spark, path, version=6)
    table.upgrade(9)
    for ts in (7, 8):
        table.write(spark.createDataFrame([("k1", "name 1", 100 * ts, ts), (f"n{ts}", "new", ts, ts)], SIMPLE))
    return table


BUILDERS = {
    "cow_v6_updates": functools.partial(build_updates, version=6),
    "cow_v6_partitioned": functools.partial(build_partitioned, version=6),
    "cow_v6_replace": functools.partial(build_replace, version=6),
    "cow_v6_archived": functools.partial(build_archived, version=6),
    "cow_v6_pending": build_hole,
    "cow_v6_upgraded": build_upgraded,
    "cow_v6_upgraded_metadata": build_upgraded_metadata,
    "cow_v9_updates": build_updates,
    "cow_v9_partitioned": build_partitioned,
    "cow_v9_replace": build_replace,
    "cow_v9_pending": build_pending,
    "cow_v9_archived": build_archived,
}

# Tables whose pending instant holds readers up, and up to where they may read.
BLOCKED = {"cow_v6_pending": before_the_hole}
