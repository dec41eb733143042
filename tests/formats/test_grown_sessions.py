"""A session that goes on is imported again: its run has the new turns, in whatever order its readings come."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from system_files import CODEX, GEMINI, SESSION, SUB_AGENT, answered, done, event, line, lines, ran, spoken, told, use

from arttrace.commands import cli
from arttrace.formats import imported_files
from arttrace.formats.imported_files import read_file
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.store.access.late_spans import late
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.identity.deduplicate import deduplicate

TURNS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]] = {
    "claude": (
        SESSION,
        [
            line("w1", "u9", "user", "And then?", 20),
            line("w2", "w1", "assistant", [use("t9")], 21, answer="a4"),
            line("w3", "w2", "user", [done("t9", "nine")], 22),
            line("w4", "w3", "assistant", [{"type": "text", "text": "Nine."}], 23, answer="a5"),
        ],
        [
            line("y1", "w4", "user", "Last.", 30),
            line("y2", "y1", "assistant", [{"type": "text", "text": "."}], 31, answer="a6"),
        ],
    ),
    "codex": (
        CODEX,
        [
            spoken(20, "user", "And then?"),
            event(21, "response_item", type="function_call", name="exec", arguments='{"cmd":"cat"}', call_id="k9"),
            event(22, "response_item", type="function_call_output", call_id="k9", output="nine"),
            spoken(23, "assistant", "Nine."),
        ],
        [spoken(30, "user", "Last."), spoken(31, "assistant", ".")],
    ),
    "gemini": (
        GEMINI,
        [
            told("n1", 20, "user", "And then?"),
            answered("n2", 21, "", toolCalls=[ran("r9", 22, "nine")]),
            answered("n3", 23, "Nine."),
        ],
        [told("o1", 30, "user", "Last."), answered("o2", 31, ".")],
    ),
}
"""Of each program a session, and what it said later: the last answers are shorter than those before."""
CALLS = {"claude": (3, 5, 6), "codex": (2, 4, 5), "gemini": (3, 5, 6)}
programs = pytest.mark.parametrize("program", TURNS)


def grown(program: str, days: int) -> bytes:
    """The file of a session as it was on the first, second or third day."""
    return lines(*itertools.chain(*TURNS[program][:days]))


def imported(file: Path, content: bytes, data: DataDir) -> tuple[dict[str, Any], str]:
    """The report of the import of a file that holds this now, and what it warns of."""
    file.write_bytes(content)
    done = CliRunner().invoke(cli, ["import", str(file), "--dir", str(data.root), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    [report] = json.loads(done.stdout)
    return report, done.stderr


def stored(data: DataDir) -> tuple[int, str, Any, int]:
    """Of the one run its calls, why it is incomplete, its result and its conflicts; by the views as by the program."""
    with Store.open(data) as store:
        [run] = store.trajectories()
        [(calls, end_ns)] = store.sql(
            "SELECT (SELECT count(*) FROM calls), max(end_ns) FROM spans WHERE operation = 'invoke_agent'"
        )[1]
        [summary] = store.summaries()
    assert (calls, end_ns, summary.calls) == (len(run.calls), run.end_ns, len(run.calls))
    return len(run.calls), run.incomplete, run.result, run.conflicts


@programs
def test_what_a_session_said_since_is_imported_with_it(program: str, tmp_path: Path) -> None:
    data, file, calls = DataDir(tmp_path / "data"), tmp_path / "session.jsonl", CALLS[program]
    imported(file, grown(program, 1), data)
    for days, result in ((2, "Nine."), (3, ".")):
        report, _ = imported(file, grown(program, days), data)
        assert report["stored_otherwise"] == 0
        assert report["new"] > calls[days - 1] - calls[days - 2]  # the run's own span too
        assert stored(data) == (calls[days - 1], "", result, 0)
        again, _ = imported(file, grown(program, days), data)
        assert (again["new"], again["stored_otherwise"]) == (0, 0)


@programs
def test_an_older_copy_of_the_file_changes_nothing(program: str, tmp_path: Path) -> None:
    data, file = DataDir(tmp_path / "data"), tmp_path / "session.jsonl"
    imported(file, grown(program, 3), data)
    for days in (1, 2):
        report, _ = imported(file, grown(program, days), data)
        assert (report["new"], report["stored_otherwise"]) == (0, 0)
        assert stored(data) == (CALLS[program][2], "", ".", 0)


@programs
@pytest.mark.parametrize("order", [*itertools.permutations((1, 2, 3))])
def test_the_order_in_which_readings_come_never_matters(program: str, order: Sequence[int], tmp_path: Path) -> None:
    """As records of other stores, or of a journal that is read again: they are stored as they are."""
    with Store.open(data := DataDir(tmp_path / "data"), create=True) as store:
        for days in order:
            store.append(read_file(grown(program, days), "session").records[::-1])
    assert stored(data) == (CALLS[program][2], "", ".", 0)
    with Store.open(data) as store:
        [run] = store.trajectories()
    [alone] = build_trajectories(spans(read_file(grown(program, 3), "session").records))
    assert run.revision == alone.revision


@programs
def test_a_reading_that_is_no_continuation_stays_out(program: str, tmp_path: Path) -> None:
    """What was stored says something else now, or is gone: as before it is left as stored."""
    first, second, _ = TURNS[program]
    for name, changed in (("edited", edited(first)), ("gone", first[:-2])):
        data, file = DataDir(tmp_path / name), tmp_path / f"{name}.jsonl"
        imported(file, grown(program, 1), data)
        before = stored(data)
        report, _ = imported(file, lines(*changed, *second), data)
        assert (report["new"], report["stored_otherwise"]) == (0, 1), name
        assert stored(data) == before


def edited(session: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The session with another last answer."""
    text = json.dumps(session[-1])
    changed = text.replace("As before.", "Changed.").replace("There is one.", "There is none.")
    assert changed != text
    return [*session[:-1], json.loads(changed)]


