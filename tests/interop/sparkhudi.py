# SPDX-License-Identifier: Apache-2.0
"""Spark with the Hudi bundle: session, writing, reading, and what its Java API says.

Shared by the fixture generator and the interoperability tests. Everything that
depends on the Hudi version is in this file.
"""

import os
import tempfile
import time
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path

# Python turns Spark timestamps into local time; make local time UTC, before Spark starts.
os.environ["TZ"] = "UTC"
time.tzset()

from pyspark.sql import SparkSession, functions  # noqa: E402

META_COLUMNS = [
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
]

# Before every instant; the begin of the first window of a table.
BEGINNING = "000"

Instant = namedtuple("Instant", "requested completed action operation extra")


def start_session(app_name):
    """A small local session: one worker thread, no UI, one shuffle partition."""
    bundle = os.environ.get("HUDI_SPARK_BUNDLE")
    if not bundle:
        raise SystemExit("HUDI_SPARK_BUNDLE is not set; run tests/interop/setup.sh first")
    session = (
        SparkSession.builder.master("local[1]")
        .appName(app_name)
        .config("spark.jars", bundle)
        # Spark creates this folder, always empty here, wherever it is started.
        .config("spark.sql.warehouse.dir", os.path.join(tempfile.gettempdir(), "tributary-spark-warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.default.parallelism", "1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
        .config("spark.kryo.registrator", "org.apache.spark.HoodieSparkKryoRegistrar")
        .config("spark.sql.extensions", "org.apache.spark.sql.hudi.HoodieSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog",
            "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        )
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


class HudiTable:
    """One table of version 9, or of an older one, written, read and inspected through Spark."""

    def __init__(
        self, spark, path, key=None, partition=(), ordering=None, metadata=True, extra=None, version=9
    ):
        self.spark = spark
        self.path = str(path)
        self.metadata = metadata
        self.version = version
        self._options = self._write_options(key, list(partition), ordering)
        self._options.update(extra or {})
        # What completed instants say, by instant: a completed one never changes, and decoding them all at every look
        # took most of the time of tests with many commits.
        self._said = {}

    def _write_options(self, key, partition, ordering):
        options = {
            "hoodie.table.name": Path(self.path).name,
            "hoodie.write.table.version": str(self.version),
            # Only a writer of a newer version may change the table's.
            "hoodie.write.auto.upgrade": "false",
            "hoodie.table.timeline.timezone": "UTC",
            "hoodie.datasource.write.hive_style_partitioning": "true",
            "hoodie.datasource.write.partitionpath.field": ",".join(partition),
            "hoodie.metadata.enable": str(self.metadata).lower(),
            # The only metadata partition wanted here is `files`.
            "hoodie.metadata.index.column.stats.enable": "false",
            # The default sizes its bloom filter for 60,000 keys: 430 kB in every base file.
            "hoodie.index.bloom.num_entries": "100",
            "hoodie.upsert.shuffle.parallelism": "1",
            "hoodie.insert.shuffle.parallelism": "1",
            "hoodie.bulkinsert.shuffle.parallelism": "1",
            "hoodie.delete.shuffle.parallelism": "1",
            "hoodie.embed.timeline.server": "false",
        }
        if key:
            options["hoodie.datasource.write.recordkey.field"] = key
        if ordering:
            name = "hoodie.table.ordering.fields" if self.version > 8 else "hoodie.datasource.write.precombine.field"
            options[name] = ordering
        return options

    def upgrade(self, version):
        """The next write brings the table to this version."""
        self.version = version
        self._options["hoodie.write.table.version"] = str(version)
        self._options["hoodie.write.auto.upgrade"] = "true"

    def time_of(self, instant):
        """Where an instant stands in the order of incremental reads: tables before version 8
        have no completion times."""
        return instant.requested if self.is_by_request() else instant.completed

    def is_by_request(self):
        """Whether the table, as it is now, knows no completion times."""
        return int(self.properties()["hoodie.table.version"]) < 8

    def write(self, rows, operation="upsert", options=None):
        """Commits a DataFrame; `options` are added to those of the table."""
        options = {**self._options, **(options or {})}
        options["hoodie.datasource.write.operation"] = operation
        exists = Path(self.path, ".hoodie").exists()
        writer = rows.coalesce(1).write.format("hudi").options(**options)
        writer.mode("append" if exists else "overwrite").save(self.path)

    def snapshot(self, metadata=None):
        """The whole table; `metadata` says whether the metadata table lists the files."""
        enabled = self.metadata if metadata is None else metadata
        reader = self.spark.read.format("hudi").option("hoodie.metadata.enable", str(enabled).lower())
        return reader.load(self.path)

    def read_optimized(self, metadata=None):
        """The rows of the base files, without those of the logs on top of them."""
        enabled = self.metadata if metadata is None else metadata
        reader = self.spark.read.format("hudi").option("hoodie.metadata.enable", str(enabled).lower())
        return reader.option("hoodie.datasource.query.type", "read_optimized").load(self.path)

    def as_of(self, instant):
        """The whole table as of an instant, by its requested time."""
        reader = self.spark.read.format("hudi").option("hoodie.metadata.enable", str(self.metadata).lower())
        return reader.option("as.of.instant", instant).load(self.path)

    def merges_on_read(self):
        """Whether its type is MERGE_ON_READ."""
        return self.properties().get("hoodie.table.type") == "MERGE_ON_READ"

    def incremental(self, begin, end=None, metadata=None):
        """Rows written by instants in (begin, end] of :meth:`time_of`, or an error if files of
        theirs are gone: without the last option Spark would silently read today's table and
        return only those rows that nobody changed since."""
        enabled = self.metadata if metadata is None else metadata
        reader = (
            self.spark.read.format("hudi")
            .option("hoodie.metadata.enable", str(enabled).lower())
            .option("hoodie.datasource.query.type", "incremental")
            .option("hoodie.datasource.read.begin.instanttime", begin)
            .option("hoodie.datasource.read.incr.fallback.fulltablescan.enable", "false")
            # Up to the first pending instant, as Hudi Streamer reads tables before version 8.
            .option("hoodie.read.timeline.holes.resolution.policy", "BLOCK")
        )
        if end:
            reader = reader.option("hoodie.datasource.read.end.instanttime", end)
        return self._decode_partitions(reader.load(self.path))

    def _decode_partitions(self, frame):
        """Hudi 1.2.0's incremental query returns url-encoded partition values still encoded
        (`a%2Fb`); its other queries decode them. Make all alike."""
        properties = self.properties()
        if properties.get("hoodie.datasource.write.partitionpath.urlencode") != "true":
            return frame
        for column in properties["hoodie.table.partition.fields"].split(","):
            if column in frame.columns:
                # Hudi leaves `+` as it is, url_decode would make it a space.
                kept = functions.replace(functions.col(column), functions.lit("+"), functions.lit("%2B"))
                decoded = functions.url_decode(kept)
                frame = frame.withColumn(column, decoded)
        return frame

    def compact(self):
        """Spark plans a compaction of the log files, whatever their number, and runs it."""
        # The only metadata partition wanted is `files`, here too.
        options = "hoodie.compact.inline.max.delta.commits=1,hoodie.metadata.index.column.stats.enable=false"
        self.spark.sql(
            f"CALL run_compaction(op => 'scheduleAndExecute', path => '{self.path}', options => '{options}')"
        ).collect()

    # -- what Hudi's Java classes report --------------------------------------------

    def meta_client(self):
        jvm = self.spark._jvm
        hadoop = self.spark._jsc.hadoopConfiguration()
        storage_conf = jvm.org.apache.hudi.storage.hadoop.HadoopStorageConfiguration(hadoop)
        builder = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
        return builder.setConf(storage_conf).setBasePath(self.path).build()

    def instants(self):
        """Completed instants of the active timeline, in the order of incremental reads."""
        found = self._read_instants(self.meta_client().getActiveTimeline())
        by_request = self.is_by_request()
        return sorted(found, key=lambda i: i.requested if by_request else i.completed)

    def last_write(self):
        """The newest instant that wrote rows: table services are no news to a reader."""
        writes = [i for i in self.instants() if i.operation not in (None, "CLUSTER", "COMPACT")]
        return writes[-1]

    def archived_instants(self):
        """Completed instants that moved to the timeline's history."""
        timeline = self.meta_client().getArchivedTimeline()
        timeline.loadCompletedInstantDetailsInMemory()
        return self._read_instants(timeline)

    def requested_times(self):
        """Requested times of all completed instants, archived ones included; nothing of them is decoded."""
        client = self.meta_client()
        timelines = (client.getActiveTimeline(), client.getArchivedTimeline())
        return {
            instant.requestedTime()
            for timeline in timelines
            for instant in timeline.filterCompletedInstants().getInstants()
        }

    def _read_instants(self, timeline):
        found = []
        for instant in timeline.filterCompletedInstants().getInstants():
            name = (instant.requestedTime(), instant.getCompletionTime(), instant.getAction())
            if name not in self._said:
                self._said[name] = _said_by(timeline, instant)
            found.append(Instant(*name, *self._said[name]))
        return sorted(found, key=lambda i: i.completed)

    def pending_instants(self):
        """`(requested time, action, state)` of every instant not completed."""
        timeline = self.meta_client().getActiveTimeline().filterInflightsAndRequested()
        return [
            (instant.requestedTime(), instant.getAction(), instant.getState().toString())
            for instant in timeline.getInstants()
        ]

    def properties(self):
        lines = Path(self.path, ".hoodie", "hoodie.properties").read_text().splitlines()
        pairs = [line.split("=", 1) for line in lines if line and not line.startswith("#")]
        return dict(pairs)

    def files_by_metadata_table(self):
        """Data files as the metadata table lists them: paths relative to the table, with sizes."""
        jvm = self.spark._jvm
        client = self.meta_client()
        context = jvm.org.apache.hudi.client.common.HoodieSparkEngineContext(self.spark._jsc)
        config = jvm.org.apache.hudi.common.config.HoodieMetadataConfig.newBuilder().enable(True).build()
        listing = jvm.org.apache.hudi.metadata.HoodieBackedTableMetadata(
            context, client.getStorage(), config, self.path
        )
        found = {}
        try:
            if not listing.isMetadataTableInitialized():
                raise AssertionError(f"{self.path} has no usable metadata table")
            for partition in listing.getAllPartitionPaths():
                directory = jvm.org.apache.hudi.common.fs.FSUtils.constructAbsolutePath(
                    self.path, partition
                )
                for info in listing.getAllFilesInPartition(directory):
                    name = info.getPath().getName()
                    found[f"{partition}/{name}" if partition else name] = info.getLength()
        finally:
            listing.close()
        return found

    def files_on_disk(self):
        """Data files as the file system lists them, without those of uncommitted instants."""
        committed = self.requested_times()
        found = {}
        for file in Path(self.path).rglob("*_*"):
            relative = file.relative_to(self.path)
            # Spark leaves checksums beside the log files that it writes.
            if relative.parts[0] == ".hoodie" or file.suffix == ".crc":
                continue
            if file.suffix == ".parquet":
                # <file group>_<write token>_<requested time>.parquet
                instant = file.stem.rsplit("_", 1)[1]
            elif ".log." in file.name and file.suffix != ".crc":
                # .<file group>_<requested time>.log.<number>_<write token>
                instant = file.name.split(".log.")[0].rsplit("_", 1)[1]
            else:
                continue
            if instant in committed:
                found[relative.as_posix()] = file.stat().st_size
        return found


def _said_by(timeline, instant):
    """Operation and extra metadata of a completed instant; none of table services that write no rows."""
    if instant.getAction() not in ("commit", "deltacommit", "replacecommit"):
        return None, {}
    metadata = _commit_metadata(timeline, instant)
    return metadata.getOperationType().toString(), dict(metadata.getExtraMetadata())


def _commit_metadata(timeline, instant):
    if instant.getAction() == "replacecommit":
        return timeline.readReplaceCommitMetadata(instant)
    return timeline.readCommitMetadata(instant)


@contextmanager
def views(spark, **frames):
    """Names DataFrames for SQL while the block runs."""
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    try:
        yield
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)
