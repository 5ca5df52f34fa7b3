# SPDX-License-Identifier: Apache-2.0
"""A server of the binary under test, and pulling a batch from it with pyarrow."""

import json
import subprocess
import tempfile

import pyarrow.flight as flight


class Server:
    """`tributary serve` on a free port of loopback, as long as the `with` block lasts."""

    def __init__(self, binary):
        self.binary = binary

    def __enter__(self):
        command = [self.binary, "serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.log.seek(0)
            raise AssertionError(f"the server did not start: {line!r}\n{self.log.read()}")
        self.address = line.removeprefix("listening on ").strip()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.process.stdout.close()
        self.log.close()

    def run(self, pipeline_file):
        url = f"http://{self.address}"
        command = [self.binary, "run", "--server", url, "--pipeline", str(pipeline_file), "--output", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)

    def pull(self, batch):
        """Schema and record batches of a committed batch, from every endpoint that the server names."""
        with flight.connect(f"grpc://{self.address}") as client:
            info = client.get_flight_info(flight.FlightDescriptor.for_path(f"batch:{batch}"))
            tables = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
        return info.schema, [piece for table in tables for piece in table.to_batches()]

    def pull_error(self, batch):
        """What the client is told when a batch cannot be pulled."""
        try:
            self.pull(batch)
        except flight.FlightError as error:
            return str(error)
        except KeyError as error:  # pyarrow's form of NOT_FOUND
            return str(error)
        raise AssertionError(f"{batch} could be pulled")
