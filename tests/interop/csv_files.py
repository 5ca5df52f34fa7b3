# SPDX-License-Identifier: Apache-2.0
"""CSV files, read by Tributary with the preset `spark` and by Spark's own reader.

Each case of `csv_cases` is a directory of files with options. Spark reads it as a DataFrame, Tributary
into a table, and both must give the same rows or refuse the files. Where they differ for a reason,
the case says it, and what Tributary reads instead.
"""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet
from csv_cases import CASES
from pyspark.sql import types as spark_types
from rows import in_order, plain_arrow, plain_spark
from sparkhudi import META_COLUMNS

# What stands for rows where a reader refused the files.
REFUSED = "refused"

AVRO_TYPES = {
    "string": "string",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}

PIPELINE = """
name = "csv"

[[source]]
name = "files"
kind = "csv"
path = "files"
start = "earliest"
files = {{ {files} }}
csv = {{ {csv} }}

[[transform]]
sql = "SELECT ROW_NUMBER() OVER () AS row_key, * FROM <SRC:files>"

[target]
path = "target"
table_name = "csv"
record_key = ["row_key"]
"""


class CsvFiles:
    """Tests of the class that has this one among its bases."""

    def test_csv_files_are_read_as_spark_reads_them(self):
        self.need_tributary("the stand-in reads no files")
        schemas = {case.name: spark_schema(case.columns) if case.columns else None for case in CASES}
        # Two at a time: most of a run is the start of a process.
        with ThreadPoolExecutor(2) as pool:
            ours = pool.map(lambda case: self.read_by_tributary(case, schemas[case.name]), CASES)
            theirs = {case.name: self.read_by_spark(case) for case in CASES}
            ours = {case.name: found for case, found in zip(CASES, ours)}
        self.assertGreaterEqual(len(theirs), 60)
        for case in CASES:
            with self.subTest(case.name):
                spark, tributary = theirs[case.name], ours[case.name]
                if case.because is None:
                    self.assertEqual(spark, tributary, case.options)
                else:
                    self.assertNotEqual(spark, tributary, f"no longer differs: {case.because}")
                    expected = case.ours if case.ours == REFUSED else in_order(case.ours)
                    self.assertEqual(expected, tributary, case.because)

    def read_by_spark(self, case):
        folder = self.work / "csv" / "spark" / case.name
        write_files(folder, case)
        options = {camel(name): spark_text(value) for name, value in case.options.items()}
        reader = self.spark.read.options(**options)
        if case.columns:
            reader = reader.schema(case.columns)
        # The parsers of Spark 3: by default a value that only those of Spark 2 could read fails the query.
        self.spark.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")
        try:
            return plain_spark(reader.csv(str(folder)))
        except Exception:  # Whatever it is: Spark refuses the files.
            return REFUSED
        finally:
            self.spark.conf.unset("spark.sql.legacy.timeParserPolicy")

    def read_by_tributary(self, case, schema):
        folder = self.work / "csv" / "tributary" / case.name
        write_files(folder / "files", case)
        options = {"preset": "spark", **case.options}
        files = {}
        if schema:
            (folder / "schema.avsc").write_text(json.dumps(avro_schema(schema)))
            files["schema_file"] = "schema.avsc"
        else:
            options["infer_schema"] = False
        pipeline = folder / "pipeline.toml"
        pipeline.write_text(PIPELINE.format(files=toml(files), csv=toml(options)))
        command = [self.tributary.binary, "run", "--pipeline", str(pipeline), "--output", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            self.assertIn(done.returncode, (1, 2), f"{case.name}: {done.stdout}{done.stderr}")
            return REFUSED
        return rows_of(folder / "target", schema)


def rows_of(target, schema):
    """The rows in the base files of a table."""
    files = sorted(path for path in target.rglob("*.parquet") if ".hoodie" not in path.parts)
    batches = [batch for file in files for batch in pyarrow.parquet.ParquetFile(file).iter_batches()]
    return plain_arrow(batches, schema or spark_types.StructType(), [*META_COLUMNS, "row_key"])


def write_files(folder, case):
    folder.mkdir(parents=True)
    for name, content in case.files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def spark_schema(columns):
    """Spark's schema of `name type, …`."""
    return spark_types._parse_datatype_string(columns)


def avro_schema(schema):
    fields = [{"name": f.name, "type": ["null", avro_type(f.dataType)], "default": None} for f in schema.fields]
    return {"type": "record", "name": "csv", "fields": fields}


def avro_type(kind):
    if isinstance(kind, spark_types.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return AVRO_TYPES[kind.simpleString()]


def camel(name):
    """Spark's name of an option."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def spark_text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml(values):
    """The inside of an inline table. Text, numbers and booleans of JSON are TOML as well."""
    return ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
