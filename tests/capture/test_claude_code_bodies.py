"""The bodies that Claude Code writes, read while they are written: what is half there waits, what is nobody's stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import arttrace
from arttrace.capture.patches.frameworks.claude_agent import claude_code as claude_code_module
from arttrace.capture.patches.frameworks.claude_agent.bodies import INDEX, RefusedAttempt, WrittenBodies
from arttrace.capture.patches.frameworks.claude_agent.claude_code import ClaudeCode
from arttrace.capture.patches.frameworks.claude_agent.directory import OwnDirectory
from arttrace.capture.patches.frameworks.claude_agent.sub_agents import SubAgents, restore_thoughts
from arttrace.records import semconv
from arttrace.trajectories import build_trajectories

AT = 1_800_000_000
SAID = b'{"id":"m1","content":[]}'


def line(request: str = "a.request.json", answer: str = "b.response.json", **more: Any) -> bytes:
    named = {"timestamp": "2027-01-15T08:00:02.500Z", "query_source": "sdk", "message_id": "m1"}
    return json.dumps({**named, "request_file": request, "response_file": answer, **more}).encode() + b"\n"


def write(directory: Path, name: str, content: bytes, at: float = AT) -> None:
    (directory / name).write_bytes(content)
    os.utime(directory / name, (at, at))


def test_a_call_is_taken_when_all_of_it_is_there(tmp_path: Path) -> None:
    bodies = WrittenBodies(tmp_path)
    assert [*bodies.take([])] == []
    write(tmp_path, "a.request.json", b'{"model":"m"}')
    whole = line()
    write(tmp_path, INDEX, whole[:-20])
    assert [*bodies.take([])] == []
    write(tmp_path, INDEX, whole)
    assert [*bodies.take([])] == []  # the answer is not there
    write(tmp_path, "b.response.json", SAID[:-3])
    assert [*bodies.take([])] == []
    write(tmp_path, "b.response.json", SAID)
    [call] = bodies.take([])
    assert (call.request, call.answer, call.answer_id, call.source) == (b'{"model":"m"}', SAID, "m1", "sdk")
    assert (call.asked, call.said) == ({"model": "m"}, {"id": "m1", "content": []})
    assert (call.started_ns, call.ended_ns) == (AT * 10**9, (AT + 2) * 10**9 + 500_000_000)
    assert [*bodies.take([])] == []
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]


def test_a_request_that_is_written_last_is_waited_for(tmp_path: Path) -> None:
    """Claude Code writes it beside sending it: on a slow disk the answer is there first."""
    bodies = WrittenBodies(tmp_path)
    write(tmp_path, INDEX, line())
    write(tmp_path, "b.response.json", SAID)
    assert [*bodies.take([])] == []
    for half in (b"", b'{"mod'):
        write(tmp_path, "a.request.json", half)
        assert [*bodies.take([])] == []
    write(tmp_path, "a.request.json", b'{"model":"m"}')
    [call] = bodies.take([])
    assert (call.request, call.answer) == (b'{"model":"m"}', SAID)
    assert [*bodies.take([]), *bodies.rest([])] == []


def test_attempts_of_one_request_are_of_one_call(tmp_path: Path) -> None:
    for at, name in enumerate(("a1", "a2", "a3", "other")):
        write(tmp_path, f"{name}.request.json", b"{}" if name != "other" else b"[]", AT + at / 2)
    write(tmp_path, "b.response.json", SAID)
    write(tmp_path, INDEX, line("a3.request.json"))
    refusals = [RefusedAttempt(1, 529), RefusedAttempt(2, None)]
    [call] = WrittenBodies(tmp_path).take(refusals)
    assert call.refused == (RefusedAttempt(1, 529), RefusedAttempt(2, None))
    assert refusals == []
    assert [path.name for path in tmp_path.glob("*.request.json")] == ["other.request.json"]


def test_requests_without_an_answer_are_the_rest(tmp_path: Path) -> None:
    write(tmp_path, "a1.request.json", b"{}", AT)
    write(tmp_path, "a2.request.json", b"{}", AT + 1)
    write(tmp_path, "c.request.json", b"[]", AT + 2)
    bodies = WrittenBodies(tmp_path)
    first, second = bodies.rest([RefusedAttempt(5, 400)])
    assert (first.request, first.answer, [each.status for each in first.refused]) == (b"{}", None, [400, None])
    assert (second.request, second.started_ns) == (b"[]", (AT + 2) * 10**9)
    assert [*bodies.rest([])] == []


def test_without_an_index_nothing_is_guessed(tmp_path: Path) -> None:
    write(tmp_path, "a.request.json", b"{}")
    write(tmp_path, "b.response.json", SAID)
    bodies = WrittenBodies(tmp_path)
    assert [*bodies.take([]), *bodies.rest([])] == []


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", 7, None])
def test_nothing_elsewhere_is_read(name: Any, tmp_path: Path) -> None:
    directory = tmp_path / "bodies"
    directory.mkdir()
    write(tmp_path, "secret", b"{}")
    write(directory, "b.response.json", SAID)
    write(directory, INDEX, b"no json\n[]\n" + line(name))
    assert [*WrittenBodies(directory).take([])] == []
    assert (tmp_path / "secret").exists()


def test_thoughts_are_put_back_by_their_signatures() -> None:
    """Claude Code leaves them out of what it writes, and tells the SDK of them."""
    left_out = {"type": "thinking", "thinking": "<REDACTED>", "signature": "s1"}
    request = {"messages": [{"role": "assistant", "content": [dict(left_out)]}, {"role": "user", "content": "go"}]}
    answer = {"content": [{**left_out, "signature": "s2"}, {"type": "text", "text": "hi"}]}
    assert restore_thoughts({"s1": "I see."}, request, answer)
    assert request["messages"][0]["content"] == [{"type": "thinking", "thinking": "I see.", "signature": "s1"}]
    assert answer["content"][0] == {"type": "redacted_thinking", "data": ""}
    assert not restore_thoughts({}, {"messages": "?"}, {"content": None})


def test_an_answer_that_waits_is_not_read_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, reads = WrittenBodies(tmp_path), 0
    write(tmp_path, "a.request.json", b"{}")
    write(tmp_path, INDEX, line())
    write(tmp_path, "b.response.json", SAID[:-3])
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        nonlocal reads
        reads += 1
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    for _ in range(20):
        assert [*bodies.take([])] == []
    assert reads == 1


HELD = """
import os, sys
from pathlib import Path
from arttrace.capture.patches.frameworks.claude_agent.directory import OwnDirectory
directory = OwnDirectory(Path(sys.argv[1]))
(directory.path / "a.request.json").write_text("{}")
print("made", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_has_left_is_removed_and_no_other(tmp_path: Path) -> None:
    killed, living = (
        subprocess.Popen([sys.executable, "-c", HELD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    )
    with killed, living:
        for process in (killed, living):
            assert process.stdout is not None
            assert process.stdout.readline() == b"made\n"
        before = {path.parent for path in tmp_path.rglob("*.request.json")}
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        mine = OwnDirectory(tmp_path)
        left = {path for path in tmp_path.iterdir() if path.is_dir()}
        assert len(before) == 2
        assert len(left - {mine.path}) == 1
        mine.remove()
        assert len([*tmp_path.iterdir()]) == 2  # the living one's, and its lock
        living.communicate()
    assert [*tmp_path.iterdir()] == []


def told(id: str, prompt: str, by: str | None = None) -> dict[str, Any]:
    call = {"type": "tool_use", "id": id, "name": "Agent", "input": {"prompt": prompt, "subagent_type": "s"}}
    return {"type": "assistant", "parent_tool_use_id": by, "message": {"id": f"m {id}", "content": [call]}}


def asks(prompt: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "reminder"}, {"type": "text", "text": prompt}]}
        ]
    }


