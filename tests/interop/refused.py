# SPDX-License-Identifier: Apache-2.0
"""The error table, as Spark and the `hudi` package read it: bad records of CSV and JSON files, rows
without a key, and batches one after the other."""

import json

from hudi import HudiTableBuilder
from rows import plain_arrow, plain_spark
from sparkhudi import META_COLUMNS, HudiTable

SCHEMA = json.dumps(
    {
        "fields": [
            {"name": "id", "nullable": True, "type": {"name": "utf8"}, "children": []},
            {"name": "n", "nullable": True, "type": {"name": "int", "bitWidth": 64, "isSigned": True}, "children": []},
        ]
    }
)

PIPELINE = f"""
name = "refusing"

[[source]]
name = "lines"
kind = "csv"
path = "lines"
start = "earliest"
csv = {{ header = true, mode = "error_table" }}
files = {{ order = "name", schema = '{SCHEMA}' }}

[[source]]
name = "objects"
kind = "json"
path = "objects"
start = "earliest"
json = {{ mode = "error_table" }}
files = {{ order = "name", schema = '{SCHEMA}' }}

[[transform]]
sql = "SELECT NULLIF(id, '') AS id, n FROM <SRC:lines> UNION ALL SELECT id, n FROM <SRC:objects>"

[target]
path = "target"
table_name = "target"
record_key = ["id"]
on_null_key = "error_table"

[error_table]
path = "errors"
"""


class Refused:
    """Tests of the class that has this one among its bases."""

    def test_the_error_table_of_bad_csv_and_json_rows(self):
        self.need_tributary("the stand-in reads no files")
        folder = self.work / "refused"
        for source in ("lines", "objects"):
            (folder / source).mkdir(parents=True)
        pipeline = folder / "pipeline.toml"
        pipeline.write_text(PIPELINE)
        errors = HudiTable(self.spark, folder / "errors", key="pipeline,source,position", partition=["pipeline"])

        (folder / "lines" / "1.csv").write_text('id,n\na,1\nb,two\n"",3\nc,4,5\n')
        (folder / "objects" / "1.json").write_text('{"id": "x", "n": 1}\n{"id": "y", "n": "é"}\nnothing\n')
        first = self.tributary.run(pipeline)
        self.assertEqual("COMMITTED", first["outcome"], first)
        self.assertEqual(5, first["refused"]["rows"])
        self.assertEqual(errors.last_write().requested, first["refused"]["instant"])
        (folder / "lines" / "2.csv").write_text("id,n\nd,x\n")
        second = self.tributary.run(pipeline)
        self.assertEqual(1, second["refused"]["rows"], second)

        for metadata in (True, False):
            found = plain_spark(errors.snapshot(metadata), META_COLUMNS)
            columns = ("source", "seq", "raw", "reason", "line")
            rows = sorted(tuple(row[name] for name in columns) for row in found if row["source"] != "<result>")
            self.assertEqual(
                [
                    ("lines", 1, "b,two", "BAD_RECORD", 3),
                    ("lines", 1, "c,4,5", "BAD_RECORD", 5),
                    ("lines", 2, "d,x", "BAD_RECORD", 2),
                    ("objects", 1, "nothing", "BAD_RECORD", 3),
                    ("objects", 1, '{"id": "y", "n": "é"}', "BAD_RECORD", 2),
                ],
                rows,
            )
            (keyless,) = (row for row in found if row["source"] == "<result>")
            self.assertEqual(("NULL_KEY", {"id": None, "n": 3}), (keyless["reason"], json.loads(keyless["raw"])))
            self.assertEqual({first["instant"], second["instant"]}, {row["instant"] for row in found})
        python = HudiTableBuilder.from_base_uri(str(folder / "errors")).build().read()
        spark = plain_spark(errors.snapshot(), META_COLUMNS)
        self.assertEqual(sorted(spark, key=str), sorted(plain_arrow(python, errors.snapshot().schema, META_COLUMNS), key=str))

        # Spark's own writer may take away what was seen to, and the next batch goes on.
        errors.write(errors.snapshot().drop(*META_COLUMNS).where("seq = 1"), "delete")
        (folder / "lines" / "3.csv").write_text("id,n\ne,y\n")
        third = self.tributary.run(pipeline)
        self.assertEqual(1, third["refused"]["rows"], third)
        left = plain_spark(errors.snapshot(), META_COLUMNS)
        self.assertEqual({(2, "d,x"), (3, "e,y")}, {(row["seq"], row["raw"]) for row in left})
