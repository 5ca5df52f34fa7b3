# SPDX-License-Identifier: Apache-2.0
"""The arguments that the chart gives to the binary, given to the binary."""

import re
import shutil
import tempfile
import threading
import time
import unittest
import urllib.error

import metrics
from chart import VALUES, of_kind, pod_of, render
from server import Lake, Server, batches, command_line
from test_monitoring import queries

# Directories of files have metrics of their own.
NOTES = """
name = "notes"
[[source]]
name = "notes"
kind = "csv"
path = "notes"
start = "earliest"
csv = {header = true}
[target]
path = "lake/notes"
table_name = "notes"
record_key = ["order_id"]
"""


class Cluster(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix="tributary-cluster-")
        self.addCleanup(shutil.rmtree, folder)
        self.lake = Lake(folder)
        (self.lake.folder / "notes").mkdir()
        (self.lake.folder / "notes/1.csv").write_text("order_id,note\nn1,hello\n")
        self.lake.pipeline("notes").write_text(NOTES)
        self.servers = {}

    def start(self, values):
        """Starts what a rendered chart would, each process after those that it calls."""
        waiting = {}
        for workload in of_kind(render(VALUES / values), "StatefulSet", "Deployment"):
            arguments = pod_of(workload)["containers"][0]["args"]
            self.assertEqual("serve", arguments[0])
            waiting[workload["metadata"]["name"]] = arguments[1:]
        while waiting:
            called = {name: re.findall(r"http://([a-z-]+):7373", " ".join(arguments)) for name, arguments in waiting.items()}
            name = next(name for name, needed in called.items() if set(needed) <= set(self.servers))
            server = Server(*(self.here(name, argument) for argument in waiting.pop(name)
                              if not re.match(r"--(http-)?listen=0\.0\.0\.0:", argument)))
            self.addCleanup(lambda server: server.process.poll() is None and server.kill(), server)
            self.servers[name] = server
        # The service that clients call has the name of the release.
        return self.servers["tributary"]

    def here(self, name, argument):
        """An argument with addresses and folders of this machine."""
        if argument.startswith("--data-dir="):
            return f"--data-dir={self.lake.folder}/data-{name}"
        return re.sub(r"http://([a-z-]+):7373", lambda found: self.servers[found[1]].url, argument)

    def wait_until_ready(self, server):
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            try:
                return self.assertEqual("ready\n", server.get("/readyz"))
            except urllib.error.HTTPError as error:
                said = error.read().decode()
            threading.Event().wait(0.1)
        self.fail(said)

    def run_pipelines(self, front):
        for name in ("orders_enriched", "user_activity", "notes"):
            code, stdout, stderr = command_line(
                "run", "--server", front.url, "--pipeline", self.lake.pipeline(name), "--output", "json")
            self.assertEqual(0, code, f"{name}: {stdout}{stderr}")
        self.assertEqual(["COMMITTED"] * 3, [batch["outcome"] for batch in batches(front.url)])

    def stop_all(self):
        # Those that call others first.
        for server in reversed(self.servers.values()):
            self.assertEqual(0, server.stop())

    def test_the_roles_of_the_chart_find_each_other_run_batches_and_stop(self):
        front = self.start("roles.yaml")
        self.assertEqual(6, len(self.servers))
        for server in self.servers.values():
            self.assertEqual("live\n", server.get("/livez"))
            self.wait_until_ready(server)
        self.run_pipelines(front)
        for name, server in self.servers.items():
            series = metrics.scraped(server.get("/metrics"))
            self.assertIn("tributary_build_info", {series[0] for series in series}, name)
        self.servers["tributary-writer"].kill()
        with self.assertRaises(urllib.error.HTTPError) as down:
            give_up = time.monotonic() + 60
            while time.monotonic() < give_up:
                self.servers["tributary-merge"].get("/readyz")
                threading.Event().wait(0.1)
        self.assertEqual(503, down.exception.code)
        self.assertIn("writer", down.exception.read().decode())
        del self.servers["tributary-writer"]
        self.stop_all()

    def test_one_process_exports_a_series_for_every_query_of_alerts_and_dashboard(self):
        front = self.start("all-in-one.yaml")
        self.wait_until_ready(front)
        self.run_pipelines(front)
        series = metrics.scraped(front.get("/metrics"))
        known = metrics.documented()
        for where, text in queries():
            for name, matchers in metrics.selectors(text):
                if known[metrics.metric_of(name, known)][1] == "event":
                    continue
                found = [one for one in series if metrics.matches(one, name, matchers)]
                self.assertTrue(found, f"{where}: no series for {name}{matchers}")
        self.stop_all()
