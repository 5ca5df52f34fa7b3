#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules catch what they are for: made-up violations, each found, and nothing else.

    python3 tests/rules/test_rules.py
"""

import unittest
from pathlib import Path

import check_dependencies
import check_sources


def workspace(packages):
    """What `cargo metadata` would say of `{name: [(dependency, kind), ...]}`; `tributary-*` are members."""
    edges = [{
        "id": name,
        "deps": [{"pkg": to, "dep_kinds": [{"kind": kind}]} for to, kind in dependencies],
    } for name, dependencies in packages.items()]
    return {
        "workspace_members": [name for name in packages if name.startswith("tributary-")],
        "packages": [{
            "id": name,
            "name": name,
            "dependencies": [{"name": to, "kind": kind} for to, kind in dependencies],
        } for name, dependencies in packages.items()],
        "resolve": {"nodes": edges},
    }


def violations(packages):
    # Whatever is named exists.
    named = {to for dependencies in packages.values() for to, _ in dependencies}
    return check_dependencies.check(workspace({**{name: [] for name in sorted(named)}, **packages}))


class DependencyRules(unittest.TestCase):
    def assert_one(self, found, *parts):
        self.assertEqual(len(found), 1, found)
        for part in parts:
            self.assertIn(part, found[0])

    def test_a_tidy_workspace_passes(self):
        self.assertEqual(violations({
            "tributary-types": [("serde", None)],
            "tributary-api": [("tributary-types", None), ("arrow", None), ("tokio", None)],
            "tributary-hudi": [("tributary-types", None), ("hudi-core", None), ("tributary-testkit", "dev")],
            "tributary-merge": [("tributary-api", None), ("datafusion", None), ("datafusion-spark", None)],
            "tributary-writer": [("tributary-hudi", None), ("datafusion-physical-expr", None)],
            "tributary-rpc": [("tributary-api", None), ("tonic", None), ("protox", "build")],
            "tributary-server": [("tributary-merge", None), ("tributary-writer", None), ("tonic", None)],
            "tributary-tests": [("tributary-testkit", None), ("tributary-server", "dev")],
        }), [])

    def test_a_heavy_crate_is_named_by_its_owners_only(self):
        for name in ["hudi-core", "sled", "datafusion", "datafusion-expr", "tonic", "tonic-health", "prost", "parquet",
                     "object_store", "arrow-flight"]:
            for kind in [None, "dev", "build"]:
                found = violations({"tributary-coordinator": [(name, kind)]})
                self.assert_one(found, f"coordinator names {name}", "only")

    def test_the_writer_gets_expressions_but_no_engine(self):
        self.assert_one(violations({"tributary-writer": [("datafusion", None)]}), "only merge may")

    def test_no_role_depends_on_another(self):
        for kind in [None, "build"]:
            found = violations({"tributary-writer": [("tributary-merge", kind)]})
            self.assert_one(found, "writer names merge", "no role depends on another")

    def test_the_direction_is_kept(self):
        found = violations({"tributary-api": [("tributary-hudi", None)]})
        self.assert_one(found, "api names hudi", "it may name types")
        self.assert_one(violations({"tributary-types": [("tributary-store", None)]}), "it may name none of our crates")
        self.assert_one(violations({"tributary-merge": [("tributary-rpc", None)]}), "merge names rpc")

    def test_testkit_is_for_tests(self):
        found = violations({"tributary-server": [("tributary-testkit", None)]})
        self.assert_one(found, "move it to [dev-dependencies]")

    def test_types_stays_free_of_io_through_any_path(self):
        found = violations({"tributary-types": [("metrics", None)], "metrics": [("tokio", None)]})
        self.assert_one(found, "types reaches tokio", "types > metrics > tokio")
        self.assertEqual(violations({"tributary-types": [("proptest", "dev")], "proptest": [("tokio", None)]}), [])
        self.assertEqual(violations({"tributary-types": [("serde", None)], "serde": [("tokio", "dev")]}), [])

    def test_api_reaches_no_grpc(self):
        found = violations({"tributary-api": [("arrow", None)], "arrow": [("prost", None)]})
        self.assert_one(found, "api reaches prost")

    def test_a_new_crate_needs_a_rule(self):
        self.assert_one(violations({"tributary-extra": []}), "extra: no rule", "LAYERS or ROLES")
        found = check_dependencies.check({**workspace({"other": []}), "workspace_members": ["other"]})
        self.assert_one(found, "rename it")


class SourceRules(unittest.TestCase):
    HEAD = "// SPDX-License-Identifier: Apache-2.0\n"

    def check(self, path, text):
        return check_sources.check(Path(path), text)

    def test_a_tidy_file_passes(self):
        self.assertEqual(self.check("crates/a/src/lib.rs", self.HEAD + "fn f() {}\n" * 599), [])
        script = "#!/usr/bin/env python3\n# SPDX-License-Identifier: Apache-2.0\n"
        self.assertEqual(self.check("tests/a.py", script), [])

    def test_the_licence_line_is_missing(self):
        for path, text in {
            "crates/a/src/lib.rs": "//! doc\n",
            "crates/a/src/b.rs": "",
            "crates/a/src/c.rs": "\n" + self.HEAD,
            "tests/a.sh": "#!/bin/bash\n",
            "proto/a.proto": 'syntax = "proto3";\n',
        }.items():
            self.assertEqual(len(self.check(path, text)), 1, path)

    def test_a_file_is_too_long(self):
        found = self.check("crates/a/src/lib.rs", self.HEAD + "fn f() {}\n" * 600)
        self.assertEqual(len(found), 1)
        self.assertIn("601 lines", found[0])

    def test_tests_do_not_count(self):
        tests = "#[cfg(test)]\nmod tests {\n" + "    fn f() {}\n\n" * 600 + "}\n"
        self.assertEqual(self.check("crates/a/src/lib.rs", self.HEAD + "fn f() {}\n" * 599 + tests), [])
        self.assertEqual(check_sources.count_code_lines(tests + "fn f() {}\n"), 1)
        self.assertEqual(check_sources.count_code_lines("#[cfg(test)]\nmod tests;\nfn f() {}\n"), 1)
        self.assertEqual(check_sources.count_code_lines("#[cfg(test)]\n#[allow(x)]\nmod tests {\n}\n\nfn f() {}\n"), 2)
        self.assertEqual(check_sources.count_code_lines("#[cfg(test)]\nfn f() {}\nfn g() {\n}\n"), 2)
        long = self.HEAD + "fn f() {}\n" * 700
        self.assertEqual(self.check("crates/a/src/lib/tests.rs", long), [])
        self.assertEqual(self.check("tests/src/lib.rs", long), [])


if __name__ == "__main__":
    unittest.main()
