# SPDX-License-Identifier: Apache-2.0
"""Pulling and querying with clients that are not ours: pyarrow's Flight, and ADBC's driver for Flight SQL."""

import concurrent.futures

import adbc_driver_flightsql.dbapi as dbapi
import pyarrow as pa
import pyarrow.flight as flight
from adbc_driver_manager import Error as AdbcError

from pulling import Server


def pull_parallel(address, name):
    """The info of a flight, and the rows of its endpoints, each read by a thread with a client of its own."""

    def read(endpoint):
        with flight.connect(f"grpc://{address}") as client:
            return client.do_get(endpoint.ticket).read_all()

    with flight.connect(f"grpc://{address}") as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path(name))
    with concurrent.futures.ThreadPoolExecutor() as threads:
        return info, pa.concat_tables(threads.map(read, info.endpoints))


def tuples(table):
    """Its rows, sorted."""
    return sorted(tuple(row.values()) for row in table.to_pylist())


class FlightSql:
    """Mixed into the class of all interoperability tests."""

    def test_pyarrow_pulls_tables_as_of_instants_in_parallel_and_cancels(self):
        scenario = self.days_scenario("pulled_apart")
        with Server(self.tributary.binary) as server:
            first, before = self.served_batch(server, scenario, [(n, f"2024-01-0{n % 5 + 1}", n, 1) for n in range(50)])
            second, after = self.served_batch(server, scenario, [(0, "2024-01-01", 100, 2), (99, "2024-01-02", 9, 2)])
            self.assertEqual(52 - 1, len(after))
            name = first["batch"].split("/")[0]
            for wanted, rows in (("", after), (f"@{second['instant']}", after), (f"@{first['instant']}", before)):
                info, table = pull_parallel(server.address, f"table:{name}{wanted}")
                self.assertEqual(5, len(info.endpoints), "a file in each of five partitions")
                self.assertEqual(rows, tuples(table))
                self.assertTrue(all(endpoint.expiration_time is not None for endpoint in info.endpoints))
                self.assertEqual(name, info.schema.metadata[b"tributary.table"].decode())
            info, table = pull_parallel(server.address, f"batch:{second['batch']}")
            self.assertEqual(2, table.num_rows)
            self.assertEqual(second["instant"], info.schema.metadata[b"tributary.instant"].decode())
            self.assertEqual(64, len(info.schema.metadata[b"tributary.sql_sha256"]))
            self.check_cancelling(server, name)

    def check_cancelling(self, server, name):
        with flight.connect(f"grpc://{server.address}") as client:
            actions = {action.type for action in client.list_actions()}
            self.assertLessEqual({"CancelFlightInfo", "RenewFlightEndpoint"}, actions)
            info = client.get_flight_info(flight.FlightDescriptor.for_path(f"table:{name}"))
            # A CancelFlightInfoRequest holds the info as its first field.
            wire = info.serialize()
            request = b"\x0a" + varint(len(wire)) + wire
            (result,) = client.do_action(flight.Action("CancelFlightInfo", request))
            self.assertEqual(b"\x08\x01", result.body.to_pybytes(), "cancelled")
            with self.assertRaisesRegex(flight.FlightCancelledError, "was cancelled"):
                client.do_get(info.endpoints[0].ticket).read_all()

    def test_adbc_queries_what_was_committed_and_nothing_else(self):
        scenario = self.days_scenario("queried")
        with Server(self.tributary.binary) as server:
            first, before = self.served_batch(server, scenario, [(n, f"2024-01-0{n % 5 + 1}", n, 1) for n in range(50)])
            second, _ = self.served_batch(server, scenario, [(0, "2024-01-01", 100, 2)])
            name = first["batch"].split("/")[0]
            with dbapi.connect(f"grpc://{server.address}", autocommit=True) as connection:
                self.check_queries(connection, name, first, before)
                self.check_refusals(connection, name)
                self.check_metadata(connection, name, second)

    def check_queries(self, connection, name, first, before):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*) AS rows, max(value) AS top FROM tables.`{name}`")
            self.assertEqual([(50, 100)], cursor.fetchall())
            cursor.execute(f"SELECT * FROM tables.`{name}@{first['instant']}`")
            table = cursor.fetch_arrow_table()
            self.assertEqual(before, tuples(table))
            cursor.execute(f"SELECT id FROM batches.`{first['batch']}` WHERE value BETWEEN ? AND ? ORDER BY id", (7, 9))
            self.assertEqual([(7,), (8,), (9,)], cursor.fetchall())
            # The same statement with other values.
            cursor.execute(f"SELECT id FROM batches.`{first['batch']}` WHERE value BETWEEN ? AND ? ORDER BY id", (1, 2))
            self.assertEqual([(1,), (2,)], cursor.fetchall())

    def check_refusals(self, connection, name):
        for sql, said in (
            (f"DELETE FROM tables.`{name}`", "DELETE"),
            ("CREATE TABLE x (a INT)", "CREATE"),
            ("SELECT * FROM nobody", f"there are: {name}"),
            ("SELECT * FROM `/etc/passwd`", "no pipeline"),
        ):
            with connection.cursor() as cursor:
                with self.assertRaisesRegex(AdbcError, said):
                    cursor.execute(sql)
                    cursor.fetchall()

    def check_metadata(self, connection, name, second):
        objects = connection.adbc_get_objects(depth="all").read_all().to_pylist()
        (catalog,) = objects
        self.assertEqual("tributary", catalog["catalog_name"])
        schemas = {schema["db_schema_name"]: schema["db_schema_tables"] for schema in catalog["catalog_db_schemas"]}
        (table,) = [table for table in schemas["tables"] if table["table_name"] == name]
        self.assertEqual(["id", "day", "value", "ts"], [column["column_name"] for column in table["table_columns"]])
        self.assertIn(second["batch"], [batch["table_name"] for batch in schemas["batches"]])
        self.assertEqual({"TABLE", "BATCH"}, set(connection.adbc_get_table_types()))
        self.assertEqual("Tributary", connection.adbc_get_info()["vendor_name"])
        self.assertEqual(["id", "day", "value", "ts"], connection.adbc_get_table_schema(name, db_schema_filter="tables").names)

    def days_scenario(self, name):
        columns = "id long, day string, value long, ts long"
        return self.files_scenario(name, columns, key="id", partition=["day"], ordering="ts")

    def served_batch(self, server, scenario, rows):
        """A file of rows, the batch that a server takes it in with, and all rows that are there then."""
        scenario.add(rows)
        answer = server.run(scenario.pipeline_file)
        self.assertEqual("COMMITTED", answer["outcome"], answer)
        latest = getattr(scenario, "latest_by_id", {})
        latest.update({row[0]: row for row in rows})
        scenario.latest_by_id = latest
        return answer, sorted(latest.values())


def varint(number):
    """A length as protobuf writes it."""
    wire = bytearray()
    while number > 127:
        wire.append(number & 127 | 128)
        number >>= 7
    wire.append(number)
    return bytes(wire)
