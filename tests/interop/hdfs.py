# SPDX-License-Identifier: Apache-2.0
"""A real HDFS on loopback, name node and data node in one process, and sources that lie in it."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pyspark

# Ends by itself, should whoever started it not.
LIFETIME_SECONDS = 900
STARTS_WITHIN_SECONDS = 180


class Cluster:
    """An empty HDFS, as long as the `with` block lasts. It can stand in for a bucket: its targets are local."""

    def __enter__(self):
        jars = os.environ.get("HDFS_JARS")
        if not jars:
            raise SystemExit("HDFS_JARS is not set; run tests/interop/setup.sh first")
        self.classpath = f"{jars}:{Path(pyspark.__file__).parent / 'jars'}/*"
        self.java = Path(os.environ["JAVA_HOME"], "bin", "java")
        self.folder = Path(tempfile.mkdtemp(prefix="tributary-hdfs-"))
        # Hadoop's shell does without it only where nothing is said of the file system.
        (self.folder / "core-site.xml").write_text("<configuration/>")
        self.classpath = f"{self.folder}:{self.classpath}"
        arguments = ["-nomr", "-format", "-nnport", "0", "-writeDetails", "details.json"]
        cluster = self._command("org.apache.hadoop.mapreduce.MiniHadoopClusterManager", *arguments)
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                ["timeout", str(LIFETIME_SECONDS), *cluster],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.url = f"hdfs://127.0.0.1:{self._port()}"
        return self

    def __exit__(self, *_):
        # Passed on to the cluster.
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, main, *arguments):
        return [str(self.java), "-XX:+UseSerialGC", "-Xmx256m", "-cp", self.classpath, main, *arguments]

    def _port(self):
        """The name node's port, known when it serves."""
        details = self.folder / "details.json"
        for _ in range(STARTS_WITHIN_SECONDS * 10):
            if self.process.poll() is not None:
                raise AssertionError(f"HDFS did not start:\n{(self.folder / 'log').read_text()}")
            try:
                return json.loads(details.read_text())["namenode_port"]
            except (FileNotFoundError, json.JSONDecodeError):
                time.sleep(0.1)
        raise AssertionError(f"HDFS does not answer:\n{(self.folder / 'log').read_text()}")

    def shell(self, *arguments):
        command = self._command("org.apache.hadoop.fs.FsShell", "-fs", self.url, *arguments)
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, cwd=self.folder)

    def environment(self):
        """What a process needs beside the URL: nothing, the user is whoever runs it."""
        return dict(os.environ)

    def upload(self, scenario):
        """Brings the sources up to date."""
        self.shell("-mkdir", "-p", f"/lake/{scenario.name}")
        folders = [str(Path(scenario.folder, name)) for name in scenario.sources]
        self.shell("-put", "-f", *folders, f"/lake/{scenario.name}")

    def pipeline_file(self, scenario, target="target"):
        """The scenario's pipeline with every source in HDFS."""
        text = scenario.pipeline_file.read_text().replace('path = "target"', f'path = "{target}"')
        for name in scenario.sources:
            text = text.replace(f'path = "{name}"', f'path = "{self.url}/lake/{scenario.name}/{name}"')
        file = scenario.folder / "pipeline-hdfs.toml"
        file.write_text(text)
        return file

    def download_target(self, scenario):
        """It is here already."""