@programs
def test_readings_that_contradict_each_other_otherwise_still_do(program: str) -> None:
    """The run's own span of a later reading says another start: it is not the same session."""
    first, later = (spans(read_file(grown(program, days), "session").records)[-1] for days in (1, 2))
    [one] = deduplicate([first, later]).values()
    assert (one.collided, one.conflicts, one.row) == (None, 0, later)
    moved = msgspec.structs.replace(later, start_ns=7)
    [one] = deduplicate([moved, first]).values()
    assert one.collided is not None


@programs
def test_what_was_given_to_the_run_and_who_trained_on_it_stay(program: str, tmp_path: Path) -> None:
    data, file = DataDir(tmp_path / "data"), tmp_path / "session.jsonl"
    imported(file, grown(program, 1), data)
    with Store.open(data) as store:
        [run] = store.trajectories()
        store.append(
            [
                Reward(id="r", trajectory_id=run.id, value=0.5, name="good", time_ns=1),
                PolicyStep("p", 1, "adapter", (Consumed(run.id, run.revision),), time_ns=1),
            ]
        )
        assert late(store, [run]) == {}
    imported(file, grown(program, 2), data)
    with Store.open(data) as store:
        [grown_run] = store.trajectories()
        assert grown_run.id == run.id
        assert [one.value for one in grown_run.rewards] == [0.5]
        assert (grown_run.scenario, grown_run.metadata, grown_run.project) == (run.scenario, run.metadata, run.project)
        assert late(store, [grown_run]) == {run.id: ("p@1",)}


@programs
def test_exported_and_imported_elsewhere_it_is_the_grown_run(program: str, tmp_path: Path) -> None:
    data, file = DataDir(tmp_path / "data"), tmp_path / "session.jsonl"
    for days in (1, 2):
        imported(file, grown(program, days), data)
    out = tmp_path / "out.jsonl"
    assert CliRunner().invoke(cli, ["export", "-o", str(out), "--dir", str(data.root)]).exit_code == 0
    for name, content in (("forward", out.read_bytes()), ("back", b"\n".join(out.read_bytes().splitlines()[::-1]))):
        imported(tmp_path / f"{name}.jsonl", content, elsewhere := DataDir(tmp_path / name))
        assert stored(elsewhere) == stored(data) == (CALLS[program][1], "", "Nine.", 0)


@programs
def test_a_session_of_several_batches_is_judged_as_a_whole(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imported_files, "_RECORDS_AT_ONCE", 2)
    data, file = DataDir(tmp_path / "data"), tmp_path / "session.jsonl"
    for days in (1, 3, 2):
        report, _ = imported(file, grown(program, days), data)
        assert report["stored_otherwise"] == 0
    assert stored(data) == (CALLS[program][2], "", ".", 0)


