# SPDX-License-Identifier: Apache-2.0
"""What docs/metrics.md says of each metric, and what queries ask for. A Rust test compares the page with the code."""

import re

import promql_parser as promql
from chart import ROOT

PAGE = ROOT / "docs/metrics.md"
# Labels that Prometheus adds itself, or that a histogram's buckets have.
ADDED = {"le", "job", "instance", "namespace", "pod"}


def documented():
    """Labels and `from` of each metric."""
    found = {}
    for name, labels, since in re.findall(r"^\| `(tributary_\w+)` \| \w+ \| ([^|]*) \| (\w+) \|", PAGE.read_text(), re.M):
        found[name] = (set(labels.split(", ")) - {"none"}, since)
    return found


def label_values():
    """The values of labels that have a fixed list of them."""
    found = {}
    for label, values in re.findall(r"^\| `(\w+)`[^|]*\| (.*) \|$", PAGE.read_text(), re.M):
        names = set(re.findall(r"`([\w-]+)`", values))
        if names:
            found.setdefault(label, set()).update(names)
    return found


def metric_of(series, known):
    """The metric that a series is of: a histogram's series have names of their own."""
    for end in ("_bucket", "_sum", "_count"):
        if series not in known and series.endswith(end):
            return series.removesuffix(end)
    return series


def parse(text):
    """A query, with Grafana's variables replaced by something of their kind."""
    return promql.parse(text.replace("$__rate_interval", "5m").replace("$pipeline", ".*"))


def selectors(text):
    """Name and matchers of every series that a query reads."""
    found = []

    def visit(node):
        if isinstance(node, promql.VectorSelector):
            found.append((node.name, [(matcher.name, matcher.op, matcher.value) for matcher in node.matchers.matchers]))

    promql.walk(parse(text), visit)
    return found


def problems(text):
    """What a query names that no process exports."""
    known, values, said = documented(), label_values(), []
    used = set()
    for name, matchers in selectors(text):
        if name is None or metric_of(name, known) not in known:
            said.append(f"no metric is called {name}")
            continue
        labels = known[metric_of(name, known)][0] | ADDED
        used |= labels
        for label, _, value in matchers:
            if label not in labels:
                said.append(f"{name} has no label {label}")
            elif label in values and value != ".*":
                said += [f"{label} is never {one}" for one in value.split("|") if one not in values[label]]

    def visit(node):
        named = []
        if isinstance(node, promql.AggregateExpr) and node.modifier:
            named += node.modifier.labels
        if isinstance(node, promql.BinaryExpr) and node.modifier and node.modifier.matching:
            named += node.modifier.matching.labels
        said.extend(f"none of its series has a label {label}" for label in named if label not in used)

    promql.walk(parse(text), visit)
    return said


def matches(series, name, matchers):
    """Whether a scraped series (name, labels) is one that a selector reads."""
    if series[0] != name:
        return False
    for label, op, value in matchers:
        has = series[1].get(label, "")
        fits = re.fullmatch(value, has) is not None if op in (promql.MatchOp.Re, promql.MatchOp.NotRe) else has == value
        if fits != (op in (promql.MatchOp.Re, promql.MatchOp.Equal)):
            return False
    return True


def scraped(text):
    """Name and labels of every series in an answer of /metrics."""
    found = []
    for line in text.splitlines():
        series = re.match(r"^([a-z_]+)(?:\{(.*)\})? \S+$", line)
        if series:
            found.append((series[1], dict(re.findall(r'(\w+)="([^"]*)"', series[2] or ""))))
    return found
