# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile, and the example for Argo Workflows."""

import os
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path

import crds
import kubernetes_validate
from chart import NEWEST, ROOT, read_yaml

DOCKERFILE = ROOT / "deploy/Dockerfile"
WORKFLOW = ROOT / "deploy/argo/workflow.yaml"


def hadolint(text):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "Dockerfile")
        file.write_text(text)
        command = [os.environ["HADOLINT"], "--no-color", "--failure-threshold", "style", str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)


class Dockerfile(unittest.TestCase):
    def test_the_linter_finds_nothing_and_would_find_something(self):
        text = DOCKERFILE.read_text()
        done = hadolint(text)
        self.assertEqual(0, done.returncode, done.stdout)
        broken = hadolint(text.replace("FROM debian:bookworm-slim", "FROM debian"))
        self.assertIn("DL3006", broken.stdout)

    def test_the_image_is_built_by_the_pinned_rust_and_runs_as_nobody(self):
        text = DOCKERFILE.read_text()
        channel = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
        self.assertIn(f"FROM rust:{channel}-bookworm AS build", text)
        self.assertIn(f"ENV RUSTUP_TOOLCHAIN={channel}", text)
        final = text.split("\nFROM ")[-1]
        # The build and the run share one release of Debian, and so its C library.
        self.assertTrue(final.startswith("debian:bookworm-slim\n"), final.splitlines()[0])
        self.assertIn("\nUSER 65532:65532\n", final)
        self.assertNotIn("RUN ", final)

    def test_what_the_build_does_not_get_is_not_needed_by_it(self):
        ignored = (ROOT / "deploy/Dockerfile.dockerignore").read_text().split()
        manifests = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
        self.assertEqual(["crates/*", "tests"], manifests)
        for needed in ("crates", "tests", "proto", "Cargo.toml", "Cargo.lock"):
            self.assertNotIn(needed, ignored)


class Argo(unittest.TestCase):
    def setUp(self):
        self.documents = read_yaml(WORKFLOW.read_text())
        self.workflow = next(document for document in self.documents if document["kind"] == "CronWorkflow")

    def test_every_object_is_one_that_is_known_field_by_field(self):
        for document in self.documents:
            if document["kind"] in crds.MODELS:
                crds.check(document)
            else:
                kubernetes_validate.validate(document, NEWEST, strict=True)
        self.workflow["spec"]["workflowSpec"]["templates"][0]["retryStrategie"] = {}
        with self.assertRaisesRegex(ValueError, "retryStrategie"):
            crds.check(self.workflow)

    def test_steps_name_templates_that_exist_and_the_pipeline_of_the_map(self):
        spec = self.workflow["spec"]["workflowSpec"]
        names = {template["name"] for template in spec["templates"]}
        self.assertLessEqual({spec["entrypoint"], spec["onExit"]}, names)
        for template in spec["templates"]:
            for group in template.get("steps", []):
                self.assertLessEqual({step["template"] for step in group}, names)
        config = next(document for document in self.documents if document["kind"] == "ConfigMap")
        pipeline = tomllib.loads(config["data"]["pipeline.toml"])
        self.assertIn(pipeline["transform"][0]["sql_file"], config["data"])
        cancel = next(template for template in spec["templates"] if template["name"] == "cancel")
        self.assertIn(f"{pipeline['name']}/{{{{workflow.uid}}}}", cancel["container"]["args"])
