# SPDX-License-Identifier: Apache-2.0
"""What must hold of a target after a batch, as other readers see it."""

import zlib
from pathlib import Path

from hudi import HudiQueryType, HudiReadOptions, HudiTableBuilder
from rows import plain_arrow, plain_spark
from sparkhudi import BEGINNING, META_COLUMNS


def check_after_each_batch(test, scenario):
    """The cheap checks: snapshot with and without metadata table, files, timeline."""
    target = scenario.target
    expected = scenario.snapshot_expected()
    for metadata in (True, False):
        frame = target.snapshot(metadata)
        test.assertEqual(expected, plain_spark(frame, META_COLUMNS), f"snapshot, metadata={metadata}")
    test.assertEqual([], target.pending_instants(), "pending instants")
    check_metadata_table(test, target)
    check_cursors(test, scenario)


def check_in_depth(test, scenario):
    """Everything else, after the last batch."""
    check_schema(test, scenario)
    check_properties(test, scenario)
    check_meta_columns(test, scenario)
    check_incremental(test, scenario)
    check_hudi_package(test, scenario)
    check_show_commits(test, scenario)


def check_metadata_table(test, target):
    """The metadata table lists exactly the committed files, with their sizes."""
    test.assertIn("files", target.properties().get("hoodie.table.metadata.partitions", "").split(","))
    on_disk, listed = target.files_on_disk(), target.files_by_metadata_table()
    test.assertEqual(on_disk, listed, "metadata table against the file system")


def check_cursors(test, scenario):
    """Hudi's own classes find the cursors in the newest commit."""
    extra = scenario.target.last_write().extra
    test.assertIn("schema", extra)
    structured = extra.get(f"tributary.checkpoint.{scenario.name}")
    test.assertIsNotNone(structured, f"no structured cursors among {sorted(extra)}")
    for name, completed in scenario.cursors.items():
        test.assertIn(name, structured)
        test.assertIn(completed, structured, f"cursor of {name}")
    if scenario.cursors:
        check_flat_cursors(test, scenario.cursors, extra)


def check_flat_cursors(test, cursors, extra):
    if len(cursors) > 1:
        flat = ",".join(f"{name}={completed}" for name, completed in sorted(cursors.items()))
        test.assertEqual(flat, extra.get("deltastreamer.checkpoint.key"))
        return
    # A single source is written as Hudi's own streamer writes it: a bare value, the
    # completion time, under the key of its second checkpoint format.
    found = extra.get("streamer.checkpoint.key.v2", extra.get("deltastreamer.checkpoint.key"))
    test.assertEqual(next(iter(cursors.values())), found)


def check_schema(test, scenario):
    """Column names and types are those of the query."""
    got = [f for f in scenario.target.snapshot().schema if f.name not in META_COLUMNS]
    # Nullability inside nested types is not compared: Spark reports all as nullable.
    test.assertEqual(
        [(f.name, f.dataType.simpleString()) for f in scenario.schema],
        [(f.name, f.dataType.simpleString()) for f in got],
    )


def check_properties(test, scenario):
    properties = scenario.target.properties()
    test.assertEqual("9", properties["hoodie.table.version"])
    test.assertEqual("2", properties["hoodie.timeline.layout.version"])
    test.assertEqual(scenario.table_type.upper(), properties["hoodie.table.type"])
    test.assertEqual(scenario.key, properties["hoodie.table.recordkey.fields"])
    test.assertEqual(",".join(scenario.partition), properties.get("hoodie.table.partition.fields", ""))
    identity = f"{properties.get('hoodie.database.name', '')}.{properties['hoodie.table.name']}"
    test.assertEqual(str(zlib.crc32(identity.encode())), properties["hoodie.table.checksum"])


def check_meta_columns(test, scenario):
    """Every row knows its key, partition, writing instant and file."""
    written_by = scenario.instants_expected()
    seen_sequence_numbers = set()
    for row in scenario.target.snapshot(metadata=False).collect():
        key = row[scenario.key]
        test.assertEqual(str(key), row["_hoodie_record_key"])
        test.assertEqual(written_by[key], row["_hoodie_commit_time"], f"instant of {key}")
        test.assertEqual(expected_partition(scenario, row), row["_hoodie_partition_path"])
        name, folder = row["_hoodie_file_name"], Path(scenario.target.path, row["_hoodie_partition_path"])
        # A row of a log says its file group instead.
        found = folder.glob(f".{name}_*.log.*") if not name.endswith(".parquet") else folder.glob(name)
        test.assertTrue(any(found), f"{folder}/{name} does not exist")
        seen_sequence_numbers.add(row["_hoodie_commit_seqno"])
    test.assertEqual(len(written_by), len(seen_sequence_numbers), "sequence numbers are unique")


def expected_partition(scenario, row):
    """`column=value` folders, encoded the way Hudi encodes them if the table says so."""
    properties = scenario.target.properties()
    encode = properties.get("hoodie.datasource.write.partitionpath.urlencode") == "true"
    utils = scenario.spark._jvm.org.apache.hudi.common.util.PartitionPathEncodeUtils
    folders = []
    for column in scenario.partition:
        value = "__HIVE_DEFAULT_PARTITION__" if row[column] is None else str(row[column])
        folders.append(f"{column}={utils.escapePathName(value) if encode else value}")
    return "/".join(folders)


