"""The public surface to a type checker: every decorator keeps the signature it wraps, and capture runs anywhere."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

from mypy import api

import arttrace

PROGRAM = """
import arttrace
from limits import limit_concurrency, retry
from collections.abc import AsyncIterator, Iterator

@arttrace.trajectory
def plain(a: int, *, b: str = "x") -> float: return 1.0
@arttrace.agent(name="n")
async def coroutine(a: int) -> str: return ""
@arttrace.tool()
def generator(n: int) -> Iterator[int]: yield n
@arttrace.trajectory(group=lambda a: "g", tags=["t"], capture_content="off")
async def async_generator(a: int) -> AsyncIterator[int]: yield a
class C:
    @arttrace.agent
    def method(self, a: int) -> str: return ""
    @classmethod
    @arttrace.agent
    def class_outside(cls, a: int) -> str: return ""
    @arttrace.agent
    @classmethod
    def class_inside(cls, a: int) -> str: return ""
    @staticmethod
    @arttrace.tool(name="t")
    def static_outside(a: int) -> str: return ""
    @arttrace.tool(name="t")
    @staticmethod
    def static_inside(a: int) -> str: return ""
@arttrace.no_capture()
def quiet(a: int) -> str: return ""
@retry(max_attempts=2)
async def again(a: int) -> str: return ""
@limit_concurrency(2)
async def few(a: int) -> str: return ""
@limit_concurrency(2, derive_key=lambda a: a)
async def few_of_a_kind(a: str) -> str: return ""

reveal_type(plain)
reveal_type(coroutine)
reveal_type(generator)
reveal_type(async_generator)
reveal_type(C().method)
reveal_type(C.class_outside)
reveal_type(C.class_inside)
reveal_type(C.static_outside)
reveal_type(C.static_inside)
reveal_type(quiet)
reveal_type(again)
reveal_type(few)
reveal_type(few_of_a_kind)
with arttrace.trajectory(name="run") as run:
    reveal_type(run.id)
    run.update(metadata={"a": 1}, tags=["b"])
    run.reward(1.0)
async def main() -> None:
    async with arttrace.trajectory(name="run") as run:
        reveal_type(run.id)
plain("x")
run.reward("high")
"""

REVEALED = [
    "def (a: int, *, b: str =) -> float",
    "def (a: int) -> typing.Coroutine[Any, Any, str]",
    "def (n: int) -> typing.Iterator[int]",
    "def (a: int) -> typing.AsyncIterator[int]",
    *["def (a: int) -> str"] * 6,
    *["def (a: int) -> typing.Coroutine[Any, Any, str]"] * 2,
    "def (a: str) -> typing.Coroutine[Any, Any, str]",
    "str",
    "str",
]


def test_a_type_checker_sees_what_it_saw_without_us(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    # A copy: to check arttrace.loop takes three times as long.
    shutil.copy(Path(arttrace.__file__).parent / "loop" / "gathering" / "limits.py", tmp_path)
    out, _, _ = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "program.py")])
    assert re.findall(r'Revealed type is "(.*)"', out) == REVEALED
    errors = re.findall(r"error: (.*)  \[", out)
    assert list(dict.fromkeys(re.sub(r" of \S+", "", error) for error in errors)) == [
        'Argument 1 to "plain" has incompatible type "str"; expected "int"',
        'Argument 1 to "reward" has incompatible type "str"; expected "float"',
    ]


def test_capture_needs_no_posix(tmp_path: Path) -> None:
    root = Path(arttrace.__file__).parent
    parts = [str(root / part) for part in ("capture", "system", "wire", "records")]
    settings = str(root.parent / "pyproject.toml")
    # What capture is made of, and not what the package's own names lead to besides: the store is not for Windows.
    options = ["--platform", "win32", "--follow-imports", "silent"]
    out, err, status = api.run([*options, "--config-file", settings, "--cache-dir", str(tmp_path), *parts])
    assert status == 0, out + err
