"""Threads of Anthropic's Messages API, of which the server keeps the conversation: what it kept is in the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anthropic
import pytest
from messages_server import MessagesServer, serve_messages

import arttrace
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Relation
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with serve_messages() as running:
        yield running


@anthropic.beta_tool
def weather(town: str) -> str:
    """Of a town."""
    return f"sun in {town}"


def test_a_thread_that_the_server_holds_is_recorded_with_its_history(server: MessagesServer, spans: Spans) -> None:
    """The loop of the client's tool runner sends each turn what is new, and neither instructions nor tools again."""
    said = [{"type": "text", "text": "Sunny."}]
    server.answers = [{"id": "msg_1"}, {"id": "msg_2", "content": said, "stop_reason": "end_turn"}]
    client = anthropic.Anthropic(base_url=server.url, api_key="sk-ant-0123456789", max_retries=0)
    with arttrace.trajectory(name="root"):
        runner = client.beta.messages.tool_runner(
            model="claude-x", max_tokens=64, system="Be brief.", tools=[weather],
            messages=[{"role": "user", "content": "Rome?"}],
        )  # fmt: skip
        assert runner.until_done().id == "msg_2"
    sent = server.sent[1][2]
    assert sent["thread"] == {"type": "continue", "previous_message_id": "msg_1"}
    assert ("system" in sent, "tools" in sent, len(sent["messages"])) == (False, False, 1)

    found = spans()
    one, two = [span for span in found if span.name == "chat claude-x"]
    assert semconv.PREVIOUS_RESPONSE_ID not in one.attributes
    assert two.attributes[semconv.PREVIOUS_RESPONSE_ID] == "msg_1"
    (run,) = build_trajectories(found)
    first, second = (each.call for each in run.calls)
    assert [message.role for message in second.messages] == ["system", "user", "assistant", "tool"]
    assert second.messages[:2] == first.messages
    assert second.tools == first.tools != ()
    assert run.calls[1].relation == Relation.EXTENDS