def check_incremental(test, scenario, begins=None):
    """From the beginning through both listings, and from each completion time on through one or the other."""
    begins = begins or [BEGINNING, *(completed for _, completed, _ in scenario.rounds)]
    for number, begin in enumerate(begins):
        for metadata in (True, False) if number == 0 else (number % 2 == 0,):
            frame = scenario.target.incremental(begin, metadata=metadata)
            test.assertEqual(
                scenario.incremental_by_spark(begin),
                plain_spark(frame, META_COLUMNS),
                f"incremental from {begin}, metadata={metadata}",
            )


def check_hudi_package(test, scenario, begin=None):
    """The `hudi` Python package reads the same rows."""
    schema = scenario.target.snapshot().schema
    table = HudiTableBuilder.from_base_uri(scenario.target.path).build()
    test.assertEqual(
        scenario.snapshot_expected(),
        plain_arrow(table.read(), schema, META_COLUMNS),
        "snapshot read by the hudi package",
    )
    begin = begin or scenario.rounds[0][1]
    options = HudiReadOptions().with_query_type(HudiQueryType.Incremental).with_start_timestamp(begin)
    test.assertEqual(
        scenario.incremental_expected(begin),
        plain_arrow(table.read(options), schema, META_COLUMNS),
        f"incremental from {begin} read by the hudi package",
    )


def check_show_commits(test, scenario):
    """Spark's procedure lists our commits; it needs the table in the catalog."""
    spark, table = scenario.spark, f"interop_{scenario.name}"
    spark.sql(f"CREATE TABLE {table} USING hudi LOCATION '{scenario.target.path}'")
    try:
        shown = spark.sql(f"CALL show_commits(table => '{table}', limit => 100)").collect()
        listed = {row["commit_time"]: row for row in shown}
        for instant, _, keys in scenario.rounds:
            test.assertIn(instant, listed)
            test.assertEqual(0, listed[instant]["total_errors"])
            test.assertGreaterEqual(listed[instant]["total_records_written"], len(keys))
        by_sql = plain_spark(spark.sql(f"SELECT * FROM {table}"), META_COLUMNS)
        test.assertEqual(scenario.snapshot_expected(), by_sql, "snapshot by SQL")
    finally:
        # The table is external: only the catalog forgets it.
        spark.sql(f"DROP TABLE {table}")


def check_read_optimized(test, scenario, expected):
    """The rows of the base files alone, by key and the instant that wrote them."""
    for metadata in (True, False):
        frame = scenario.target.read_optimized(metadata)
        found = {row[scenario.key]: row["_hoodie_commit_time"] for row in frame.collect()}
        test.assertEqual(expected, found, f"read optimized, metadata={metadata}")


def check_cleans(test, scenario):
    """Hudi's own classes read our cleans: plan and outcome name the same files, which are gone."""
    target, spark = scenario.target, scenario.spark
    client = target.meta_client()
    utils = spark._jvm.org.apache.hudi.common.util.CleanerUtils
    cleans = client.getActiveTimeline().getCleanerTimeline().filterCompletedInstants().getInstants()
    test.assertGreater(len(cleans), 0, "cleans on the active timeline")
    for instant in cleans:
        metadata = utils.getCleanerMetadata(client, instant)
        test.assertEqual(instant.requestedTime(), metadata.getStartCleanTime())
        requested = client.createNewInstant(
            spark._jvm.org.apache.hudi.common.table.timeline.HoodieInstant.State.REQUESTED,
            "clean",
            instant.requestedTime(),
        )
        planned = utils.getCleanerPlan(client, requested).getFilePathsToBeDeletedPerPartition()
        deleted = 0
        for partition, found in dict(metadata.getPartitionMetadata()).items():
            names = sorted(found.getSuccessDeleteFiles())
            test.assertEqual(names, sorted(Path(f.getFilePath()).name for f in planned[partition]))
            for name in names:
                test.assertFalse(Path(target.path, partition, name).exists(), name)
            deleted += len(names)
        test.assertEqual(deleted, metadata.getTotalFilesDeleted())
    shown = _call(scenario, "show_cleans")
    test.assertEqual({i.requestedTime() for i in cleans}, {row["clean_time"] for row in shown})


def _call(scenario, procedure):
    """A procedure of Spark's needs the table in the catalog, which forgets it again."""
    spark, table = scenario.spark, f"interop_{scenario.name}"
    spark.sql(f"CREATE TABLE {table} USING hudi LOCATION '{scenario.target.path}'")
    try:
        return spark.sql(f"CALL {procedure}(table => '{table}', limit => 1000)").collect()
    finally:
        spark.sql(f"DROP TABLE {table}")


def check_archive(test, scenario):
    """Hudi's own classes read our archive: with the active timeline every round is there once."""
    active, archived = scenario.target.instants(), scenario.target.archived_instants()
    test.assertGreater(len(archived), 0)
    action = "deltacommit" if scenario.table_type == "merge_on_read" else "commit"
    found = [(i.requested, i.completed) for i in archived + active if i.action == action]
    test.assertEqual([(instant, completed) for instant, completed, _ in scenario.rounds], sorted(found))
    for instant in archived:
        if instant.action == action:
            test.assertIn(f"tributary.checkpoint.{scenario.name}", instant.extra)
