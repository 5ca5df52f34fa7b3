# SPDX-License-Identifier: Apache-2.0
"""A scenario: its sources, one pipeline, and what its target must hold.

Sources are tables that Spark writes. The expectation is made by Spark SQL from them, with the
windows the pipeline file promises: the whole table in the first round, then what completed since.
Where only the target is of interest, one directory of JSON files takes their place.
"""

import json
import re
from pathlib import Path

from rows import in_order, plain_spark
from sparkhudi import BEGINNING, META_COLUMNS, HudiTable, views

PLACEHOLDER = re.compile(r"<(SRC|SNAP):(\w+)>")


def render(sql):
    """Spark's form of a query: `<SRC:orders>` becomes the view `src_orders`."""
    return PLACEHOLDER.sub(lambda found: f"{found[1].lower()}_{found[2]}", sql)


def without_meta(frame):
    return frame.drop(*META_COLUMNS)


def window_frames(spark, name, table, begin):
    """The two views of a source: its rows after `begin` (all, if None) and the whole table."""
    whole = without_meta(table.snapshot())
    changed = whole if begin is None else without_meta(table.incremental(begin))
    return {f"src_{name}": changed, f"snap_{name}": whole}


class Merged:
    """Rows by key, as the ordering leaves them: of two the later one, of two equal ones the second.

    A deleted record leaves nothing behind in a copy-on-write table. In the logs of a merge-on-read
    one the delete stays until they are compacted, and rows that are older than it lose.
    """

    def __init__(self, scenario, logged):
        self.key, self.ordering, self.logged = scenario.key, scenario.ordering, logged
        self.rows, self.deleted = {}, {}

    def knows(self, row):
        return row[self.key] in self.rows or row[self.key] in self.deleted

    def is_late(self, row):
        stored = self.rows.get(row[self.key], self.deleted.get(row[self.key]))
        if stored is None or self.ordering is None:
            return False
        old, new = stored[self.ordering], row[self.ordering]
        return old is not None and new is not None and new < old

    def store(self, row):
        """Whether the row stays."""
        if self.is_late(row):
            return False
        self.deleted.pop(row[self.key], None)
        self.rows[row[self.key]] = row
        return True

    def delete(self, row, whatever_its_ordering):
        if whatever_its_ordering or not self.is_late(row):
            if self.logged:
                # One without an ordering is older than whatever comes after it.
                self.deleted[row[self.key]] = {self.ordering: None} if whatever_its_ordering else row
            self.rows.pop(row[self.key], None)


