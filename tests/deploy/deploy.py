# SPDX-License-Identifier: Apache-2.0
"""Checks what is in deploy/: chart, manifests, image, alerts, dashboard, and the ways to run batches from orchestrators.

    TRIBUTARY_BIN=target/release/tributary make deploy-check
    deploy.py [test name ...]

The last line says `N passed, N failed`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Result(unittest.TextTestResult):
    """Counts what passed: a test with a failed part of it did not."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.failed = set()

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.failed.add(test.id())

    def addError(self, test, err):
        super().addError(test, err)
        self.failed.add(test.id())

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.failed.add(test.id())


def prepare_stubs(folder):
    """The gRPC code of the operator, made of proto/ as its README says."""
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "deploy/airflow/make_stubs.sh", folder], check=True, env=environment)
    sys.path[:0] = [str(folder), str(ROOT / "deploy/airflow")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only tests whose name holds one of these texts")
    names = parser.parse_args().names
    missing = [name for name in ("TRIBUTARY_BIN", "HELM", "HADOLINT") if name not in os.environ]
    if missing:
        sys.exit(f"{', '.join(missing)} must be set; `make deploy-check` sets them")
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory(prefix="tributary-stubs-") as stubs:
        prepare_stubs(stubs)
        loader = unittest.TestLoader()
        loader.testNamePatterns = [f"*{name}*" for name in names] or None
        suite = loader.discover(str(HERE), pattern="test_*.py", top_level_dir=str(HERE))
        result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Result).run(suite)
    # A module that cannot be imported counts as a failed test of its own.
    passed = max(result.testsRun - len(result.failed), 0)
    print(f"{passed} passed, {len(result.failed)} failed")
    sys.exit(0 if passed and not result.failed else 1)


if __name__ == "__main__":
    main()
