# SPDX-License-Identifier: Apache-2.0
"""The operator for Airflow, against a running server. Airflow itself is not installed."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

from chart import ROOT
from server import Lake, Server, batches, command_line
from tributary_airflow.client import Client, outcome_of
from tributary_airflow.operator import TributaryBatchOperator
from tributary_airflow.pipeline_file import PipelineFileError, load_pipeline
from tributary_airflow.request_id import request_id_of
from tributary_airflow.without_airflow import AirflowException, AirflowFailException, AirflowSkipException

STARTED = datetime(2025, 6, 6, 18, 28, 26, 197000, tzinfo=timezone.utc)

# Hours of work over any table: what it reads is small, what it makes of it is not.
ENDLESS = """
name = "endless"
[[source]]
name = "orders"
path = "orders"
start = "snapshot"
[[transform]]
sql = "SELECT a.order_id, count(*) AS n, sum((b.amount + k.amount)) AS s FROM <SRC:orders> a, {} GROUP BY a.order_id"
[target]
path = "lake/endless"
table_name = "endless"
record_key = ["order_id"]
""".format(", ".join(f"<SNAP:orders> {alias}" for alias in "bcdefghijk"))

# A value for every key that a pipeline file of these kinds can have.
FULL = """
name = "full"
consistency = "independent"
accept_binding_change = true
[[source]]
name = "orders"
kind = "hudi"
path = "orders"
read = "incremental"
start = "latest"
num_instants = 7
on_stale = "fail"
on_hole = "fail"
on_late_instant = "deliver"
on_malformed_cursor = "start"
skip_on_schema_failure = true
meta_columns = true
unused = "allow"
[[source]]
name = "notes"
kind = "csv"
path = "notes"
start = "earliest"
[source.files]
recursive = false
glob = "*.csv"
order = "name"
max_files = 10
max_bytes = "5MiB"
late_window = "2h"
on_late = "warn"
on_changed = "reread"
quiet = "0s"
schema_file = "notes.avsc"
unknown_columns = "ignore"
[source.csv]
preset = "spark"
header = true
sep = ","
[[transform]]
sql_file = "full.sql"
[target]
path = "lake/full"
table_name = "full"
table_type = "copy_on_write"
table_version = 9
record_key = ["order_id"]
partition_by = ["kind"]
ordering = ["note"]
operation = "upsert"
acknowledge_window_only = true
writers = "exclusive"
on_null_key = "drop"
hive_style = false
small_file_limit = "1MiB"
max_file_size = 2000000
[target.services]
clean_commits = 4
archive_commits = 12
compact_metadata_commits = 5
compact_delta_commits = 3
[limits]
memory = "256MiB"
spill = "1GiB"
timeout = "90s"
"""


def context(run_id="scheduled__2025-06-06", task_id="merge", started=STARTED):
    task = SimpleNamespace(dag_id="orders", run_id=run_id, task_id=task_id, map_index=-1)
    return {"dag_run": SimpleNamespace(start_date=started, queued_at=None), "ti": task}


class RequestIds(unittest.TestCase):
    def test_an_id_is_the_same_for_the_same_run_carries_its_time_and_differs_otherwise(self):
        one = request_id_of(("dag", "run", "task", -1), STARTED)
        self.assertEqual(one, request_id_of(("dag", "run", "task", -1), STARTED))
        parsed = uuid.UUID(one)
        self.assertEqual((7, uuid.RFC_4122), (parsed.version, parsed.variant))
        self.assertEqual(round(STARTED.timestamp() * 1000), parsed.int >> 80)
        others = [(("dag", "run", "task", 0), STARTED), (("dag", "run2", "task", -1), STARTED),
                  (("da", "grun", "task", -1), STARTED), (("dag", "run", "task", -1), STARTED + timedelta(seconds=1))]
        ids = {request_id_of(*other) for other in others}
        self.assertEqual(len(others), len(ids))
        self.assertNotIn(one, ids)

    def test_a_start_without_a_zone_is_refused(self):
        with self.assertRaisesRegex(ValueError, "time zone"):
            request_id_of(("dag",), STARTED.replace(tzinfo=None))


class PipelineFiles(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tributary-files-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def refused(self, text):
        file = self.folder / "p.toml"
        file.write_text(text)
        with self.assertRaises(PipelineFileError) as refused:
            load_pipeline(file)
        self.assertIn(str(file), str(refused.exception))
        return str(refused.exception)

    def test_a_wrong_file_is_refused_with_its_place_and_what_to_write(self):
        self.assertIn("did you mean `record_key`", self.refused('[target]\nrecord_keys = ["id"]\n'))
        self.assertIn("`source[0].starts`", self.refused('[[source]]\nname = "s"\nstarts = "latest"\n'))
        self.assertIn("512MiB", self.refused('[limits]\nmemory = "1 gigabyte"\n'))
        self.assertIn("90s", self.refused("[limits]\ntimeout = 90\n"))
        self.assertIn("upsert, insert", self.refused('[target]\noperation = "merge"\n'))
        self.assertIn("a list is needed", self.refused('[target]\nrecord_key = "id"\n'))
        self.assertIn("latest", self.refused('[[source]]\nstart = "newest:1"\n'))
        self.assertIn("gone.sql", self.refused('[[transform]]\nsql_file = "gone.sql"\n'))
        self.assertIn("line 1", self.refused("name = \n"))


class Operator(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix="tributary-operator-")
        self.addCleanup(shutil.rmtree, folder)
        self.lake = Lake(folder)
        self.server = None

    def serve(self, *arguments, **named):
        self.server = Server(f"--data-dir={self.lake.folder}/data", *arguments, **named)
        self.addCleanup(lambda server: server.process.poll() is None and server.kill(), self.server)
        return self.server

    def operator(self, name="orders_enriched", **settings):
        server = settings.pop("server", None) or self.server.url
        return TributaryBatchOperator(
            task_id="merge", server=server, pipeline_file=str(self.lake.pipeline(name)), **settings)

    def test_an_encrypted_server_that_asks_takes_the_token_of_a_file(self):
        # What docs/security.md says to do, as it says it.
        page = (ROOT / "docs/security.md").read_text()
        certificate, token = re.findall(r"^```\n(openssl .*?)^```", page, re.M | re.S)[:2]
        done = subprocess.run(["bash", "-euc", certificate + token], cwd=self.lake.folder, capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)
        token_hash = done.stdout.split()[0]
        auth, ca, token = (str(self.lake.folder / name) for name in ("auth.toml", "ca.pem", "airflow.token"))
        Path(auth).write_text(
            f'[[principal]]\nname = "airflow"\nrole = "operator"\ntoken_sha256 = ["{token_hash}"]\n')
        folder = self.lake.folder
        server = Server(f"--tls-cert={folder}/server.pem", f"--tls-key={folder}/server.key", f"--auth-file={auth}")
        self.addCleanup(server.kill)
        url = f"https://{server.address}"
        answer = self.operator(server=url, ca_file=ca, token_file=token).execute(context())
        self.assertEqual("COMMITTED", answer["outcome"])
        code, stdout, stderr = command_line("batches", "list", "--server", url, "--tls-ca", ca, "--token-file", token)
        self.assertEqual(0, code, stderr)
        self.assertIn("as airflow from", command_line(
            "batches", "get", answer["batch"], "--server", url, "--tls-ca", ca, "--token-file", token,
            "--output", "json")[1])
        with self.assertRaisesRegex(AirflowFailException, "CREDENTIALS_MISSING"):
            self.operator(server=url, ca_file=ca).execute(context())
        with self.assertRaisesRegex(ValueError, "in the clear"):
            self.operator(server=f"http://{server.address}", token_file=token).execute(context())

    def write(self, name, text):
        self.lake.pipeline(name).write_text(text)

    def vary(self, name, text, other):
        """The demo's pipeline under another name, with another text in one place."""
        whole = self.lake.pipeline("orders_enriched").read_text()
        self.assertIn(text, whole)
        self.write(name, whole.replace(text, other).replace('name = "orders_enriched"', f'name = "{name}"', 1))

    def wait_until(self, outcome, name):
        """Follows a batch until it ends, and compares how."""
        client = Client(self.server.url)
        self.addCleanup(client.close)
        deadline = client.clock() + 120
        ended = client._follow(client.get(name), deadline, None)
        self.assertEqual(outcome, outcome_of(ended), ended.error.message)

    def in_background(self, operator):
        """Runs the operator in a thread; what it answered or raised is in the list that is returned."""
        ended = []

        def run():
            try:
                ended.append(operator.execute(context()))
            except Exception as error:
                ended.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, ended

    def wait_for_batch(self, name):
        """Waits until the server knows the batch and it runs."""
        client = Client(self.server.url)
        self.addCleanup(client.close)
        give_up = client.clock() + 60
        while client.clock() < give_up:
            running = [batch for batch in batches(self.server.url) if batch["batch"] == name and not batch.get("outcome")]
            if running:
                return
            threading.Event().wait(0.05)
        self.fail(f"{name} never ran: {batches(self.server.url)}")

    def test_a_run_commits_a_second_attempt_gets_the_same_batch_and_nothing_new_is_no_failure(self):
        self.serve()
        first = self.operator().execute(context())
        self.assertEqual("COMMITTED", first["outcome"])
        self.assertGreater(first["rows"], 0)
        self.assertEqual(["orders", "users"], [source["source"] for source in first["sources"]])
        json.dumps(first)
        self.assertEqual(first, self.operator().execute(context()))
        self.assertEqual("NO_NEW_DATA", self.operator().execute(context(run_id="next"))["outcome"])
        with self.assertRaisesRegex(AirflowSkipException, "no source had news"):
            self.operator(skip_on_no_new_data=True).execute(context(run_id="after"))
        self.lake.advance(2)
        second = self.operator().execute(context(run_id="later"))
        self.assertEqual("COMMITTED", second["outcome"])
        self.assertNotEqual(first["instant"], second["instant"])
        known = batches(self.server.url)
        self.assertEqual(4, len(known))
        self.assertIn("Airflow orders.merge run later", known[0]["asked_by"])
        # An answer that outlives the server.
        self.assertEqual(0, self.server.stop())
        self.serve()
        again = self.operator().execute(context(run_id="later"))
        self.assertEqual((second["batch"], second["instant"]), (again["batch"], again["instant"]))

    def test_a_pipeline_is_the_one_that_the_command_line_makes_of_the_file(self):
        (self.lake.folder / "notes").mkdir()
        (self.lake.folder / "notes/1.csv").write_text("order_id,note,kind\nn1,hello,a\n")
        fields = [{"name": name, "type": ["null", "string"]} for name in ("order_id", "note", "kind")]
        (self.lake.folder / "notes.avsc").write_text(json.dumps({"type": "record", "name": "note", "fields": fields}))
        (self.lake.folder / "full.sql").write_text("SELECT order_id, note, kind FROM <SRC:notes>")
        self.write("full", FULL)
        self.serve()
        for name in ("orders_enriched", "user_activity", "full"):
            operator = self.operator(name)
            batch = operator.execute(context())
            self.assertEqual("COMMITTED", batch["outcome"], batch)
            request = operator.request_id(context(), name)
            # The server refuses an id that is used again with another definition.
            asked = ("run", "--server", self.server.url, "--request-id", request, "--output", "json", "--pipeline")
            code, stdout, stderr = command_line(*asked, self.lake.pipeline(name))
            self.assertEqual(0, code, f"{name}: {stdout}{stderr}")
            self.assertEqual(batch["instant"], json.loads(stdout)["instant"])
            text = self.lake.pipeline(name).read_text()
            self.write(name, text.replace('table_name = "', 'table_name = "other_'))
            code, stdout, stderr = command_line(*asked, self.lake.pipeline(name))
            self.assertEqual(2, code, stdout + stderr)
            self.assertIn("another definition", stderr)

    def test_what_no_repetition_mends_fails_the_task_for_good(self):
        self.serve()
        self.vary("nowhere", 'path = "orders"', 'path = "gone"')
        with self.assertRaisesRegex(AirflowFailException, "TABLE_NOT_FOUND"):
            self.operator("nowhere").execute(context())
        self.vary("invalid", '["order_id"]', "[]")
        with self.assertRaisesRegex(AirflowFailException, "PIPELINE_INVALID: .*record_key"):
            self.operator("invalid").execute(context())
        self.write("misspelt", "nmae = 'p'")
        with self.assertRaisesRegex(AirflowFailException, "did you mean `name`"):
            self.operator("misspelt").execute(context())
        self.operator().execute(context())
        text = self.lake.pipeline("orders_enriched").read_text()
        self.write("orders_enriched", text.replace('ordering = ["updated_at"]', ""))
        with self.assertRaisesRegex(AirflowFailException, "REQUEST_REUSED"):
            self.operator().execute(context())

    def test_what_a_repetition_may_mend_fails_the_attempt_only(self):
        # Nothing listens on this port, as long as it is held.
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            store = {"AWS_ENDPOINT": f"http://127.0.0.1:{held.getsockname()[1]}", "AWS_ALLOW_HTTP": "true",
                     "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
            before = {key: os.environ.get(key) for key in store}
            os.environ.update(store)
            try:
                self.serve("--store-timeout=1s")
            finally:
                for key, value in before.items():
                    os.environ.pop(key) if value is None else os.environ.update({key: value})
            self.vary("away", 'path = "orders"', 'path = "s3://away/orders"')
            with self.assertRaisesRegex(AirflowException, "STORE_UNAVAILABLE") as failed:
                self.operator("away").execute(context())
            self.assertNotIsInstance(failed.exception, AirflowFailException)

    def test_a_batch_outlives_the_worker_the_next_attempt_joins_it_and_a_killed_task_cancels_it(self):
        self.write("endless", ENDLESS)
        self.serve()
        operator = self.operator("endless")
        name = f"endless/{operator.request_id(context(), 'endless')}"
        # A worker is a process of its own; this one dies without a word.
        code = ("import sys; sys.path[:0] = sys.argv[1:3]\n"
                "import test_operator as t\n"
                "from tributary_airflow.operator import TributaryBatchOperator as Operator\n"
                "Operator(task_id='merge', pipeline_file=sys.argv[3], server=sys.argv[4]).execute(t.context())\n")
        here = str(Path(__file__).parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        worker = subprocess.Popen([sys.executable, "-B", "-c", code, here, here, str(self.lake.pipeline("endless")),
                                   self.server.url], env=environment)
        self.wait_for_batch(name)
        worker.send_signal(signal.SIGKILL)
        worker.wait(timeout=60)
        thread, ended = self.in_background(operator)
        self.wait_for_batch(name)
        while operator.batch_name is None:
            threading.Event().wait(0.01)
        self.assertEqual(1, len(batches(self.server.url)), "one batch, whoever follows it")
        operator.on_kill()
        thread.join(timeout=120)
        self.assertIsInstance(ended[0], AirflowFailException)
        self.assertIn("CANCELLED", str(ended[0]))
        self.wait_until("CANCELLED", name)
        self.assertEqual(1, len(batches(self.server.url)))

    def test_killing_a_task_whose_batch_never_began_is_no_error(self):
        self.serve()
        operator = self.operator()
        operator.on_kill()
        operator.batch_name = "orders_enriched/never"
        operator.on_kill()

    def test_a_batch_that_takes_too_long_is_cancelled_and_the_attempt_fails(self):
        self.write("endless", ENDLESS)
        self.serve()
        operator = self.operator("endless", timeout=timedelta(seconds=3))
        with self.assertRaisesRegex(AirflowException, "did not end within 0:00:03 and was cancelled"):
            operator.execute(context())
        self.wait_until("CANCELLED", operator.batch_name)
        left = self.operator("endless", timeout=timedelta(seconds=3), cancel_on_timeout=False)
        with self.assertRaisesRegex(AirflowException, "it goes on"):
            left.execute(context())
        self.wait_for_batch(left.batch_name)

    def test_a_server_that_is_away_or_restarts_is_asked_again_until_it_answers(self):
        self.write("endless", ENDLESS)
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{held.getsockname()[1]}"
        thread, ended = self.in_background(self.operator(server=f"http://{address}"))
        self.serve(listen=address)
        thread.join(timeout=120)
        self.assertEqual("COMMITTED", ended[0]["outcome"], ended)
        operator = self.operator("endless")
        thread, ended = self.in_background(operator)
        name = f"endless/{operator.request_id(context(), 'endless')}"
        self.wait_for_batch(name)
        self.server.kill()
        self.serve(listen=address)
        # The same id, so the batch that the kill cut off is run again under its name.
        self.wait_for_batch(name)
        self.assertTrue(thread.is_alive(), ended)
        operator.on_kill()
        thread.join(timeout=120)
        self.assertIn("CANCELLED", str(ended[0]))
