# SPDX-License-Identifier: Apache-2.0
"""One plain form for rows, whoever read them.

Spark gives `Row`, the `hudi` package gives Arrow, the oracles are JSON. All three
become dictionaries of JSON values, in which equal rows are equal:
decimal -> text, binary -> hex, date -> ISO, timestamp -> ISO in UTC with microseconds,
map -> object (keys as text), struct -> object, not-a-number and infinities -> text.
"""

import datetime
import decimal
import json
import math
import struct

from pyspark.sql import types as spark_types


def plain_spark(frame, drop=()):
    """All rows of a DataFrame, sorted."""
    fields = [f for f in frame.schema.fields if f.name not in drop]
    rows = [{f.name: _plain(row[f.name], f.dataType) for f in fields} for row in frame.collect()]
    return in_order(rows)


def plain_arrow(batches, schema, drop=()):
    """All rows of Arrow record batches; `schema` is the Spark schema to read them by."""
    types = {f.name: f.dataType for f in schema.fields}
    rows = []
    for batch in batches:
        for row in batch.to_pylist():
            kept = {name: value for name, value in row.items() if name not in drop}
            # A column the Spark schema lacks is kept, so that the comparison shows it.
            rows.append({name: _plain(value, types.get(name)) for name, value in kept.items()})
    return in_order(rows)


def in_order(rows):
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def _plain(value, kind):
    if value is None:
        return None
    if isinstance(kind, spark_types.StructType):
        return {f.name: _plain(_member(value, f.name), f.dataType) for f in kind.fields}
    if isinstance(kind, spark_types.ArrayType):
        return [_plain(item, kind.elementType) for item in value]
    if isinstance(kind, spark_types.MapType):
        # Arrow gives a map as a list of pairs.
        pairs = value.items() if isinstance(value, dict) else value
        return {str(k): _plain(v, kind.valueType) for k, v in pairs}
    if isinstance(value, float):
        return _plain_float(value, isinstance(kind, spark_types.FloatType))
    return _plain_scalar(value)


def _member(value, name):
    # Spark gives a struct as a Row, Arrow as a dictionary; both are subscripted by name.
    return value[name]


def _plain_float(value, single):
    if not math.isfinite(value):
        return str(value)
    # Both readers widen a 32-bit float; round to it, so that the text is short and equal.
    return struct.unpack("f", struct.pack("f", value))[0] if single else value


def _plain_scalar(value):
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return value.isoformat(timespec="microseconds") + "Z"
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
