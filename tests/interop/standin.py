# SPDX-License-Identifier: Apache-2.0
"""Spark in the place of `tributary run`, to test the test harness itself.

It understands as much of a pipeline file as the scenarios use. Nothing is proved
about Tributary with it: `interop.py --stand-in` says whether the expectations and the
checks agree with what Hudi itself writes.
"""

import json
import tomllib
from pathlib import Path

from scenarios import render, window_frames
from sparkhudi import HudiTable, views


class StandIn:
    def __init__(self, spark):
        self.spark = spark
        self.answers = {}

    def run(self, pipeline_file, request_id=None):
        if request_id in self.answers:
            return self.answers[request_id]
        pipeline = tomllib.loads(Path(pipeline_file).read_text())
        answer = self._batch(pipeline, Path(pipeline_file).parent)
        if request_id:
            self.answers[request_id] = answer
        return answer

    def _batch(self, pipeline, folder):
        target = self._target(pipeline["target"], folder)
        cursors = self._cursors(target, pipeline["name"])
        frames, moved = {}, {}
        for source in pipeline["source"]:
            table = HudiTable(self.spark, folder / source["path"])
            name = source["name"]
            frames.update(window_frames(self.spark, name, table, cursors.get(name)))
            moved[name] = table.time_of(table.last_write())
        if moved == cursors:
            return {"outcome": "NO_NEW_DATA"}
        sql = pipeline["transform"][0]["sql"]
        return self._commit(pipeline, target, frames, sql, moved)

    def _target(self, settings, folder):
        return HudiTable(
            self.spark,
            folder / settings["path"],
            key=",".join(settings["record_key"]),
            partition=settings.get("partition_by", []),
            ordering=",".join(settings.get("ordering", [])),
            extra={
                "hoodie.table.name": settings["table_name"],
                "hoodie.datasource.write.partitionpath.urlencode": "true",
            },
        )

    def _cursors(self, target, pipeline):
        if not Path(target.path, ".hoodie").exists():
            return {}
        for instant in reversed(target.instants()):
            text = instant.extra.get(f"tributary.checkpoint.{pipeline}")
            if text:
                return json.loads(text)
        return {}

    def _commit(self, pipeline, target, frames, sql, moved):
        flat = ",".join(f"{name}={value}" for name, value in sorted(moved.items()))
        if len(moved) == 1:
            flat = next(iter(moved.values()))
        extra = {
            "hoodie.datasource.write.commitmeta.key.prefix": "",
            f"tributary.checkpoint.{pipeline['name']}": json.dumps(moved),
            "deltastreamer.checkpoint.key": flat,
        }
        with views(self.spark, **frames):
            rows = self.spark.sql(render(sql))
            target.write(rows, pipeline["target"]["operation"], options=extra)
            count = rows.count()
        last = target.instants()[-1]
        return {
            "outcome": "COMMITTED",
            "instant": last.requested,
            "completed": last.completed,
            "rows": count,
        }
