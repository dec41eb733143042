"""The vendored files are what their npm packages hold, as the registry has them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from arttrace.views.web.rendering import STATIC

VENDORED = STATIC / "vendor"
NODE = Path(__file__).parents[2] / "e2e" / "node"
"""Where `npm ci` puts the packages, after it has compared them with the registry's hashes in package-lock.json."""

ROWS = re.findall(
    r"^\| (\S+) \| npm (\S+) (\S+), (\S+) \| [^,|]+, (\S+) \| ([0-9a-f]{64}) \|$",
    (VENDORED / "VENDORED.md").read_text(),
    re.MULTILINE,
)
"""File, package, version, file within the package, licence file, hash."""


def test_every_vendored_file_has_the_hash_that_the_note_says() -> None:
    held = {path.name for path in VENDORED.iterdir()} - {"VENDORED.md"}
    assert held == {row[0] for row in ROWS} | {row[4] for row in ROWS}
    for name, *_, digest in ROWS:
        assert hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() == digest


def test_the_lock_file_names_the_versions_that_are_vendored() -> None:
    locked = json.loads((NODE / "package-lock.json").read_text())["packages"]
    for _, package, version, *_ in ROWS:
        assert locked[f"node_modules/{package}"]["version"] == version
        assert locked[f"node_modules/{package}"]["integrity"].startswith("sha512-")


@pytest.mark.skipif(
    not (NODE / "node_modules" / "htmx.org").exists(),
    reason="the packages of the vendored files are not installed (npm ci in tests/e2e/node)",
)
def test_every_vendored_file_is_the_packages_own() -> None:
    for name, package, version, within, licence, _ in ROWS:
        installed = NODE / "node_modules" / package
        assert json.loads((installed / "package.json").read_text())["version"] == version
        assert (VENDORED / name).read_bytes() == (installed / within).read_bytes()
        assert (VENDORED / licence).read_bytes() == (installed / "LICENSE").read_bytes()
