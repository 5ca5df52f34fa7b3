# SPDX-License-Identifier: Apache-2.0
"""Alert rules and the dashboard ask for what the code exports."""

import json
import re
import unittest

import metrics
from chart import CHART, ROOT, read_yaml

ALERTS = CHART / "files/alerts.yaml"
DASHBOARD = CHART / "files/dashboard.json"


def alerts():
    return [rule for group in read_yaml(ALERTS.read_text())[0]["groups"] for rule in group["rules"]]


def dashboard():
    return json.loads(DASHBOARD.read_text())


def queries():
    """Every query, with where it stands."""
    for rule in alerts():
        yield f"alert {rule['alert']}", rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.get("definition", ""))
        if asked:
            yield f"variable {variable['name']}", f"count by ({asked[2]}) ({asked[1]})"


class Monitoring(unittest.TestCase):
    def test_every_query_can_be_parsed_and_names_only_what_is_exported(self):
        asked = list(queries())
        self.assertGreater(len(asked), 40)
        for where, text in asked:
            with self.subTest(where=where):
                self.assertEqual([], metrics.problems(text), text)

    def test_a_wrong_name_label_or_value_in_a_query_is_found(self):
        for wrong, said in (("tributary_coordinator_batchs_total", "no metric"),
                            ('tributary_coordinator_batches_total{result="FAILED"}', "no label result"),
                            ('tributary_coordinator_batches_total{outcome=~"FAILED|BROKEN"}', "never BROKEN"),
                            ("sum by (table) (tributary_coordinator_rows_total)", "label table")):
            self.assertTrue(any(said in problem for problem in metrics.problems(wrong)), wrong)
        with self.assertRaises(ValueError):
            metrics.problems("sum by (pipeline tributary_coordinator_rows_total")

    def test_every_alert_says_how_bad_it_is_and_is_explained(self):
        page = (ROOT / "docs/operating.md").read_text()
        names = [rule["alert"] for rule in alerts()]
        self.assertEqual(len(names), len(set(names)))
        for rule in alerts():
            self.assertIn(rule["labels"]["severity"], ("critical", "warning"), rule["alert"])
            self.assertTrue(rule["annotations"]["summary"] and rule["annotations"]["description"])
            self.assertIn(f"`{rule['alert']}`", page, "docs/operating.md")
            # A label that the expression drops would be empty in the text.
            for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
                self.assertRegex(rule["expr"], rf"by \([^)]*\b{label}\b", rule["alert"])
        explained = set(re.findall(r"^\| `(Tributary\w+)` \|", page, re.M))
        self.assertEqual(set(names), explained, "docs/operating.md explains alerts that are gone")

    def test_the_panels_of_the_dashboard_do_not_overlap(self):
        taken = {}
        identities = set()
        for panel in dashboard()["panels"]:
            self.assertNotIn(panel["id"], identities)
            identities.add(panel["id"])
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24)
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    self.assertNotIn((x, y), taken, f"{panel['title']} lies on {taken.get((x, y))}")
                    taken[(x, y)] = panel["title"]
