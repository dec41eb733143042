"""In a rollout tools are answered from the record: by name and arguments, each recorded execution once, in order."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel

import arttrace
from arttrace.capture.context.recorded_tools import RecordedTools, ToolNotRecorded
from arttrace.capture.patches.frameworks.runs import Called, LibraryToolRun
from arttrace.records.rollout import RecordedTool, ToolRecord

pytestmark = pytest.mark.usefixtures("records")

ran: list[str] = []


@arttrace.tool
def look(q: str, page: int = 1) -> Any:
    ran.append(f"look {q}")
    return f"live {q}"


@arttrace.tool
async def alook(q: str) -> Any:
    ran.append(f"alook {q}")
    return f"live {q}"


@arttrace.tool
def pages(q: str) -> Any:
    ran.append(f"pages {q}")
    yield q


class Shop(BaseModel):
    name: str


@dataclasses.dataclass
class Price:
    cents: int
    shop: Shop


@arttrace.tool
def cheapest(q: str) -> Price | None:
    ran.append(f"cheapest {q}")
    return None


@arttrace.tool
async def shops(q: str) -> list[Shop]:
    ran.append(f"shops {q}")
    return []


@arttrace.tool
def untold(q: str):  # type: ignore[no-untyped-def]
    ran.append(f"untold {q}")


def library_tool(q: str) -> Any:
    run = LibraryToolRun("some library", lambda: Called("lib", {"q": q}))
    with run:
        answer = run.answer(lambda tool: tool.result)
        if answer is not None:
            return answer()
        ran.append(f"lib {q}")
        return q


RECORD = (
    RecordedTool("look", {"page": 1, "q": "a"}, "first"),
    RecordedTool("look", {"q": "a", "page": 1}, {"second": [1]}),
    RecordedTool("look", {"q": "b", "page": 2}, error="KeyError", message="b"),
    RecordedTool("alook", {"q": "a"}, "third"),
    RecordedTool("cheapest", {"q": "a"}, {"cents": 5, "shop": {"name": "corner"}}),
    RecordedTool("cheapest", {"q": "b"}),
    RecordedTool("shops", {"q": "a"}, [{"name": "corner"}]),
    RecordedTool("untold", {"q": "a"}, {"cents": 5}),
)


def play(what: Any, on_missing: Any = "error") -> Any:
    ran.clear()
    return arttrace.run_entry(what, {}, tools=RecordedTools(ToolRecord(RECORD, on_missing)))


def test_each_recorded_execution_answers_once_in_order() -> None:
    def entry() -> Any:
        first, second = look("a"), look(q="a")
        with pytest.raises(KeyError, match="b"):
            look("b", page=2)
        with pytest.raises(ToolNotRecorded, match=r"look\("):
            look("a")
        return first, second, asyncio.run(alook("a"))

    assert play(entry) == ("first", {"second": [1]}, "third")
    assert ran == []


def test_results_are_of_the_types_that_a_tool_is_annotated_to_return() -> None:
    def entry() -> Any:
        return cheapest("a"), cheapest("b"), asyncio.run(shops("a")), untold("a")

    corner = Shop(name="corner")
    assert play(entry) == (Price(5, corner), None, [corner], {"cents": 5})
    assert ran == []


@pytest.mark.parametrize(("tool", "name"), [(look, "look"), (lambda q: list(pages(q)), "pages"), (library_tool, "lib")])
def test_what_the_record_does_not_hold_fails_or_is_run(tool: Any, name: str) -> None:
    def entry() -> Any:
        return tool("z")

    with pytest.raises(ToolNotRecorded, match=name):
        play(entry)
    assert ran == []
    play(entry, "live")
    assert ran == [f"{name} z"]


def test_outside_of_rollouts_every_tool_runs() -> None:
    ran.clear()
    assert arttrace.trajectory(lambda: look("a"))() == "live a"
    assert arttrace.run_entry(lambda: look("a"), {}) == "live a"
    assert ran == ["look a", "look a"]
