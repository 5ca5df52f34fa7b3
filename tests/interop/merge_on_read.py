# SPDX-License-Identifier: Apache-2.0
"""Merge-on-read targets, read, compacted and continued by Spark."""

import fixture_tables
from checks import (
    check_after_each_batch,
    check_in_depth,
    check_read_optimized,
)


class MergeOnRead:
    """Tests of the class that has this one among its bases."""

    LOGGED = "id string, day string, value long, rank long, _hoodie_is_deleted boolean"

    def logged_scenario(self, name, compact_after):
        services = {"compact_delta_commits": compact_after, "clean_commits": 0, "archive_commits": 0}
        return self.files_scenario(
            name, self.LOGGED, key="id", partition=["day"], ordering="rank",
            table_type="merge_on_read", services=services,
        )  # fmt: skip

    def logged_rows(self, number, rank, keys, deleted=()):
        """Rows whose partition follows from their key."""
        return [(key, f"2024-05-0{ord(key[-1]) % 3 + 1}", number, rank, key in deleted) for key in keys]

    def test_a_merge_on_read_target(self):
        """Updates and deletes lie in logs until a compaction; late ones lose, against deletes as well; new keys are
        in base files at once."""
        scenario = self.logged_scenario("logged", 3)
        ranks = [5, 7, 3, 9, 8]
        in_base_files = {}
        for number, rank in enumerate(ranks):
            keys = [f"e{key}" for key in range(12) if (key + number) % 3 != 0] + [f"n{number}"]
            # One of them is a key that nobody knows.
            deleted = {f"e{number}", f"e{number + 4}", "x"} if number else set()
            rows = self.logged_rows(number, rank, [*keys, *sorted(deleted - set(keys))], deleted)
            known = {key for key, *_ in rows if scenario.merged.knows({"id": key})}
            answer = self.file_batch(scenario, rows)
            self.assertEqual(len(deleted - known), answer["absent"])
            in_base_files.update({key: answer["instant"] for key, *_ in rows if key not in known | deleted})
            compacts = (number + 1) % 3 == 0
            newest = scenario.target.instants()[-1]
            self.assertEqual("commit" if compacts else "deltacommit", newest.action)
            if compacts:
                self.assertEqual("COMPACT", newest.operation)
                scenario.compacted(newest.completed)
                in_base_files = scenario.instants_expected()
            check_read_optimized(self, scenario, in_base_files)
        self.nothing_new(scenario)
        check_in_depth(self, scenario)

    def test_deletes_of_a_merge_on_read_target(self):
        """A delete operation writes blocks of keys, which go whatever their ordering; what comes later is stored."""
        scenario = self.logged_scenario("deleted", 0)
        keys = [f"e{key}" for key in range(8)]
        self.file_batch(scenario, self.logged_rows(0, 5, keys))
        in_base_files = scenario.instants_expected()
        self.file_batch(scenario, self.logged_rows(1, 6, ["e1", "e4", "e7"]))
        scenario.set_operation("delete")
        answer = self.file_batch(scenario, self.logged_rows(2, 1, ["e1", "e2", "e3", "x"]))
        self.assertEqual((3, 1), (answer["deletes"], answer["absent"]))
        check_read_optimized(self, scenario, in_base_files)
        scenario.set_operation("upsert")
        self.file_batch(scenario, self.logged_rows(3, 7, ["e2", "e4"]))
        check_in_depth(self, scenario)
        scenario.target.compact()
        scenario.compacted(scenario.target.instants()[-1].completed)
        check_after_each_batch(self, scenario)
        check_read_optimized(self, scenario, scenario.instants_expected())

    def test_every_column_type_in_log_files(self):
        self.need_tributary("the stand-in writes copy-on-write tables")
        sources = {"typed": self.source()}
        scenario = self.scenario(
            "logged_types", sources, "SELECT * FROM <SRC:typed>",
            key="id", ordering="ts", table_type="merge_on_read", services={"compact_delta_commits": 3},
        )  # fmt: skip
        table = scenario.sources["typed"]
        for number, keys in enumerate((range(9), [2, 3, 9, 11], [1, 2, 11, 12]), start=1):
            self.commit(table, fixture_tables.typed_rows(keys, number), fixture_tables.PARTITIONED)
            self.batch(scenario)
        scenario.compacted(scenario.target.instants()[-1].completed)
        check_in_depth(self, scenario)

    def test_spark_goes_on_with_a_merge_on_read_target(self):
        """Spark compacts our logs and we go on from its base files; then its writer appends to, compacts and cleans
        what we left."""
        scenario = self.logged_scenario("handed_over", 0)
        for number in (1, 2, 3):
            keys = [f"e{key}" for key in range(number, 8)]
            self.file_batch(scenario, self.logged_rows(number, number, keys, {"e4"} if number == 2 else ()))
        scenario.target.compact()
        self.assertEqual("COMPACT", scenario.target.instants()[-1].operation)
        scenario.compacted(scenario.target.instants()[-1].completed)
        check_after_each_batch(self, scenario)
        check_read_optimized(self, scenario, scenario.instants_expected())

        keys = ["e1", "e2", "e5", "e9"]
        self.file_batch(scenario, self.logged_rows(4, 4, keys, {"e5"}))
        self.file_batch(scenario, self.logged_rows(5, 2, keys))
        check_in_depth(self, scenario)

        foreign = self.logged_rows(6, 9, ["e2", "e7", "s1"])
        options = {
            "hoodie.datasource.write.table.type": "MERGE_ON_READ",
            "hoodie.compact.inline": "true",
            "hoodie.compact.inline.max.delta.commits": "1",
        }
        self.spark_writes(scenario, foreign, self.LOGGED, options)
        self.assertEqual(2, [i.operation for i in scenario.target.instants()].count("COMPACT"))
        check_read_optimized(self, scenario, scenario.instants_expected())
