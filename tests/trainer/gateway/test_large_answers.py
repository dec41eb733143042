"""Answers that are larger than what is kept of one, by the gateway and inside the agent's process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.types import Message

from arttrace.capture.calls.attempt import Attempt
from arttrace.records import semconv
from trainer.gateway.recording.identity import trajectory_owner
from trainer.gateway.recording.recorder import GatewayRecorder

PATH = "/v1/chat/completions"


async def test_of_an_answer_that_is_too_large_the_beginning_is_kept_and_nothing_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def event(text: str) -> bytes:
        return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()

    monkeypatch.setattr("trainer.gateway.recording.recorder.MAX_ANSWER_BYTES", 2 * len(event("a")))
    recorder = GatewayRecorder(tmp_path / "spool")
    call = recorder.begin(trajectory_owner("run"), PATH, (), b"{}")
    own = Attempt()
    monkeypatch.setattr("arttrace.capture.calls.attempt.MAX_BODY_BYTES", 2 * len(event("a")))

    async def send(message: Message) -> None:
        own.chunk(message.get("body", b""))

    tapped = call.tap(send, lambda _size: True)
    await tapped({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for text in ("a", "b" * 100, "c"):
        await tapped({"type": "http.response.body", "body": event(text), "more_body": True})
    row = call.row("complete", 1, "p", "full")
    recorder.close()
    assert json.loads(row.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"] == [{"type": "text", "content": "a"}]
    assert row.attributes[semconv.TRUNCATED] == [semconv.OUTPUT_MESSAGES]
    assert own.exchange("complete", PATH).body == event("a")
