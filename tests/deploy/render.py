# SPDX-License-Identifier: Apache-2.0
"""Writes deploy/manifests: the chart, rendered. `make manifests` calls it; a test compares."""

from chart import ROOT, VALUES, template

MANIFESTS = ROOT / "deploy/manifests"
# The file of values that each is made of.
RENDERED = {"all-in-one.yaml": "all-in-one.yaml", "roles.yaml": "roles.yaml"}

HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made of deploy/chart by `make manifests`; do not edit. For those who do not use Helm:
#     kubectl create namespace tributary && kubectl -n tributary apply -f deploy/manifests/{name}
# The server neither encrypts nor asks who calls: only the network policies keep others out.
"""


def manifest(name):
    """The text of one manifest, without what only Helm needs."""
    text = template(VALUES / RENDERED[name])
    lines = [line for line in text.splitlines() if "managed-by: Helm" not in line and "helm.sh/chart" not in line]
    return HEADER.format(name=name) + "\n".join(lines).rstrip() + "\n"


def main():
    MANIFESTS.mkdir(exist_ok=True)
    for name in RENDERED:
        (MANIFESTS / name).write_text(manifest(name), encoding="utf-8")
        print(f"wrote {MANIFESTS / name}")


if __name__ == "__main__":
    main()
