# SPDX-License-Identifier: Apache-2.0
"""Writes the tables under tests/fixtures with Spark, and what Spark reads in them.

    eval "$(tests/interop/setup.sh)" && "$INTEROP_PYTHON" tests/interop/make_fixtures.py [name ...]

Names are `demo`, those of the tables and those of `PUBLIC`; none means all. Needed only
when a fixture changes: what it writes is committed.
"""

import json
import sys
import tempfile
import zipfile
from pathlib import Path

import fixture_demo
import fixture_tables
from rows import plain_spark
from sparkhudi import BEGINNING, HudiTable, start_session

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

# Tables under `hudi` that others wrote: only what Spark reads in them is written.
PUBLIC = [
    "cow_v6_nonpartitioned",
    "cow_v6_simplekeygen_nonhivestyle",
    "cow_v6_simplekeygen_nonhivestyle_overwritetable",
]

# Kept in the oracles of the meta columns: the others hold file names.
HIDDEN = ("_hoodie_commit_seqno", "_hoodie_file_name")


def pack(folders, archive):
    """Zips table folders without Hadoop's checksums, empty folders included."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for folder in folders:
            for path in [folder, *sorted(folder.rglob("*"))]:
                if path.name.endswith(".crc"):
                    continue
                # A fixed time: the same files make the same archive.
                name = path.relative_to(folder.parent).as_posix() + ("/" if path.is_dir() else "")
                entry = zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (0o40755 if path.is_dir() else 0o100644) << 16
                target.writestr(entry, b"" if path.is_dir() else path.read_bytes())
    print(f"{archive.relative_to(FIXTURES)}: {archive.stat().st_size} bytes")


def oracle(table):
    """What Spark says about a table: snapshot, instants, and each single-commit window."""
    archived = table.archived_instants()
    instants = sorted(archived + table.instants(), key=table.time_of)
    snapshot = table.snapshot()
    return {
        "schema": json.loads(snapshot.schema.json()),
        "snapshot": plain_spark(snapshot, HIDDEN),
        "instants": [
            {
                "requested": i.requested,
                "completed": i.completed,
                "action": i.action,
                "operationType": i.operation,
                "archived": i in archived,
            }
            for i in instants
        ],
        "pending": [
            {"requested": requested, "action": action, "state": state}
            for requested, action, state in table.pending_instants()
        ],
        "windows": windows(table, [i for i in instants if i.operation], archived),
    }


def windows(table, writes, archived):
    """Spark's incremental query over (previous write, this write] of each write."""
    found = []
    begin = BEGINNING
    for write in writes:
        end = table.time_of(write)
        window = {"begin": begin, "end": end, "operationType": write.operation}
        if table.is_by_request() and write in archived:
            # Spark says nothing and returns no row.
            window["rows"], window["error"] = None, "archived"
            found.append(window)
            begin = end
            continue
        try:
            window["rows"] = plain_spark(table.incremental(begin, end), HIDDEN)
        except Exception as error:  # Spark refuses windows whose files were cleaned.
            window["rows"] = None
            window["error"] = reason(error).replace(table.path, "<table>")
        found.append(window)
        begin = end
    return found


def reason(error):
    """The first line of the innermost cause of a Java exception."""
    cause = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return str(error if cause is None else cause.toString()).strip().splitlines()[0]


def write_json(path, content):
    path.write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def make_demo(spark, work):
    target = FIXTURES / "demo"
    tables = fixture_demo.open_tables(spark, work)
    rounds = [
        (fixture_demo.ORDERS_ROUND_1, fixture_demo.USERS_ROUND_1),
        (fixture_demo.ORDERS_ROUND_2, fixture_demo.USERS_ROUND_2),
    ]
    for number, (order_commits, user_commits) in enumerate(rounds, start=1):
        fixture_demo.write_round(spark, tables, order_commits, user_commits)
        pack([work / "orders", work / "users"], target / f"round{number}.zip")
        expected = {Path(table.path).name: oracle(table) for table in tables}
        write_json(target / f"round{number}.expected.json", expected)


def make_table(spark, work, name):
    table = fixture_tables.BUILDERS[name](spark, work / name)
    target = FIXTURES / "tables"
    pack([work / name], target / f"{name}.zip")
    expected = oracle(table)
    if name in fixture_tables.BLOCKED:
        end = fixture_tables.BLOCKED[name](table)
        expected["blocked"] = {"end": end, "rows": plain_spark(table.as_of(end), HIDDEN)}
    write_json(target / f"{name}.expected.json", expected)


def read_public(spark, work, name):
    with zipfile.ZipFile(FIXTURES / "hudi" / f"{name}.zip") as archive:
        archive.extractall(work)
    [properties] = [p for p in work.glob("*/.hoodie/hoodie.properties") if "__MACOSX" not in p.parts]
    table = HudiTable(spark, properties.parent.parent, metadata=False, version=6)
    write_json(FIXTURES / "hudi" / f"{name}.expected.json", oracle(table))


def main(names):
    known = ["demo", *fixture_tables.BUILDERS, *PUBLIC]
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"unknown fixture {sorted(unknown)}; known: {', '.join(known)}")
    spark = start_session("tributary-fixtures")
    for name in names or known:
        with tempfile.TemporaryDirectory() as work:
            if name == "demo":
                make_demo(spark, Path(work))
            elif name in PUBLIC:
                read_public(spark, Path(work), name)
            else:
                make_table(spark, Path(work), name)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