async def test_a_prompt_that_holds_another_one_is_not_that_ones(spans: Any) -> None:
    agents = SubAgents()
    with arttrace.trajectory(name="root"):
        agents.saw(told("t1", "Research cats"))
        agents.saw(told("t2", "Research cats and dogs"))
        second = agents.scope_of(asks("Research cats and dogs"), {}, "agent:x", 1)
        first = agents.scope_of(asks("Research cats"), {}, "agent:x", 1)
        again = agents.scope_of(asks("Research cats and dogs"), {}, "agent:x", 1)
        agents.close()
    assert first is not None
    assert second is not None
    assert first is not second is again


def test_a_sub_agent_ends_when_claude_code_says_so() -> None:
    agents = SubAgents()
    agents.saw(told("t1", "in the foreground"))
    agents.saw(told("t2", "moved to the background"))
    agents.saw({"type": "system", "subtype": "task_started", "task_id": "k2", "tool_use_id": "t2"})
    moved = {"type": "system", "subtype": "task_updated", "task_id": "k2", "patch": {"is_backgrounded": True}}
    assert agents.saw(moved) == set()
    results = [{"type": "tool_result", "tool_use_id": id} for id in ("t1", "t2")]
    assert agents.saw({"type": "user", "message": {"content": results}}) == {"t1"}
    over = {"type": "system", "subtype": "task_updated", "task_id": "k2", "patch": {"status": "completed"}}
    assert agents.saw(over) == {"t2"}


