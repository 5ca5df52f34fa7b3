#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the source files themselves: the licence line, and files that grew too long.

    python3 tests/rules/check_sources.py

Every violation is printed with what to do about it, and the exit code is 1.
"""

import os
import sys
from pathlib import Path

FOLDERS = ["crates", "deploy", "proto", "tests"]
SPDX = {".rs": "// SPDX-License-Identifier: Apache-2.0", ".proto": "// SPDX-License-Identifier: Apache-2.0",
        ".py": "# SPDX-License-Identifier: Apache-2.0", ".sh": "# SPDX-License-Identifier: Apache-2.0"}

# Lines of a Rust file without its tests. Over it, a file does two things: split it.
LONGEST = 600

# Files that may be longer, each with its reason. This list only shrinks.
LONGER_ALLOWED = {}


def find_sources(root):
    """Every source file below the checked folders, as a path relative to `root`."""
    for folder in FOLDERS:
        for where, folders, files in os.walk(root / folder):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "target")
            for name in sorted(files):
                path = Path(where, name)
                if path.suffix in SPDX:
                    yield path.relative_to(root)


def count_code_lines(text):
    """The lines of a Rust file outside its `#[cfg(test)]` items.

    rustfmt has been over the file, so such an item starts in the first column and ends at
    the first line that is a closing brace there, or in its first line if that ends in `;`.
    """
    lines, count, position = text.splitlines(), 0, 0
    while position < len(lines):
        if lines[position].startswith("#[cfg(test)]"):
            position += 1
            while position < len(lines) and lines[position].startswith("#["):
                position += 1
            while position < len(lines) and not lines[position].startswith("}"):
                if not lines[position].startswith(" ") and lines[position].endswith((";", "}")):
                    break
                position += 1
        else:
            count += 1
        position += 1
    return count


def is_test_code(path):
    """True for files that hold tests only: `foo/tests.rs`, a `tests` folder, the tests package."""
    return path.name == "tests.rs" or "tests" in path.parts[:-1]


def check_licence(path, text):
    lines = text.splitlines()
    # A script's first line says what runs it.
    line = lines[1:2] if text.startswith("#!") and path.suffix != ".rs" else lines[:1]
    if line != [SPDX[path.suffix]]:
        yield f"{path}: write `{SPDX[path.suffix]}` in line {2 if text.startswith('#!') else 1}"


def check_length(path, text):
    if path.suffix != ".rs" or is_test_code(path):
        return
    count = count_code_lines(text)
    allowed = path.as_posix() in LONGER_ALLOWED
    if count > LONGEST and not allowed:
        yield f"{path}: {count} lines without tests, {LONGEST} at most; split it along what it decides and what it does"
    if count <= LONGEST and allowed:
        yield f"{path}: short enough now; take it out of LONGER_ALLOWED in tests/rules/check_sources.py"


def check(path, text):
    """The violations in one file."""
    return [*check_licence(path, text), *check_length(path, text)]


def main():
    root = Path(__file__).resolve().parents[2]
    violations, files = [], 0
    for path in find_sources(root):
        files += 1
        violations += check(path, (root / path).read_text(encoding="utf-8"))
    violations += [f"{name}: is gone; take it out of LONGER_ALLOWED in tests/rules/check_sources.py"
                   for name in LONGER_ALLOWED if not (root / name).is_file()]
    for violation in violations:
        print(f"source rule broken: {violation}")
    if violations:
        sys.exit(1)
    print(f"source rules hold for {files} files")


if __name__ == "__main__":
    main()
