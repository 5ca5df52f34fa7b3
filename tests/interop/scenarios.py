# SPDX-License-Identifier: Apache-2.0
"""A scenario: Spark-written sources, one pipeline, and what its target must hold.

The expectation is made by Spark SQL from the sources, with the windows the pipeline
file promises: the whole table in the first round, then what completed since.
"""

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
        # Key -> expected row, and the rounds so far: (instant, completion, keys written).
        self.expected = {}
        self.rounds = []
        self.schema = None
        folder.mkdir(parents=True, exist_ok=True)
        self.pipeline_file.write_text(self._pipeline(ordering, writers, services))

    def _pipeline(self, ordering, writers, services):
        lines = [f'name = "{self.name}"', ""]
        for name, table in self.sources.items():
            path = Path(table.path).relative_to(self.folder)
            lines += ["[[source]]", f'name = "{name}"', 'kind = "hudi"', f'path = "{path}"']
            lines += ['start = "snapshot"', ""]
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

    def committed(self, rows, instant, completed):
        """Folds a committed batch into the expectation: late rows lose against stored ones."""
        by_key = {row[self.key]: row for row in self._take_away(rows) if not self._is_late(row)}
        self.expected.update(by_key)
        self.rounds.append((instant, completed, set(by_key)))

    def _take_away(self, rows):
        """Drops what a batch deletes or replaces; answers the rows it stores."""
        if self.operation == "insert_overwrite":
            written = {self._partition_of(row) for row in rows}
            self.expected = {k: row for k, row in self.expected.items() if self._partition_of(row) not in written}
        stored = []
        for row in rows:
            if self.operation == "delete" or row.get("_hoodie_is_deleted"):
                self.expected.pop(row[self.key], None)
            else:
                stored.append(row)
        return stored

    def _partition_of(self, row):
        return tuple(row[column] for column in self.partition)

    def set_operation(self, operation):
        """What the next batches do with their rows."""
        before, after = (f'operation = "{name}"' for name in (self.operation, operation))
        self.pipeline_file.write_text(self.pipeline_file.read_text().replace(before, after))
        self.operation = operation

    def _is_late(self, row):
        stored = self.expected.get(row[self.key])
        if stored is None or self.ordering is None:
            return False
        old, new = stored[self.ordering], row[self.ordering]
        return old is not None and new is not None and new < old

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

    def instants_expected(self):
        """Key -> instant of the round that wrote it last."""
        instants = {key: instant for instant, _, keys in self.rounds for key in keys}
        return {key: instants[key] for key in self.expected}
