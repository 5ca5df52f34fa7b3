# SPDX-License-Identifier: Apache-2.0
"""Renders the chart and reads what comes out."""

import os
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/chart"
VALUES = Path(__file__).resolve().parent / "values"
RELEASE = "tributary"
# The Kubernetes that the chart says it needs at least, and the newest whose schemas are there.
OLDEST, NEWEST = "1.27.0", "1.37.0"


class UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that is there twice is an error, not the last one."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"keys twice: {sorted(twice)}", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(text):
    """Every document of the text that is not empty."""
    return [document for document in yaml.load_all(text, UniqueKeys) if document is not None]


def helm(*arguments):
    return subprocess.run([os.environ["HELM"], *map(str, arguments)], capture_output=True, text=True, timeout=120)


def template(*values):
    """The manifests as text; `values` are files or `key=value`."""
    arguments = []
    for value in values:
        arguments += ["-f", value] if isinstance(value, Path) else ["--set", value]
    done = helm("template", RELEASE, CHART, "--namespace", RELEASE, "--kube-version", NEWEST, *arguments)
    if done.returncode != 0:
        raise AssertionError(f"helm template {values}: {done.stderr}")
    return done.stdout


def render(*values):
    """The manifests as objects."""
    return read_yaml(template(*values))


def value_files():
    return sorted(VALUES.glob("*.yaml"))


def of_kind(documents, *kinds):
    return [document for document in documents if document["kind"] in kinds]


def pod_of(workload):
    return workload["spec"]["template"]["spec"]
