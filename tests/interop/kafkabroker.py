# SPDX-License-Identifier: Apache-2.0
"""A real Apache Kafka broker on loopback (KRaft, one node), and a client that writes to it."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4000000
log.retention.check.interval.ms=1000
delete.topic.enable=true
"""


class KafkaBroker:
    """A broker as long as the `with` block lasts."""

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tributary-kafka-"))
        self.port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{self.port}"
        properties = self.folder / "server.properties"
        properties.write_text(
            PROPERTIES.format(port=self.port, controller=controller, logs=self.folder / "logs")
        )
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)).wait(120)
        self.process = self._java("kafka.Kafka", str(properties))
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self._wait_until_it_answers()
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _java(self, main, *arguments):
        java = Path(os.environ["JAVA_HOME"], "bin", "java")
        libraries = os.environ["KAFKA_LIBRARIES"]
        command = [str(java), "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{libraries}/*", main, *arguments]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _wait_until_it_answers(self):
        until = time.monotonic() + 120
        while True:
            try:
                self.admin.list_topics(timeout=5)
                return
            except KafkaException as error:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise AssertionError(f"no broker: {error}\n{(self.folder / 'log').read_text()}") from error

    # -- topics ---------------------------------------------------------------------------

    def create(self, topic, partitions=1, **config):
        config = {key.replace("_", "."): str(value) for key, value in config.items()}
        until = time.monotonic() + 60
        while True:
            try:
                _done(self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)]))
                return
            except KafkaException as error:
                # One of that name is still being deleted.
                if "already exists" not in str(error) or time.monotonic() > until:
                    raise

    def delete(self, topic):
        _done(self.admin.delete_topics([topic]))

    def grow(self, topic, partitions):
        _done(self.admin.create_partitions([NewPartitions(topic, partitions)]))

    def expire(self, topic, partition, before):
        """Deletes messages before an offset, as retention does."""
        _done(self.admin.delete_records([TopicPartition(topic, partition, before)]))

    def compacted(self, topic, partition, left):
        """Waits until the cleaner has left at most so many messages."""
        until = time.monotonic() + 120
        while len(self.offsets(topic, partition)) > left:
            if time.monotonic() > until:
                raise AssertionError(f"not compacted: {self.offsets(topic, partition)}")

    def offsets(self, topic, partition):
        """Offsets of the messages that any client reads."""
        settings = {"bootstrap.servers": self.address, "group.id": str(uuid.uuid4()), "enable.auto.commit": False}
        consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
        found = []
        try:
            low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            consumer.assign([TopicPartition(topic, partition, low)])
            while True:
                message = consumer.poll(10)
                if message is None or message.error():
                    return found
                found.append(message.offset())
        finally:
            consumer.close()

    # -- messages -------------------------------------------------------------------------

    def send(self, topic, messages, compression="none", transaction=None, commit=True):
        """Appends `(partition, key, value)` messages; in a transaction, which is then over."""
        settings = {"bootstrap.servers": self.address, "compression.type": compression, "linger.ms": 20}
        if transaction:
            settings["transactional.id"] = transaction
        producer = Producer(settings)
        if transaction:
            producer.init_transactions(30)
            producer.begin_transaction()
        failed = []
        for partition, key, value in messages:
            producer.produce(
                topic, value, key, partition, on_delivery=lambda e, _: failed.append(e) if e else None
            )
            producer.poll(0)
        producer.flush(60)
        if failed:
            raise AssertionError(f"not written: {failed[0]}")
        if transaction and commit:
            producer.commit_transaction(60)
        elif transaction:
            producer.abort_transaction(60)
        if transaction:
            self._settle(topic)

    def _settle(self, topic):
        """Waits for the markers of transactions: they are written after the client was answered."""
        partitions = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}
        until = time.monotonic() + 60

        def ends(level):
            found = self.admin.list_offsets(asked, isolation_level=level)
            return sorted((place.partition, future.result(60).offset) for place, future in found.items())

        while ends(IsolationLevel.READ_COMMITTED) != ends(IsolationLevel.READ_UNCOMMITTED):
            if time.monotonic() > until:
                raise AssertionError(f"a transaction of {topic} stays open")


def _done(futures):
    for future in futures.values():
        future.result(60)


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
