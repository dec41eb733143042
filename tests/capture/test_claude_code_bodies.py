"""The bodies that Claude Code writes, read while they are written: what is half there waits, what is nobody's stays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from arttrace.capture.patches.frameworks.claude_agent.bodies import INDEX, RefusedAttempt, WrittenBodies
from arttrace.capture.patches.frameworks.claude_agent.sub_agents import restore_thoughts

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
    assert bodies.take([]) == []
    write(tmp_path, "a.request.json", b'{"model":"m"}')
    whole = line()
    write(tmp_path, INDEX, whole[:-20])
    assert bodies.take([]) == []
    write(tmp_path, INDEX, whole)
    assert bodies.take([]) == []  # the answer is not there
    write(tmp_path, "b.response.json", SAID[:-3])
    assert bodies.take([]) == []
    write(tmp_path, "b.response.json", SAID)
    [call] = bodies.take([])
    assert (call.request, call.answer, call.answer_id, call.source) == (b'{"model":"m"}', SAID, "m1", "sdk")
    assert (call.started_ns, call.ended_ns) == (AT * 10**9, (AT + 2) * 10**9 + 500_000_000)
    assert bodies.take([]) == []
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]


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
    assert bodies.rest([]) == []


def test_without_an_index_nothing_is_guessed(tmp_path: Path) -> None:
    write(tmp_path, "a.request.json", b"{}")
    write(tmp_path, "b.response.json", SAID)
    bodies = WrittenBodies(tmp_path)
    assert (bodies.take([]), bodies.rest([])) == ([], [])


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", 7, None])
def test_nothing_elsewhere_is_read(name: Any, tmp_path: Path) -> None:
    directory = tmp_path / "bodies"
    directory.mkdir()
    write(tmp_path, "secret", b"{}")
    write(directory, "b.response.json", SAID)
    write(directory, INDEX, b"no json\n[]\n" + line(name))
    assert WrittenBodies(directory).take([]) == []
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