class Scenario:
    def __init__(
        self,
        spark,
        folder,
        sources,
        sql,
        key,
        partition=(),
        ordering=None,
        operation="upsert",
        writers=None,
        services=None,
        table_type="copy_on_write",
    ):
        self.spark = spark
        self.name = folder.name
        self.folder = folder
        self.sources = sources
        self.sql = sql
        self.key = key
        self.partition = list(partition)
        self.ordering = ordering
        self.table_type = table_type
        self.operation = operation
        self.pipeline_file = folder / "pipeline.toml"
        self.target = HudiTable(
            spark,
            folder / "target",
            key=key,
            partition=partition,
            ordering=ordering,
            extra={"hoodie.table.name": self.name},
        )
        self._cursors = {}
        self.merged = Merged(self, table_type == "merge_on_read")
        # The rounds so far: (instant, completion, keys written), and beside them the rows that they wrote, each with what
        # it does to its record.
        self.rounds = []
        self.written = []
        # When the newest compaction of the target completed.
        self.compacted_at = BEGINNING
        self.schema = None
        folder.mkdir(parents=True, exist_ok=True)
        self.pipeline_file.write_text(self._pipeline(ordering, writers, services))

    def _pipeline(self, ordering, writers, services):
        lines = [f'name = "{self.name}"', "", *self._source_lines()]
        lines += ["[[transform]]", f'sql = """{self.sql}"""', "", "[target]", 'path = "target"']
        lines += [f'table_name = "{self.name}"', f'table_type = "{self.table_type}"', "table_version = 9"]
        lines += [f'record_key = ["{self.key}"]', f'operation = "{self.operation}"']
        if self.partition:
            lines.append("partition_by = [" + ", ".join(f'"{c}"' for c in self.partition) + "]")
        if ordering:
            lines.append(f'ordering = ["{ordering}"]')
        if writers:
            lines.append(f'writers = "{writers}"')
        if services:
            lines += ["", "[target.services]"]
            lines += [f"{key} = {value}" for key, value in services.items()]
        return "\n".join(lines) + "\n"

    def _source_lines(self):
        lines = []
        for name, table in self.sources.items():
            path = Path(table.path).relative_to(self.folder)
            lines += ["[[source]]", f'name = "{name}"', 'kind = "hudi"', f'path = "{path}"']
            lines += ['start = "snapshot"', ""]
        return lines

    def batch_expected(self):
        """The rows the next batch must write, moving the cursors behind them."""
        frames, moved = {}, {}
        for name, table in self.sources.items():
            frames.update(window_frames(self.spark, name, table, self._cursors.get(name)))
            moved[name] = table.time_of(table.last_write())
        with views(self.spark, **frames):
            batch = self.spark.sql(render(self.sql))
            self.schema = batch.schema
            rows = plain_spark(batch)
        self._cursors = moved
        return rows

    @property
    def expected(self):
        """Key -> row that the target must hold."""
        return self.merged.rows

    def committed(self, rows, instant, completed):
        """Folds a committed batch into the expectation: late rows lose against stored ones."""
        if self.operation == "insert_overwrite":
            replaced = {self._partition_of(row) for row in rows}
            kept = {k: row for k, row in self.expected.items() if self._partition_of(row) not in replaced}
            self.merged.rows = kept
        ways = [(row, self._way_of(row)) for row in rows]
        # A delete of a key that the table does not know is not written.
        written = [(row, way) for row, way in ways if way == "stored" or self.merged.knows(row)]
        self.written.append(written)
        self.rounds.append((instant, completed, self._fold(written, self.merged)))

    def _way_of(self, row):
        """What a row does to its record."""
        if self.operation == "delete":
            return "named"
        return "flagged" if row.get("_hoodie_is_deleted") else "stored"

    def _fold(self, written, merged):
        """Keys of the rows that are stored."""
        stored = set()
        for row, way in written:
            if way != "stored":
                merged.delete(row, whatever_its_ordering=way == "named")
            elif merged.store(row):
                stored.add(row[self.key])
        return stored

    def compacted(self, completed):
        """The target's logs are base files now, in which no delete is left."""
        self.merged.deleted.clear()
        self.compacted_at = completed

    def _partition_of(self, row):
        return tuple(row[column] for column in self.partition)

    def set_operation(self, operation):
        """What the next batches do with their rows."""
        before, after = (f'operation = "{name}"' for name in (self.operation, operation))
        self.pipeline_file.write_text(self.pipeline_file.read_text().replace(before, after))
        self.operation = operation

    @property
    def cursors(self):
        return dict(self._cursors)

    def snapshot_expected(self):
        return in_order(self.expected.values())

    def incremental_expected(self, begin):
        """Rows last written by a round that completed after `begin`."""
        later = [keys for _, completed, keys in self.rounds if begin == BEGINNING or completed > begin]
        changed = set().union(*later)
        return in_order(row for key, row in self.expected.items() if key in changed)

    def incremental_by_spark(self, begin):
        """What Spark's incremental query answers. Of a merge-on-read table it merges only the files that were
        written after `begin`: unless a compaction is among them, rows that lost against earlier ones are in it."""
        if self.table_type != "merge_on_read" or begin in (BEGINNING, None) or self.compacted_at > begin:
            return self.incremental_expected(begin)
        seen = Merged(self, logged=True)
        for (_, completed, _), written in zip(self.rounds, self.written):
            if completed > begin:
                self._fold(written, seen)
        return in_order(seen.rows.values())

    def instants_expected(self):
        """Key -> instant of the round that wrote it last."""
        instants = {key: instant for instant, _, keys in self.rounds for key in keys}
        return {key: instants[key] for key in self.expected}


class FileScenario(Scenario):
    """One source, a directory of JSON files, each of which is a batch. The rows are those of the files."""

    def __init__(self, spark, folder, columns, **target):
        schema = spark.createDataFrame([], columns).schema
        sql = f"SELECT {', '.join(schema.names)} FROM <SRC:events>"
        super().__init__(spark, folder, {}, sql, **target)
        self.schema = schema
        self._files = 0
        self._next = []

    def _source_lines(self):
        lines = ["[[source]]", 'name = "events"', 'kind = "json"', 'path = "events"', 'start = "earliest"']
        return [*lines, 'files = { order = "name" }', ""]

    def add(self, rows):
        """A file of the next batch's rows, given as tuples."""
        self._next = [dict(zip(self.schema.names, row)) for row in rows]
        self._files += 1
        events = self.folder / "events"
        events.mkdir(exist_ok=True)
        (events / f"{self._files:04}.json").write_text("".join(json.dumps(row) + "\n" for row in self._next))

    def batch_expected(self):
        rows, self._next = self._next, []
        return in_order(rows)
