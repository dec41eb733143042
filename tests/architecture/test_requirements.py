"""The pinned sets: each holds all that arttrace and its extras name, in a version that they and its packages allow."""

from __future__ import annotations

import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


LEFT_OUT_ON_A_CPU = {
    *("bitsandbytes", "cut-cross-entropy", "diffusers", "intel-openmp", "torchao", "torchaudio", "torchcodec"),
    *("torchvision", "triton", "xformers"),
}
"""What packages name that have no use there, or no build beside a torch without CUDA."""


def pins(machine: str) -> dict[str, Requirement]:
    lines = (ROOT / "requirements" / f"{machine}.txt").read_text().splitlines()
    entries = [Requirement(line.partition(" #")[0]) for line in lines if line.strip() and line[0] not in "#-"]
    return {canonicalize_name(entry.name): entry for entry in entries}


def asked_for(installed: Distribution) -> list[Requirement]:
    """By a package as it is, without its extras, on this machine."""
    found = map(Requirement, installed.requires or [])
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


@pytest.mark.parametrize(("machine", "left_out"), [("cpu", LEFT_OUT_ON_A_CPU), ("cuda", set())])
def test_the_packages_of_a_pinned_set_allow_one_another(machine: str, left_out: set[str]) -> None:
    """Those that are installed here in the pinned version are asked: most of either set."""
    pinned = {name: next(iter(entry.specifier)).version for name, entry in pins(machine).items()}
    here = {canonicalize_name(one.name): one for one in distributions()}
    asked = {name: one for name, one in here.items() if name in pinned and Version(one.version).public == pinned[name]}
    assert len(asked) > len(pinned) / 2
    versions = pinned | {name: one.version for name, one in asked.items() if machine == "cpu"}  # 2.13.0+cpu
    for name, one in asked.items():
        for wanted in asked_for(one):
            key = canonicalize_name(wanted.name)
            if key in left_out:
                assert key not in pinned
                continue
            assert key in pinned, f"{name} needs {wanted}, which is not in requirements/{machine}.txt"
            held = versions[key]
            assert wanted.specifier.contains(held, prereleases=True), f"{name} needs {wanted}, not {held}"


@pytest.mark.parametrize("machine", ["cpu", "cuda"])
def test_a_pinned_set_has_what_arttrace_and_its_extras_name(machine: str) -> None:
    pinned = pins(machine)
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


def test_whoever_is_to_install_a_pinned_set_is_not_to_resolve_it() -> None:
    shown = [
        line
        for folder, pattern in [
            *(("arttrace", "*.py"), ("trainer", "*.py"), ("docs", "*.md"), ("requirements", "*.txt")),
            *(("examples", "*.yaml"), (".", "README.md"), (".", "Dockerfile")),
        ]
        for path in ((ROOT / folder).rglob(pattern) if folder != "." else [ROOT / pattern])
        for line in path.read_text().splitlines()
        if "pip install" in line and "requirements/" in line
    ]
    assert len(shown) >= 8
    assert [line for line in shown if "--no-deps" not in line] == []