@pytest.mark.parametrize(
    ("told", "provider", "address"),
    [
        ({}, "anthropic", "api.anthropic.com"),
        ({"ANTHROPIC_BASE_URL": "http://proxy:8080/"}, "anthropic", "proxy"),
        ({"CLAUDE_CODE_USE_BEDROCK": "1"}, "aws.bedrock", None),
        ({"CLAUDE_CODE_USE_VERTEX": "true", "ANTHROPIC_BASE_URL": "http://proxy"}, "gcp.vertex_ai", None),
        ({"CLAUDE_CODE_USE_FOUNDRY": "on"}, "azure.ai.inference", None),
        ({"CLAUDE_CODE_USE_BEDROCK": "0", "CLAUDE_CODE_USE_VERTEX": "false"}, "anthropic", "api.anthropic.com"),
    ],
)
async def test_a_call_names_the_service_that_was_asked(
    told: dict[str, str], provider: str, address: str | None, tmp_path: Path, spans: Any
) -> None:
    directory = OwnDirectory(tmp_path / "bodies")
    with arttrace.trajectory(name="root"):
        claude_code = ClaudeCode(directory, told)
        write(directory.path, "a.request.json", b'{"model":"m","messages":[]}')
        write(directory.path, "b.response.json", SAID)
        write(directory.path, INDEX, line())
        claude_code.end()
    [call, _] = spans()
    assert call.attributes[semconv.PROVIDER_NAME] == provider
    assert call.attributes.get(semconv.SERVER_ADDRESS) == address
    assert not directory.path.exists()


async def test_one_agents_answer_that_does_not_come_costs_no_other_agents_call(tmp_path: Path, spans: Any) -> None:
    directory = OwnDirectory(tmp_path / "bodies")
    with arttrace.trajectory(name="root"):
        claude_code = ClaudeCode(directory, {})
        claude_code.saw(told("t1", "never told"))
        claude_code.saw(told("t2", "inside", by="t1"))
        write(directory.path, "a.request.json", b'{"model":"m","messages":[]}')
        await claude_code.settle({"t1"}, cut=True)
        write(directory.path, "b.response.json", SAID)
        write(directory.path, INDEX, line())
        claude_code.end()
    recorded = [span for span in spans() if span.attributes[semconv.OPERATION_NAME] == "chat"]
    assert [span.attributes[semconv.RESPONSE_ID] for span in recorded] == ["m1"]


