# SPDX-License-Identifier: Apache-2.0
"""Pipeline files as `tributary run` reads them, made into the message that a server takes.

Keys are matched with the fields of the message, so a key that the .proto files do not know is refused here; what values
mean is checked by the server, which lists every problem. Paths are as the server sees them: a relative one is relative
to the pipeline file, which helps only where both are on one machine.
"""

import difflib
import json
import os
import re
import tomllib
from pathlib import Path

from tributary.common.v1 import common_pb2
from tributary.coordinator.v1 import coordinator_pb2

SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
         "KB": 10**3, "MB": 10**6, "GB": 10**9}
MILLIS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}

# Keys of the file that have another name in the message.
RENAMED = {
    "Pipeline": {"source": "sources", "transform": "transforms"},
    "Target": {"small_file_limit": "small_file_bytes", "max_file_size": "max_file_bytes"},
    "Limits": {"memory": "memory_bytes", "spill": "spill_bytes"},
}


class PipelineFileError(ValueError):
    """A pipeline file that cannot be used; the text says where and why."""


def load_pipeline(path):
    """The pipeline in the file, with its SQL and schemas read into it, as a `tributary.coordinator.v1.Pipeline`."""
    path = Path(os.path.abspath(path))
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineFileError(f"{path}: {error}") from error
    try:
        return _pipeline(table, path.parent)
    except (PipelineFileError, OSError) as error:
        raise PipelineFileError(f"{path}: {error}") from error


def _pipeline(table, folder):
    message = coordinator_pb2.Pipeline()
    for transform in table.get("transform", []):
        if "sql_file" in transform:
            transform["sql"] = (folder / transform.pop("sql_file")).read_text(encoding="utf-8")
    for source in table.get("source", []):
        _resolve(source, folder)
        files = source.get("files", {})
        if "schema_file" in files:
            files["schema"] = (folder / files.pop("schema_file")).read_text(encoding="utf-8")
    _resolve(table.get("target", {}), folder)
    _fill(message, table, "")
    return message


def _resolve(table, folder):
    path = table.get("path")
    if isinstance(path, str) and not re.match(r"^[^/]*://", path):
        table["path"] = os.path.join(folder, path)


def _fill(message, table, where):
    fields = message.DESCRIPTOR.fields_by_name
    renamed = RENAMED.get(message.DESCRIPTOR.name, {})
    known = {key for key in fields if key not in renamed.values()} | set(renamed)
    for key, value in table.items():
        place = f"{where}{key}"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise PipelineFileError(f"unknown key `{place}`{hint}")
        field = fields[renamed.get(key, key)]
        try:
            _set(message, field, value, place)
        except (TypeError, AttributeError, ValueError) as error:
            if isinstance(error, PipelineFileError):
                raise
            raise PipelineFileError(f"`{place}`: {value!r} is no value for it") from error


def _is_repeated(field):
    # Newer releases of protobuf have the property, older ones the label only.
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _set(message, field, value, place):
    if _is_repeated(field) and not isinstance(value, list):
        raise PipelineFileError(f"`{place}` is {value!r}: a list is needed")
    if _is_repeated(field) and field.message_type is not None:
        for number, table in enumerate(value):
            _fill(getattr(message, field.name).add(), table, f"{place}[{number}].")
    elif _is_repeated(field):
        getattr(message, field.name).extend(value)
    elif field.name == "start":
        _set_start(message.start, value)
    elif isinstance(value, dict) and field.type == field.TYPE_STRING:
        # Options of one kind of source: the server parses them as it parses a file.
        setattr(message, field.name, json.dumps(value))
    elif field.message_type is not None and field.message_type.full_name == "google.protobuf.Duration":
        getattr(message, field.name).FromMilliseconds(_millis(value))
    elif field.message_type is not None:
        child = getattr(message, field.name)
        child.SetInParent()
        _fill(child, value, f"{place}.")
    elif field.enum_type is not None:
        setattr(message, field.name, _enum(field.enum_type, value, place))
    elif field.name.endswith("_bytes"):
        setattr(message, field.name, _bytes(value))
    else:
        setattr(message, field.name, value)


def _enum(kind, value, place):
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.name).upper()
    names = {name.removeprefix(f"{prefix}_").lower(): number.number for name, number in kind.values_by_name.items()}
    names.pop("unspecified")
    if value not in names:
        raise PipelineFileError(f"`{place}` is {value!r}: it is one of {', '.join(names)}")
    return names[value]


def _set_start(start, value):
    policies = {"latest", "earliest", "snapshot", "fail"}
    if value in policies:
        start.policy = coordinator_pb2.StartPolicy.Value(f"START_POLICY_{value.upper()}")
        return
    clock, separator, instant = value.partition(":")
    if not separator:
        # A bare instant is a completion time, the clock of all table versions but 6.
        clock, instant = "completed", value
    try:
        start.after.clock = common_pb2.Clock.Value(f"CLOCK_{clock.upper()}")
    except ValueError as error:
        raise PipelineFileError(f"`start` is {value!r}: it is one of {', '.join(sorted(policies))}, or an instant") from error
    start.after.instant = instant


def _bytes(value):
    if isinstance(value, int):
        return value
    found = re.fullmatch(r"\s*([0-9]+)\s*([A-Za-z]*)\s*", value)
    if not found or found[2] not in SIZES:
        raise PipelineFileError(f"{value!r} is not a size: write it as 512MiB, 1GiB or a number of bytes")
    return int(found[1]) * SIZES[found[2]]


def _millis(value):
    found = re.fullmatch(r"\s*([0-9]+)\s*([a-z]+)\s*", value) if isinstance(value, str) else None
    if not found or found[2] not in MILLIS:
        raise PipelineFileError(f"{value!r} is not a time span: write it as 200ms, 90s, 5m or 1h")
    return int(found[1]) * MILLIS[found[2]]
