# SPDX-License-Identifier: Apache-2.0
"""`tributary serve` of the binary under test, on free ports of loopback."""

import json
import os
import subprocess
import tempfile
import urllib.request
import zipfile
from pathlib import Path

from chart import ROOT


class Server:
    """A server in a process of its own. Ended by `stop`, or killed with `kill`."""

    def __init__(self, *arguments, listen="127.0.0.1:0"):
        self.log = tempfile.TemporaryFile(mode="w+")
        command = [os.environ["TRIBUTARY_BIN"], "serve", f"--listen={listen}", "--http-listen=127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.address = self._said("listening on ")
        self.http = self._said("http on ")

    def _said(self, what):
        line = self.process.stdout.readline()
        if not line.startswith(what):
            self.process.wait(timeout=60)
            self.log.seek(0)
            raise AssertionError(f"the server did not start: {line!r}\n{self.log.read()}")
        return line.removeprefix(what).strip()

    @property
    def url(self):
        return f"http://{self.address}"

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=60) as answer:
            return answer.read().decode()

    def stop(self):
        """Ends it as Kubernetes does; answers its exit code."""
        self.process.terminate()
        return self._ended()

    def kill(self):
        self.process.kill()
        return self._ended()

    def _ended(self):
        code = self.process.wait(timeout=120)
        self.process.stdout.close()
        self.log.close()
        return code


def command_line(*arguments):
    """A command of the binary: exit code, standard output, standard error."""
    done = subprocess.run([os.environ["TRIBUTARY_BIN"], *map(str, arguments)], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def batches(url):
    code, stdout, stderr = command_line("batches", "list", "--server", url, "--output", "json")
    if code != 0:
        raise AssertionError(stderr)
    return [json.loads(line) for line in stdout.splitlines()]


class Lake:
    """A folder with the demo's source tables and pipelines."""

    def __init__(self, folder):
        self.folder = Path(folder)
        for file in (ROOT / "tests/demo").glob("*.*"):
            if file.suffix in (".toml", ".sql"):
                (self.folder / file.name).write_text(file.read_text())
        self.advance(1)

    def advance(self, number):
        with zipfile.ZipFile(ROOT / f"tests/fixtures/demo/round{number}.zip") as archive:
            archive.extractall(self.folder)

    def pipeline(self, name):
        return self.folder / f"{name}.toml"