async def test_a_call_that_comes_after_all_is_not_missed(tmp_path: Path, spans: Any) -> None:
    directory = OwnDirectory(tmp_path / "bodies")
    with arttrace.trajectory(name="late"):
        claude_code = ClaudeCode(directory, {})
        claude_code.saw({"type": "assistant", "message": {"id": "m1", "content": []}})
        await claude_code.settle({""}, cut=True)
        write(directory.path, "a.request.json", b'{"model":"m","messages":[]}')
        write(directory.path, "b.response.json", SAID)
        write(directory.path, INDEX, line())
        claude_code.take()
    with arttrace.trajectory(name="never"):
        claude_code.asked()
        claude_code.saw({"type": "assistant", "message": {"id": "m2", "content": []}})
        await claude_code.settle({""}, cut=True)
    claude_code.end()
    late, never = sorted(build_trajectories(spans()), key=lambda run: run.agents[0].name)
    assert (late.incomplete, len(late.calls)) == ("", 1)
    assert never.incomplete


@pytest.mark.parametrize(("said", "of"), [("first", "one"), ("first, then second", "two"), ("neither", "two")])
async def test_a_request_that_is_written_late_is_of_the_turn_whose_prompt_it_says(
    said: str, of: str, tmp_path: Path, spans: Any
) -> None:
    directory = OwnDirectory(tmp_path / "bodies")
    with arttrace.trajectory(name="one"):
        claude_code = ClaudeCode(directory, {})
        claude_code.asked("first")
    with arttrace.trajectory(name="two"):
        claude_code.asked("second")
    messages = [{"role": "user", "content": [{"type": "text", "text": f"{said}."}]}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    write(directory.path, "a.request.json", body, time.time() + 0.5)
    write(directory.path, "b.response.json", SAID)
    write(directory.path, INDEX, line(timestamp="2100-01-01T00:00:00Z"))
    claude_code.end()
    found = spans()
    names = {span.span_id: span.attributes.get(semconv.AGENT_NAME) for span in found}
    [call] = [span for span in found if span.attributes[semconv.OPERATION_NAME] == "chat"]
    assert names[call.parent_span_id] == of


async def test_an_answer_that_is_being_written_is_waited_for_longer(
    tmp_path: Path, spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claude_code_module, "_WAIT_S", 0.05)
    directory = OwnDirectory(tmp_path / "bodies")

    async def named_late() -> None:
        await asyncio.sleep(0.5)
        write(directory.path, INDEX, line() + line("a2.request.json", "b2.response.json", message_id="m2"))

    with arttrace.trajectory(name="root"):
        claude_code = ClaudeCode(directory, {})
        write(directory.path, "a.request.json", b'{"model":"m","messages":[]}')
        write(directory.path, "b.response.json", SAID)
        write(directory.path, INDEX, line())
        claude_code.take()
        claude_code.saw({"type": "assistant", "message": {"id": "m2", "content": []}})
        write(directory.path, "a2.request.json", b'{"model":"m","messages":[]}')
        write(directory.path, "b2.response.json", SAID.replace(b"m1", b"m2"))
        naming = asyncio.create_task(named_late())
        await claude_code.settle({""}, cut=False)
        assert naming.done()
        claude_code.end()
    [run] = build_trajectories(spans())
    assert (run.incomplete, len(run.calls)) == ("", 2)


async def test_an_answer_that_broke_off_is_not_waited_for(tmp_path: Path, spans: Any) -> None:
    """Claude Code tells of its beginning, and asks again."""
    directory = OwnDirectory(tmp_path / "bodies")
    with arttrace.trajectory(name="root"):
        claude_code = ClaudeCode(directory, {})
        for id in ("m0", "m1"):
            claude_code.saw({"type": "assistant", "message": {"id": id, "content": []}})
        write(directory.path, "a.request.json", b'{"model":"m","messages":[]}')
        write(directory.path, "b.response.json", SAID)
        write(directory.path, INDEX, line())
        claude_code.take()
        async with asyncio.timeout(4):  # of the five that one is waited for
            await claude_code.settle({""}, cut=False)
    claude_code.end()
    [run] = build_trajectories(spans())
    assert len(run.calls) == 1
    assert run.incomplete, "what was told of the broken one is not recorded"
