# SPDX-License-Identifier: Apache-2.0
"""The id of a request, made from what a run of a task is, so that every attempt at it asks for the same batch."""

import hashlib
import uuid


def request_id_of(parts, started):
    """A UUID of version 7: the time is `started` (a `datetime` with a zone), the rest a hash of `parts`.

    The same parts and start give the same id. It carries the time, so a server refuses it once it is older than all that
    the target remembers, instead of running it twice.
    """
    if started.tzinfo is None:
        raise ValueError("the start of a run needs a time zone: without one the id would differ from worker to worker")
    millis = round(started.timestamp() * 1000)
    # Lengths keep ("a", "bc") and ("ab", "c") apart.
    text = "".join(f"{len(str(part))}:{part}" for part in parts)
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    number = (millis & ((1 << 48) - 1)) << 80 | 7 << 76 | (digest & 0xFFF) << 64 | 2 << 62 | (digest >> 64) & ((1 << 62) - 1)
    return str(uuid.UUID(int=number))
