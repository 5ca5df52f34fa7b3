# SPDX-License-Identifier: Apache-2.0
"""An S3-compatible store on loopback, and scenarios whose tables lie in it.

Spark writes and reads on the local disk; whole tables are copied into the bucket before a
batch and out of it behind, so what is compared is what `tributary` read and wrote over S3.
"""

import logging
import os
import shutil
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "lake"
KEYS = {"aws_access_key_id": "interop", "aws_secret_access_key": "interop"}


class Bucket:
    """An empty bucket, as long as the `with` block lasts."""

    def __enter__(self):
        # One line for each request would bury the tests' own.
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.client = boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", **KEYS)
        self.client.create_bucket(Bucket=BUCKET)
        return self

    def __exit__(self, *_):
        # The store lives in this process: without this the next bucket would not be empty.
        for key in self.keys(""):
            self.client.delete_object(Bucket=BUCKET, Key=key)
        self.client.delete_bucket(Bucket=BUCKET)
        self.server.stop()

    def environment(self):
        """What a process needs to find the store."""
        settings = {key.upper(): value for key, value in KEYS.items()}
        return os.environ | settings | {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def keys(self, prefix):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def read(self, key):
        return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def write(self, key, body):
        self.client.put_object(Bucket=BUCKET, Key=key, Body=body)

    def upload(self, scenario):
        """Brings the sources up to date; files of a Hudi table never change, so new ones suffice."""
        known = set(self.keys(f"{scenario.name}/"))
        for name in scenario.sources:
            for file in sorted(Path(scenario.folder, name).rglob("*")):
                key = f"{scenario.name}/{file.relative_to(scenario.folder)}"
                # Java's checksum files mean nothing in a bucket.
                if file.is_file() and not file.name.endswith(".crc"):
                    if key not in known or file.name == "hoodie.properties":
                        self.write(key, file.read_bytes())

    def download_target(self, scenario):
        target = Path(scenario.target.path)
        shutil.rmtree(target, ignore_errors=True)
        for key in self.keys(f"{scenario.name}/target/"):
            file = scenario.folder / key.removeprefix(f"{scenario.name}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.read(key))

    def pipeline_file(self, scenario):
        """The scenario's pipeline with every table in the bucket."""
        text = scenario.pipeline_file.read_text()
        for name in [*scenario.sources, "target"]:
            text = text.replace(f'path = "{name}"', f'path = "s3://{BUCKET}/{scenario.name}/{name}"')
        file = scenario.folder / "pipeline-s3.toml"
        file.write_text(text)
        return file


class JavaLock:
    """The lock file as Hudi's `StorageBasedLockProvider` writes and reads it, by its own classes."""

    def __init__(self, spark):
        models = spark._jvm.org.apache.hudi.client.transaction.lock.models
        self.file, self.data = models.StorageLockFile, models.StorageLockData
        self.stream = spark._jvm.java.io.ByteArrayInputStream

    def read(self, body):
        found = self.file.createFromStream(self.stream(body), "1")
        return found.isExpired(), found.getValidUntilMs(), found.getOwner()

    def write(self, expired, valid_until_ms, owner):
        return bytes(self.file.toByteArray(self.data(expired, valid_until_ms, owner)))
