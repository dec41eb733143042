"""Every command in the documentation prints what is shown, is run by a named test, or is marked as an excerpt."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import doc_sites
import forked_arttrace
import pytest
from doc_blocks import PAGES, ROOT, Block, blocks, difference, steps

BLOCKS = [block for page in PAGES for block in blocks(page)]
SHELL = [block for block in BLOCKS if block.language in ("console", "sh", "bash") or re.search("^[$] ", block.text, re.M)]


def _sessions() -> list[list[Block]]:
    """Blocks that run one after the other in one directory: those of one page that name the same site."""
    found: dict[tuple[Path, str], list[Block]] = {}
    for block in SHELL:
        if block.kind == "run":
            found.setdefault((block.page, block.value), []).append(block)
    return list(found.values())


@pytest.fixture(scope="module")
def _in_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The `arttrace` of the blocks is a fork of a process that has imported it."""
    with pytest.MonkeyPatch.context() as patch, forked_arttrace.on_path(tmp_path_factory.mktemp("forks")) as folder:
        patch.setattr(doc_sites, "PROGRAMS", [folder, *doc_sites.PROGRAMS])
        yield


@pytest.mark.usefixtures("_in_forks")
@pytest.mark.parametrize("session", _sessions(), ids=lambda session: f"{session[0]}-{session[0].value}")
def test_blocks_print_what_they_show(session: list[Block], tmp_path: Path) -> None:
    prepare: Callable[[Path, ExitStack], doc_sites.Site] = getattr(doc_sites, session[0].value.replace("-", "_"))
    with ExitStack() as stack:
        site = prepare(tmp_path, stack)
        for block, step in ((block, step) for block in session for step in steps(block)):
            done = subprocess.run(
                ["bash", "-c", site.real(step.command)],
                cwd=site.folder, env=site.env, text=True, timeout=300,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert "Traceback" not in done.stdout, done.stdout
            found = difference(step.shown, site.shown(done.stdout).splitlines())
            assert not found, f"{block}: {step.command}\n{found}\n\n{done.stdout}"


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_block_says_what_runs_it(block: Block) -> None:
    assert block.kind, "put <!-- run: ... -->, <!-- tested: ... --> or <!-- excerpt: ... --> above it (doc_blocks.py)"
    if block.kind == "tested":
        path, _, test = block.value.partition("::")
        assert (ROOT / path).exists()
        assert not test or test in _functions(ROOT / path)


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_python_blocks_compile(block: Block) -> None:
    compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_a_difference_is_found() -> None:
    assert not difference(("a 1.2 s", "...", "c"), ["a 7 s", "b", "b", "c"])
    assert not difference(("id        age", "────"), ["id  age", "──"])
    assert "shown, not printed: 'b'" in difference(("a", "b"), ["a", "c"])
    assert "printed, not shown: 'c'" in difference(("a",), ["a", "c"])
    assert "shown, not printed" in difference(("...", "c"), ["a", "b"])
