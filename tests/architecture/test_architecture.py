"""docs/architecture.md says what the code does: the way of one call, the rooms, and the rules that comments cite."""

from __future__ import annotations

import importlib
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from followed_call import ROOT, Entered, walk

from arttrace.capture.export import recorder

PAGE = (ROOT / "docs" / "architecture.md").read_text()
HOP = re.compile(r"^(?:(\d+)\.|-) `((?:arttrace|trainer)/[\w/]+\.py)`: `([\w.]+)`", re.MULTILINE)
STAGES = re.compile(r"((?:^\d+\. `.*\n)+)", re.MULTILINE)
CITED = re.compile(r"\b[Rr]ules? (\d(?:, \d)*)")
EVERYWHERE = {
    "arttrace/system",
    "arttrace/records",
    "trainer/output",
}
"""What every room may use, and so is no hop."""
ROOMS_WITHIN = ("arttrace/system/journal", "arttrace/wire/content")
"""Folders that are stations of a call, apart from the folder they are in."""


def stages() -> list[list[Entered]]:
    """The numbered lines of the page, by stage."""
    hops = [[(file, function) for _, file, function in HOP.findall(stage)] for stage in STAGES.findall(PAGE)]
    numbers = [int(number) for number, _, _ in HOP.findall(PAGE) if number]
    assert numbers == list(range(1, sum(map(len, hops)) + 1))
    return hops


def room(file: str) -> str:
    return next((within for within in ROOMS_WITHIN if file.startswith(f"{within}/")), "/".join(file.split("/")[:2]))


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> list[Entered]:
    """What the call enters until its version is on disk: the record of the step takes the same way into the store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "_SHOWN_AFTER_S", 3600.0)  # on a slow machine it would be recorded before its end too
        found = walk(tmp_path_factory.mktemp("walk"))
    return found[: found.index(stages()[-1][-1]) + 1]


def test_a_call_goes_the_way_that_the_page_draws(entered: list[Entered]) -> None:
    drawn = [hop for stage in stages() for hop in stage]
    assert len(set(drawn)) == len(drawn)
    assert list(dict.fromkeys(each for each in entered if each in drawn)) == drawn


def test_nothing_of_a_stage_is_entered_again_after_the_next_has_begun(entered: list[Entered]) -> None:
    for stage, following in zip(stages()[:-1], stages()[1:], strict=True):
        last = max(at for at, each in enumerate(entered) if each in stage)
        assert last < entered.index(following[0]), f"{entered[last]} is entered after {following[0]}"


def test_every_room_that_a_call_enters_is_drawn(entered: list[Entered]) -> None:
    drawn = {room(file) for stage in stages() for file, _ in stage}
    assert {room(file) for file, _ in entered} - drawn - EVERYWHERE == set()


def test_every_function_and_folder_that_the_page_names_is_there() -> None:
    for _, file, function in HOP.findall(PAGE):
        found = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        for name in function.split("."):
            found = getattr(found, name)
    for path in re.findall(r"`((?:arttrace|trainer)/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path


def product_files() -> list[Path]:
    return [file for root in ("arttrace", "trainer") for file in sorted((ROOT / root).rglob("*.py"))]


PUBLIC_FACES = {"__main__.py", "mcp", "server.py"}
"""What users import or run by its name, at the top beside the rooms."""


def test_no_folder_has_more_than_a_dozen_entries() -> None:
    """Files and folders of modules; `__init__.py` is the folder itself."""
    entries: dict[Path, set[str]] = {}
    for file in product_files():
        if file.name != "__init__.py":
            for inner, folder in pairwise((file, *file.parents)):
                if folder == ROOT:
                    break
                entries.setdefault(folder, set()).add(inner.name)
    entries[ROOT / "arttrace"] -= PUBLIC_FACES
    crowded = {str(folder.relative_to(ROOT)): sorted(found) for folder, found in entries.items() if len(found) > 12}
    assert not crowded, "put what changes together into a folder of its own"


def test_no_file_has_more_than_400_lines() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in product_files()}
    assert {file: lines for file, lines in lengths.items() if lines > 400} == {}


def test_every_rule_that_a_comment_cites_is_on_the_page() -> None:
    rules = {int(number) for number in re.findall(r"^(\d+)\. \*\*", PAGE, re.MULTILINE)}
    assert rules == set(range(1, 10))
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = [(ROOT / file).read_text() for file in files.splitlines() if (ROOT / file).exists()]
    cited = {int(n) for text in texts for found in CITED.findall(text) for n in found.split(", ")}
    ordinals = re.findall(r"\b(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth) rule\b", "\n".join(texts))
    assert not ordinals, "cite a rule by its number"
    assert cited
    assert cited <= rules


def test_links_lead_to_what_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    entries = [line.split(maxsplit=3) for line in listed.splitlines()]
    tracked = {path for _, _, _, path in entries}
    blobs = {path: blob for mode, blob, _, path in entries if mode == "120000"}
    targets = {
        path: subprocess.run(
            ["git", "cat-file", "-p", blob], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for path, blob in blobs.items()
    }
    assert {path: target for path, target in targets.items() if str(Path(path).parent / target) not in tracked} == {}
