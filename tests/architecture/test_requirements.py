"""The pinned sets: each holds all that arttrace and its extras name, in a version that they allow."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.mark.parametrize("machine", ["cpu", "cuda"])
def test_a_pinned_set_has_what_arttrace_and_its_extras_name(machine: str) -> None:
    lines = (ROOT / "requirements" / f"{machine}.txt").read_text().splitlines()
    entries = [Requirement(line.partition(" #")[0]) for line in lines if line.strip() and line[0] not in "#-"]
    pinned = {canonicalize_name(entry.name): entry for entry in entries}
    named = [
        Requirement(text)
        for extra, texts in [("", PROJECT["dependencies"]), *EXTRAS.items()]
        if extra != "dev"
        for text in texts
    ]
    for wanted in named:
        name = canonicalize_name(wanted.name)
        if name == "arttrace":
            continue
        assert name in pinned, f"{wanted} is not in requirements/{machine}.txt"
        if pinned[name].url is None:
            [version] = [one.version for one in pinned[name].specifier]
            assert wanted.specifier.contains(version, prereleases=True), f"{pinned[name]}, but arttrace needs {wanted}"
