#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which crate of the workspace may depend on what.

    python3 tests/rules/check_dependencies.py

The rules are the tables below; ARCHITECTURE.md says why they are so. Every violation is
printed with what to do about it, and the exit code is 1. `cargo fetch --locked` must have
run before: nothing is downloaded here.
"""

import fnmatch
import json
import subprocess
import sys
from pathlib import Path

PREFIX = "tributary-"
ROLES = ["timeline", "checkpoint", "merge", "writer", "coordinator", "sources", "registry"]

# Our crates, and which of our crates each may name. `roles` stands for all of ROLES.
LAYERS = {
    "types": [],
    "api": ["types"],
    "store": ["types"],
    "hudi": ["types"],
    "trace": ["types"],
    "security": ["types"],
    "rpc": ["types", "trace", "api", "security"],
    "roles": ["types", "api", "store", "hudi"],
    "server": ["types", "trace", "api", "security", "rpc", "store", "hudi", "roles"],
    "testkit": ["types", "api", "security", "rpc", "store", "hudi", "roles", "server"],
    "tests": ["types", "api", "security", "rpc", "store", "hudi", "roles", "server", "testkit"],
}

# A crate with a price (a long build, an own object store, a wire format) has owners, and
# no other crate of ours names it, whatever the kind of dependency. Patterns as in a shell;
# the first pattern that fits decides.
OWNERS = {
    "hudi-core": ["hudi"],
    "hudi-datafusion": ["hudi"],
    "apache-avro": ["hudi"],
    "sled": ["store"],
    # The engine is merge's alone; the writer may evaluate expressions to fold rows.
    "datafusion-physical-expr*": ["merge", "writer"],
    "datafusion*": ["merge"],
    # gRPC ends at rpc: services see traits, never a Status or a message.
    # Tests play a collector of traces.
    "tonic*": ["rpc", "server", "testkit"],
    "arrow-flight": ["rpc", "server", "tests"],
    "prost*": ["rpc"],
    "protox*": ["rpc"],
    # Encryption, signatures and the issuer's keys are security's; tests make certificates.
    "rustls*": ["security"],
    "tokio-rustls": ["security"],
    "aws-lc-rs": ["security"],
    # The issuer's keys, and events of lineage; object stores bring it in by themselves.
    "reqwest": ["security", "server"],
    "rcgen": ["security", "tests"],
    # Compressed files are text that sources read.
    "bzip2": ["sources"],
    "flate2": ["sources"],
    "zstd": ["sources"],
    # Brokers are talked to by the reader of topics; tests play one.
    "kafka-protocol": ["sources", "testkit"],
    # Files and storage are hudi's, so that a test can watch and break every single call.
    "hdfs-native*": ["hudi"],
    "object_store": ["hudi", "testkit", "tests"],
    "parquet": ["hudi", "testkit", "tests"],
}

# What a crate must not reach by any path of normal dependencies, so that it stays quick to
# build and its logic free of I/O.
FREE_OF = {
    "types": ["tokio", "arrow*", "tonic*", "prost*", "object_store", "parquet", "datafusion*"],
    "api": ["tonic*", "prost*", "object_store", "parquet", "datafusion*"],
    "security": ["arrow*", "tonic*", "prost*", "object_store", "parquet", "datafusion*"],
    "store": ["arrow*", "tonic*", "prost*", "object_store", "parquet", "datafusion*"],
}

# Named as a dev-dependency only, except by these.
DEV_ONLY = {"testkit": ["tests"]}

TABLE = "tests/rules/check_dependencies.py"


def layer(crate):
    """The row of LAYERS a crate belongs to; None if it belongs to none."""
    if crate in ROLES:
        return "roles"
    return crate if crate in LAYERS and crate != "roles" else None


def first_match(name, patterns):
    return next((pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)), None)


def short(name):
    """`tributary-merge` -> `merge`; None for a crate that is not ours."""
    return name[len(PREFIX):] if name.startswith(PREFIX) else None


def check(metadata):
    """The violations in the answer of `cargo metadata --format-version 1`."""
    members = set(metadata["workspace_members"])
    packages = {package["id"]: package for package in metadata["packages"]}
    found = []
    for package in sorted((packages[member] for member in members), key=lambda package: package["name"]):
        crate = short(package["name"])
        if crate is None:
            found.append(f"{package['name']}: a package of this workspace is called {PREFIX}<folder>; rename it")
        elif layer(crate) is None:
            found.append(f"{crate}: no rule says what it may depend on; give it a row in LAYERS or ROLES of {TABLE}")
        else:
            for dependency in package["dependencies"]:
                found += check_named(crate, dependency)
            found += check_reached(crate, package["id"], metadata, packages)
    return list(dict.fromkeys(found))


def check_named(crate, dependency):
    """The rules about one line of a crate's Cargo.toml."""
    name, kind = dependency["name"], dependency["kind"] or "normal"
    ours = short(name)
    if ours is None:
        pattern = first_match(name, OWNERS)
        if pattern and crate not in OWNERS[pattern]:
            owners = ", ".join(OWNERS[pattern])
            yield f"{crate} names {name} ({kind}): only {owners} may; offer what you need there, in types of ours"
        return
    testing = kind == "dev"
    only = DEV_ONLY.get(ours)
    if only is not None and not testing and crate not in only:
        yield f"{crate} names {ours} ({kind}): it is for tests; move it to [dev-dependencies]"
    elif testing:
        # Tests may look at anything below; what they must not do is pull the engine in, see OWNERS.
        return
    elif layer(crate) == "roles" and layer(ours) == "roles":
        yield f"{crate} names {ours}: no role depends on another; call its trait in api, and let server connect the two"
    elif layer(ours) not in LAYERS[layer(crate)]:
        allowed = ", ".join(LAYERS[layer(crate)]) or "none of our crates"
        yield f"{crate} names {ours}: it may name {allowed}; move what both need down, or wire the two in server"


def check_reached(crate, package_id, metadata, packages):
    """The rules about everything a crate brings in."""
    forbidden = FREE_OF.get(crate)
    if not forbidden:
        return
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    paths, queue = {package_id: [crate]}, [package_id]
    while queue:
        current = queue.pop(0)
        for edge in nodes[current]["deps"]:
            normal = any(kind["kind"] is None for kind in edge["dep_kinds"])
            if not normal or edge["pkg"] in paths:
                continue
            name = packages[edge["pkg"]]["name"]
            paths[edge["pkg"]] = paths[current] + [name]
            if first_match(name, forbidden):
                path = " > ".join(paths[edge["pkg"]])
                yield f"{crate} reaches {name} ({path}): it must stay free of it; cut that edge"
            else:
                queue.append(edge["pkg"])


def main():
    root = Path(__file__).resolve().parents[2]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"]
    answer = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if answer.returncode != 0:
        sys.exit("cargo metadata failed, see above; if a crate is missing, run `cargo fetch --locked` first")
    metadata = json.loads(answer.stdout)
    violations = check(metadata)
    for violation in violations:
        print(f"dependency rule broken: {violation}")
    if violations:
        sys.exit(1)
    print(f"dependency rules hold for {len(metadata['workspace_members'])} packages")


if __name__ == "__main__":
    main()