def test_beside_the_file_of_a_sub_agent_a_session_goes_on(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    first, second, _ = TURNS["claude"]
    for content in (lines(*first), lines(*SUB_AGENT), lines(*first, *second), lines(*SUB_AGENT)):
        report, _ = imported(tmp_path / "session.jsonl", content, data)
        assert report["stored_otherwise"] == 0
    calls, *others = stored(data)
    assert (calls, others) == (6, ["", "Nine.", 0])


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_beside_a_running_collector_a_session_goes_on(program: str, tmp_path: Path) -> None:
    data, file = DataDir(tmp_path / "data"), tmp_path / "session.jsonl"
    command = [sys.executable, "-m", "arttrace", "collect", "--port", "0", "--dir", str(data.root)]
    collector = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert collector.stdout is not None
        assert "collecting on" in collector.stdout.readline()
        for days in (1, 3, 2):
            report, _ = imported(file, grown(program, days), data)
            assert report["stored_otherwise"] == 0
    finally:
        collector.terminate()
        collector.wait(30)
    assert stored(data) == (CALLS[program][2], "", ".", 0)


def spans(records: Sequence[Record]) -> list[SpanRow]:
    return [one for one in records if isinstance(one, SpanRow)]


def thinks(id: str, parent: str, at: int, **more: Any) -> dict[str, Any]:
    """A line of an answer of Claude Code's, of which others follow: it says no reason to stop."""
    found = line(id, parent, "assistant", [{"type": "thinking", "thinking": "Hm.", "signature": "x"}], at, **more)
    return {**found, "message": {**found["message"], "stop_reason": None}}


def unstopped(one: dict[str, Any], output_tokens: int) -> dict[str, Any]:
    usage = {**one["message"]["usage"], "output_tokens": output_tokens}
    return {**one, "message": {**one["message"], "stop_reason": None, "usage": usage}}


TEXT = {"type": "text", "text": "I look."}
ANSWERS: dict[str, list[dict[str, Any]]] = {
    "claude": [
        line("w1", "u9", "user", "And then?", 20),
        thinks("w2", "w1", 21, answer="a4"),
        unstopped(line("w3", "w2", "assistant", [TEXT], 22, answer="a4"), 1),
        line("w4", "w3", "assistant", [use("t9")], 23, answer="a4"),
        line("w5", "w4", "assistant", [use("t10")], 24, answer="a4"),
        line("w6", "w4", "user", [done("t9", "nine")], 25),
        line("w7", "w5", "user", [done("t10", "ten")], 26),
        line("w8", "w7", "assistant", [{"type": "text", "text": "Nine."}], 27, answer="a5"),
    ],
    "codex": [
        event(20, "event_msg", type="task_started"),
        spoken(20, "user", "And then?"),
        event(21, "response_item", type="reasoning", summary=[{"type": "summary_text", "text": "Hm."}]),
        spoken(22, "assistant", "I look."),
        event(23, "response_item", type="function_call", name="exec", arguments='{"cmd":"cat"}', call_id="k9"),
        event(24, "response_item", type="function_call", name="exec", arguments='{"cmd":"ls"}', call_id="k10"),
        event(25, "event_msg", type="token_count", info={"last_token_usage": {"input_tokens": 9, "output_tokens": 4}}),
        event(25, "response_item", type="function_call_output", call_id="k9", output="nine"),
        event(26, "response_item", type="function_call_output", call_id="k10", output="ten"),
        spoken(27, "assistant", "Nine."),
        event(28, "event_msg", type="task_complete"),
    ],
}
"""Of each program a turn with an answer of four parts."""
CUTS = {"claude": (2, 3, 4, 5), "codex": (3, 4, 5, 6)}
"""Behind how many lines the answer has one part, two, three or all, and no result."""
in_parts = pytest.mark.parametrize("program", ANSWERS)
BEING_WRITTEN = "its last answer was being written, or waited for tools, when it was read"


FIRST = {"claude": SESSION, "codex": [*CODEX, event(5, "event_msg", type="task_complete")]}


def cut(program: str, lines_of_turn: int | None = None) -> bytes:
    return lines(*FIRST[program], *ANSWERS[program][:lines_of_turn])


def parts(data: DataDir) -> list[list[Any]]:
    """The parts of the answers of the one run, and how they stand in SQL."""
    with Store.open(data) as store:
        [run] = store.trajectories()
        in_sql = store.sql("SELECT output_messages FROM calls ORDER BY started, span_id")[1]
    said = [[type(part).__name__ for part in choice.message.parts] for one in run.calls for choice in one.call.choices]
    assert [len(json.loads(text)[0]["parts"]) for (text,) in in_sql] == list(map(len, said))
    return said


@pytest.mark.parametrize("order", [(2, 3, 4), (4, 3, 2), (3, 4, 2)])
def test_the_file_of_a_sub_agent_that_goes_on_has_its_later_end(order: Sequence[int], tmp_path: Path) -> None:
    of_it = [
        *SUB_AGENT,
        line("v3", "v2", "user", "More.", 7, isSidechain=True, agentId="ag"),
        line("v4", "v3", "assistant", [use("t9")], 9, isSidechain=True, agentId="ag", answer="b2"),
    ]
    file = tmp_path / "agent-ag.jsonl"
    records = {count: read_file(lines(*of_it[:count]), "agent-ag").records for count in order}
    with Store.open(DataDir(tmp_path / "whole"), create=True) as store:
        store.append(read_file(lines(*SESSION), "session").records)
        for count in order:
            store.append(records[count])
        [run] = store.trajectories()
        [(in_sql,)] = store.sql("SELECT seconds FROM agents WHERE name = 'sub-agent'")[1]
    assert (run.incomplete, run.conflicts, len(run.calls)) == ("", 0, 5)
    assert (run.agents[1].end_ns - run.agents[1].start_ns, in_sql) == (4_000_000_000, 4.0)
    imported(tmp_path / "session.jsonl", lines(*SESSION), data := DataDir(tmp_path / "data"))
    for count in order:
        report, _ = imported(file, lines(*of_it[:count]), data)
        assert report["stored_otherwise"] == 0
    assert stored(data)[:2] == (5, "")


@in_parts
@pytest.mark.parametrize("cut_at", range(4))
def test_an_answer_that_was_cut_when_it_was_imported_is_whole_at_the_next_import(
    program: str, cut_at: int, tmp_path: Path
) -> None:
    data, file = DataDir(tmp_path / "data"), tmp_path / "session.jsonl"
    imported(file, cut(program, CUTS[program][cut_at]), data)
    calls, incomplete, _, _ = stored(data)
    assert (calls, incomplete) == (CALLS[program][0] + 1, f"interrupted: {BEING_WRITTEN}")
    report, _ = imported(file, cut(program), data)
    assert report["stored_otherwise"] == 0
    assert stored(data) == (CALLS[program][0] + 2, "", "Nine.", 0)
    assert parts(data)[-2:] == [["ReasoningPart", "TextPart", "ToolCallPart", "ToolCallPart"], ["TextPart"]]
    again, _ = imported(file, cut(program), data)
    assert (again["new"], again["stored_otherwise"]) == (0, 0)


@in_parts
def test_each_longer_reading_of_an_answer_holds_in_whichever_order_they_come(program: str, tmp_path: Path) -> None:
    alone = build_trajectories(spans(read_file(cut(program), "session").records))[0]
    readings = [cut(program, at) for at in (*CUTS[program], None)]
    for number, order in enumerate((readings, readings[::-1], readings[2:] + readings[:2])):
        data = DataDir(tmp_path / str(number))
        for content in order:
            report, _ = imported(tmp_path / "session.jsonl", content, data)
            assert report["stored_otherwise"] == 0
        assert stored(data) == (CALLS[program][0] + 2, "", "Nine.", 0)
        with Store.open(data) as store:
            assert store.trajectories()[0].revision == alone.revision
        with Store.open(journaled := DataDir(tmp_path / f"journaled {number}"), create=True) as store:
            for content in order:
                store.append(read_file(content, "session").records[::-1])
        assert stored(journaled) == (CALLS[program][0] + 2, "", "Nine.", 0)


@in_parts
def test_an_answer_that_says_something_else_now_is_no_longer_one(program: str, tmp_path: Path) -> None:
    data, file = DataDir(tmp_path / "data"), tmp_path / "session.jsonl"
    imported(file, cut(program, CUTS[program][1]), data)
    before = stored(data)
    changed = cut(program).replace(b"I look.", b"I wait.")
    report, _ = imported(file, changed, data)
    assert (report["new"], report["stored_otherwise"]) == (0, 1)
    assert stored(data) == before


@in_parts
def test_a_session_that_waits_for_the_person_is_complete(program: str, tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    imported(tmp_path / "session.jsonl", cut(program), data)
    assert stored(data)[1:3] == ("", "Nine.")
