"""What a pull cannot read or store is refused alone, and the run that lacks it is called incomplete until it comes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from langfuse_server import LangfuseServer, langfuse_server

from arttrace.commands import cli
from arttrace.formats.sdks.langfuse import names
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

TRACE, ROOT, LEAF = "ab" * 16, "0a" * 8, "0c" * 8
TIMES = {"startTime": "2026-03-01T10:00:00.000Z", "endTime": "2026-03-01T10:00:01.000Z"}
MESSAGES = [{"role": "user", "content": "hi"}]
AGENT: dict[str, Any] = {
    "traceId": TRACE, "id": ROOT, "parentObservationId": None, "type": "AGENT", "name": "agent",
    "isRootObservation": True, "tags": ["x"], "metadata": {"k": "v"}, **TIMES,
}  # fmt: skip
CALL: dict[str, Any] = {
    "traceId": TRACE, "id": LEAF, "parentObservationId": ROOT, "type": "GENERATION", "name": "ask", "input": MESSAGES,
    "output": {"role": "assistant", "content": "yo"}, "model": "m", "modelParameters": {"temperature": 1},
    "usageDetails": {"input": 3, "output": 1}, "level": "DEFAULT", "statusMessage": None, "sessionId": "s",
    "userId": "u", "traceName": "t", "environment": "default", "release": "r",
    "metadata": {"attributes.gen_ai.request.model": "m", "scope": {"name": "x"}, "resourceAttributes": {"a": "b"}},
    **TIMES,
}  # fmt: skip
SCORE: dict[str, Any] = {
    "id": "s", "name": "good", "value": 1, "dataType": "NUMERIC", "source": "API", "comment": "so", "metadata": {},
    "timestamp": TIMES["endTime"], "subject": {"kind": "observation", "id": LEAF, "traceId": TRACE},
}  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LangfuseServer]:
    """One whose observations are whatever its `answers` say, the scores too."""
    with langfuse_server() as running:
        running.answers = {"observations": [AGENT, CALL], "scores": []}  # type: ignore[attr-defined]
        for kind in ("observations", "scores"):
            monkeypatch.setattr(
                running,
                f"list_{kind}",
                lambda query, kind=kind: running._page(running.answers[kind], query, most=1000, usual=50),  # type: ignore[attr-defined]
            )
        yield running


def pulled(server: LangfuseServer, folder: Path) -> tuple[int, dict[str, Any], str]:
    done = CliRunner().invoke(cli, ["langfuse", "pull", "--json", "--dir", str(folder)], env=server.environ())
    assert done.exception is None or isinstance(done.exception, (SystemExit, ArttraceError)), done.exception
    assert done.stdout, str(done.exception)
    return done.exit_code, json.loads(done.stdout), str(done.exception)


def incomplete(folder: Path) -> list[str]:
    with Store.open(DataDir(folder)) as store:
        return [one.incomplete for one in store.trajectories()]


def carrying(span: dict[str, Any]) -> dict[str, Any]:
    """The call as a push made it, with this in the span that it carries."""
    row = {"trace_id": TRACE, "span_id": LEAF, "name": "ask", "start_ns": 1, "end_ns": 2, **span}
    return {**CALL, "metadata": {names.SPAN_KEY: json.dumps({"span": {"type": "span", **row}, "shown": []})}}


DEEP: Any = {}
for _ in range(80):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({**CALL, "startTime": "soon"}, f"observation {LEAF}: startTime is no time"),
        ({**CALL, "startTime": "1871-01-01T00:00:00.000Z"}, "its times are not nanoseconds since 1970"),
        (carrying({"attributes": {"deep": DEEP}}), "nested deeper than 64 levels"),
        (carrying({"kind": 1 << 40}), "a number is out of range"),
        (carrying({"links": [{"trace_id": "no hex", "span_id": LEAF}]}), "the ids of a link are not hexadecimal"),
        ({**CALL, "id": None}, "an observation of Langfuse has an id and a traceId"),
    ],
    ids=["no time", "before 1970", "deep", "number", "link", "no id"],
)
def test_a_run_of_which_an_observation_was_refused_is_not_complete(
    bad: dict[str, Any], reason: str, server: LangfuseServer, tmp_path: Path
) -> None:
    server.answers = {"observations": [AGENT, bad], "scores": []}  # type: ignore[attr-defined]
    code, said, heard = pulled(server, tmp_path)
    assert (code, said["observations"], said["refused"]) == (1, 1, 1)
    assert reason in said["reasons"][0]
    assert reason in heard
    [lacks] = incomplete(tmp_path)
    assert lacks.startswith("a span was refused: ")
    assert reason in lacks
    server.answers = {"observations": [AGENT, CALL], "scores": []}  # type: ignore[attr-defined]
    code, said, _ = pulled(server, tmp_path)
    assert (code, said["refused"]) == (0, 0)
    assert incomplete(tmp_path) == ([lacks] if bad["id"] is None else [""])


def test_a_refused_observation_of_a_trace_of_its_own_makes_no_run(server: LangfuseServer, tmp_path: Path) -> None:
    server.answers = {  # type: ignore[attr-defined]
        "observations": [AGENT, CALL, {**CALL, "traceId": "cd" * 16, "startTime": "soon"}], "scores": []
    }  # fmt: skip
    assert pulled(server, tmp_path)[0] == 1
    assert incomplete(tmp_path) == [""]


def test_half_a_surrogate_pair_costs_no_page(server: LangfuseServer, tmp_path: Path) -> None:
    """A model that was cut inside an emoji answers one, and JavaScript writes it as an escape."""
    server.answers = {"observations": [AGENT, {**CALL, "output": "so \ud83d"}], "scores": []}  # type: ignore[attr-defined]
    assert pulled(server, tmp_path)[0] == 0
    with Store.open(DataDir(tmp_path)) as store:
        [run] = store.trajectories()
    assert run.calls[0].call.choices[0].message.text == "so \ufffd"


OTHERS: list[Any] = [
    None, True, 0, -1, 2**70, 1e300, "", "x", "{", "\ud800", [], [[]], [None], {}, {"a": {}}, ["x", 1], DEEP,
]  # fmt: skip


def changed(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*at, key)
        yield from changed(one, (*at, key))


def every_change(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for place in changed(whole):
        for other in OTHERS:
            made = copy.deepcopy(whole)
            holder: Any = made
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = other
            yield made


def test_any_value_in_any_place_costs_no_other_observation(server: LangfuseServer, tmp_path: Path) -> None:
    """Whatever another tracer wrote there, or a later version answers."""
    made = []
    for number, call in enumerate([*every_change(CALL), *every_change(AGENT)]):
        own = f"{number + 1:032x}"
        call = {**call, "traceId": own} if call["traceId"] == TRACE else call
        made += [call, {**AGENT, "traceId": own, "id": f"{number + 1:016x}"}]
    scores = [
        {**score, "id": f"{number}"} if score["id"] == "s" else score
        for number, score in enumerate(every_change(SCORE))
    ]
    server.answers = {"observations": made, "scores": scores}  # type: ignore[attr-defined]
    _, said, _ = pulled(server, tmp_path)
    assert said["observations"] + said["scores"] + said["not_numeric"] + said["refused"] <= len(made) + len(scores)
    assert said["observations"] > len(made) // 2
    with Store.open(DataDir(tmp_path)) as store:
        known = {agent.id for one in store.trajectories() for agent in one.agents}
    assert {f"{number + 1:016x}" for number in range(len(made) // 2)} <= known
