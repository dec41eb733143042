"""Responses that are asked for by WebSocket are recorded as those by HTTP are."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import agents
import pytest
from openai import AsyncOpenAI, OpenAI
from responses_socket import Event, ResponsesSocket, Script, answering, serve_socket
from scripted_server import Call, Reply, response_events, serve_script
from websockets.exceptions import ConnectionClosed
from websockets.sync import client as websockets_client

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.calls.socket_calls import SocketCalls
from arttrace.capture.export import summary
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")

Spans = Callable[[], list[SpanRow]]
LOOK = Call("look", {"at": "tree"})
KEY = "sk-secret-0123456789"


@contextmanager
def connected(script: Script) -> Iterator[tuple[ResponsesSocket, Any]]:
    """openai's connection to a server of this script, within a run."""
    run = arttrace.trajectory(name="run")
    with serve_socket(script) as server, run, client(server).responses.connect() as connection:
        yield server, connection


@contextmanager
def connected_bare(script: Script) -> Iterator[Any]:
    """A connection of `websockets` itself, likewise."""
    run = arttrace.trajectory(name="run")
    with serve_socket(script) as server, run, websockets_client.connect(address(server, "/responses")) as connection:
        yield connection


def address(server: ResponsesSocket, path: str) -> str:
    return server.url.replace("http", "ws") + path


def replies(*given: Reply) -> Callable[[Event], Reply]:
    left = iter(given)
    return lambda message: next(left)


def client(server: ResponsesSocket) -> OpenAI:
    return OpenAI(base_url=server.url, api_key=KEY)


def ask(connection: Any, **request: Any) -> Any:
    """One response by openai's connection: the last event of it."""
    connection.response.create(model="m", **request)
    return until_its_end(connection)


def until_its_end(connection: Any) -> Any:
    return next(event for event in connection if event.type in ("response.completed", "error"))


def calls(found: list[SpanRow]) -> list[SpanRow]:
    return [span for span in found if span.attributes[semconv.OPERATION_NAME] == "chat"]


def texts(run: Any) -> list[str]:
    """The last conversation of a run."""
    nodes = {node.id: node for node in run.nodes}
    path = [node for node in run.nodes if node.id not in {each.parent_id for each in run.nodes}][-1:]
    while (parent := path[-1].parent_id) is not None:
        path.append(nodes[parent])
    return [node.message.text for node in reversed(path)]


def test_a_chain_of_responses_is_one_conversation(spans: Spans) -> None:
    with connected(answering(replies(Reply("I look.", (LOOK,)), Reply("A tree.")))) as (_, connection):
        first = ask(connection, input="look", instructions="Be brief.", temperature=0.5).response
        result = {"type": "function_call_output", "call_id": "call_1", "output": "tree"}
        ask(connection, input=[result], previous_response_id=first.id, instructions="Be brief.", temperature=0.5)
    found = spans()
    first_call, second = calls(found)
    assert first_call.attributes[semconv.PROVIDER_NAME] == "openai"
    assert first_call.attributes[semconv.OPENAI_API_TYPE] == "responses"
    assert first_call.attributes[semconv.SERVER_ADDRESS] == "127.0.0.1"
    assert first_call.attributes[semconv.REQUEST_TEMPERATURE] == 0.5
    assert first_call.attributes[semconv.RESPONSE_FINISH_REASONS] == ["tool_calls"]
    assert first_call.attributes[semconv.USAGE_OUTPUT_TOKENS] == 2
    assert first_call.attributes[semconv.RESPONSE_TIME_TO_FIRST_CHUNK] > 0
    assert first_call.end_ns <= second.start_ns
    assert "stream_id" not in str(first_call.attributes)
    assert "response.create" not in str(first_call.attributes)
    assert KEY not in str(found)
    [run] = build_trajectories(found)
    assert run.incomplete == ""
    assert [text for text in texts(run) if text] == ["Be brief.", "look", "I look.", "A tree."]


def test_it_is_recorded_as_by_http_word_for_word(spans: Spans) -> None:
    reply = Reply("I look.", (LOOK,))
    asked: dict[str, Any] = {"input": "look", "metadata": {"a": "b"}}
    with connected(answering(lambda _: reply)) as (_, connection), serve_script(lambda _: reply) as by_http:
        ask(connection, **asked)
        list(OpenAI(base_url=by_http.url, api_key=KEY).responses.create(model="m", stream=True, **asked))
    one, other = calls(spans())
    own = (semconv.SERVER_PORT, semconv.RESPONSE_TIME_TO_FIRST_CHUNK)
    assert {k: v for k, v in one.attributes.items() if k not in own} == {
        k: v for k, v in other.attributes.items() if k not in own
    }
    assert one.name == other.name


async def test_lanes_of_one_connection_are_kept_apart(spans: Spans) -> None:
    """Two agents ask at once, and their events come mixed."""
    waiting: list[Event] = []

    def script(message: Event) -> Iterator[Event | None]:
        waiting.append(message)
        if len(waiting) == 2:
            streams = [
                [{**e, "stream_id": m["stream_id"]} for e in response_events(m, Reply(m["input"]), m["stream_id"])]
                for m in waiting
            ]
            yield from itertools.chain(*zip(*streams, strict=True))

    with serve_socket(script) as server:
        async with AsyncOpenAI(base_url=server.url, api_key=KEY).responses.connect() as connection:

            @arttrace.agent
            async def asks(lane: str) -> None:
                await connection.response.create(model="m", input=f"I am {lane}", stream_id=lane)

            @arttrace.trajectory
            async def run() -> None:
                await asyncio.gather(asks("left"), asks("right"))
                ended = 0
                async for event in connection:
                    ended += event.type == "response.completed"
                    if ended == 2:
                        return

            await run()
    found = spans()
    assert {call.attributes[semconv.RESPONSE_ID] for call in calls(found)} == {"left", "right"}
    for call in calls(found):
        lane = call.attributes[semconv.RESPONSE_ID]
        assert f"I am {lane}" in call.attributes[semconv.INPUT_MESSAGES]
        assert f"I am {lane}" in call.attributes[semconv.OUTPUT_MESSAGES]
    [built] = build_trajectories(found)
    assert built.incomplete == ""


async def test_an_agent_of_the_agents_sdk_that_asks_by_socket(spans: Spans) -> None:
    @agents.function_tool
    def look(at: str) -> str:
        return f"a {at}"

    with serve_socket(answering(replies(Reply("", (LOOK,)), Reply("A tree.")))) as server:
        provider = agents.OpenAIProvider(
            openai_client=AsyncOpenAI(base_url=server.url, api_key=KEY),
            use_responses=True,
            use_responses_websocket=True,
        )
        agent = agents.Agent(name="looker", instructions="Look.", tools=[look], model=provider.get_model("m"))

        @arttrace.trajectory
        async def run() -> str:
            return str((await agents.Runner.run(agent, "What is there?")).final_output)

        assert await run() == "A tree."
        await provider.aclose()
    assert len(server.sent) == 2
    found = spans()
    [built] = build_trajectories(found)
    assert built.incomplete == ""
    names = {span.span_id: span.attributes.get(semconv.AGENT_NAME) for span in found}
    assert [names[call.parent_span_id or ""] for call in calls(found)] == ["looker", "looker"]
    assert [span.attributes[semconv.TOOL_NAME] for span in found if semconv.TOOL_NAME in span.attributes] == ["look"]


def test_a_warm_up_is_the_beginning_of_its_conversation(spans: Spans) -> None:
    with connected(answering(replies(Reply(), Reply("Hi.")))) as (_, connection):
        warm = ask(connection, input="I am Bob.", generate=False).response
        ask(connection, input="Who am I?", previous_response_id=warm.id)
    [run] = build_trajectories(spans())
    assert run.incomplete == ""
    assert texts(run) == ["I am Bob.", "Who am I?", "Hi."]


def test_a_request_that_is_refused_has_failed_and_no_other(spans: Spans) -> None:
    """The refusal comes while another one is being answered."""
    error = {"type": "invalid_request_error", "code": "previous_response_not_found", "message": "Not there."}

    def script(message: Event) -> Iterator[Event | None]:
        if message.get("previous_response_id"):
            yield {"type": "error", "status": 400, "error": error}
            yield from events
        else:
            events.extend(response_events(message, Reply("Done.")))
            yield events.pop(0)

    events: list[Event] = []
    with connected(script) as (_, connection):
        connection.response.create(model="m", input="one")
        connection.recv()
        connection.response.create(model="m", input="two", previous_response_id="gone")
        assert until_its_end(connection).type == "error"
        assert until_its_end(connection).type == "response.completed"
    refused, answered = sorted(calls(spans()), key=lambda call: not call.status_message)
    assert refused.attributes[semconv.ERROR_TYPE] == "400"
    assert "Not there." in (refused.status_message or "")
    assert "Done." in answered.attributes[semconv.OUTPUT_MESSAGES]
    assert not answered.status_message


def test_what_the_user_puts_in_meanwhile_is_asked_by_the_response_that_follows(spans: Spans) -> None:
    def script(message: Event) -> Iterator[Event | None]:
        if message["type"] == "response.create":
            yield from list(response_events(message, Reply("I begin."), "resp_1"))[:-1]
        elif message["input"] == "never":
            yield {"type": "response.steer.failed", "steer": {"previous_response_id": "resp_1", "input": "never"}}
        else:
            yield {"type": "response.steer.accepted", "steer": {"id": "s", "previous_response_id": "resp_1"}}
            yield [*response_events(server.sent[0], Reply("I begin."), "resp_1")][-1]
            yield from response_events(server.sent[0], Reply("Blue then."), "resp_2")

    with connected(script) as (server, connection):
        connection.response.create(model="m", input="Paint it.", temperature=0.25)
        connection.response.steer(input="never", previous_response_id="resp_1")
        connection.response.steer(input="In blue.", previous_response_id="resp_1")
        assert until_its_end(connection).response.id == "resp_1"
        assert until_its_end(connection).response.id == "resp_2"
    found = spans()
    _, second = calls(found)
    assert second.attributes[semconv.PREVIOUS_RESPONSE_ID] == "resp_1"
    assert second.attributes[semconv.REQUEST_TEMPERATURE] == 0.25
    assert "In blue." in second.attributes[semconv.INPUT_MESSAGES]
    assert "never" not in second.attributes[semconv.INPUT_MESSAGES]
    assert "Paint it." not in second.attributes[semconv.INPUT_MESSAGES]
    [run] = build_trajectories(found)
    assert run.incomplete == ""
    assert texts(run) == ["Paint it.", "I begin.", "In blue.", "Blue then."]


def test_what_waits_for_a_tools_result_is_asked_with_it(spans: Spans) -> None:
    def script(message: Event) -> Iterator[Event | None]:
        if message["type"] == "response.steer":
            yield {"type": "response.steer.accepted", "steer": {"id": "s", "previous_response_id": "resp_1"}}
            yield {"type": "response.steer.pending", "steer": {"id": "s", "previous_response_id": "resp_1"}}
        else:
            yield from next(streams)

    streams = iter(
        [
            response_events({"model": "m"}, Reply("", (LOOK,)), "resp_1"),
            response_events({"model": "m"}, Reply("A small tree."), "resp_2"),
        ]
    )
    with connected(script) as (_, connection):
        first = ask(connection, input="look").response
        connection.response.steer(input="Say how big.", previous_response_id=first.id)
        result = {"type": "function_call_output", "call_id": "call_1", "output": "3 m"}
        ask(connection, input=[result], previous_response_id=first.id)
    second = calls(spans())[1]
    asked = second.attributes[semconv.INPUT_MESSAGES]
    assert asked.index("Say how big.") < asked.index("3 m")


def test_what_follows_by_itself_is_of_the_run_that_asked_whoever_reads(spans: Spans) -> None:
    """One thread reads for all, as openai's sessions have it, and has begun before the run."""

    def script(message: Event) -> Iterator[Event | None]:
        if message["type"] == "response.create":
            yield from list(response_events(message, Reply("I begin."), "resp_1"))[:-1]
        else:
            yield [*response_events({"model": "m"}, Reply("I begin."), "resp_1")][-1]
            yield from response_events({"model": "m"}, Reply("Blue then."), "resp_2")

    with serve_socket(script) as server, client(server).responses.connect() as connection:
        ended: Queue[str] = Queue()

        def read() -> None:
            for event in connection:
                if event.type == "response.completed":
                    ended.put(event.response.id)
                    if event.response.id == "resp_2":
                        return

        reader = threading.Thread(target=read)
        reader.start()
        with arttrace.trajectory(name="run"):
            connection.response.create(model="m", input="Paint it.")
            connection.response.steer(input="In blue.", previous_response_id="resp_1")
            assert [ended.get(timeout=60), ended.get(timeout=60)] == ["resp_1", "resp_2"]
        reader.join(60)
    [run] = build_trajectories(spans())
    assert (run.incomplete, len(run.calls)) == ("", 2)


def test_a_request_that_waits_is_not_answered_by_what_follows_another(spans: Spans) -> None:
    def script(message: Event) -> Iterator[Event | None]:
        if message["type"] == "response.steer":
            return
        if message["input"] == "one":
            yield from list(response_events(message, Reply("One."), "resp_1"))[:-1]
            return
        yield [*response_events({"model": "m"}, Reply("One."), "resp_1")][-1]
        for before, said, id in (("resp_1", "Steered.", "resp_2"), (None, "Two.", "resp_3")):
            for event in response_events(message, Reply(said), id):
                if "response" in event:
                    event["response"]["previous_response_id"] = before
                yield event

    with connected(script) as (_, connection):
        connection.response.create(model="m", input="one")
        connection.response.steer(input="In blue.", previous_response_id="resp_1")
        connection.response.create(model="m", input="two")
        assert [until_its_end(connection).response.id for _ in range(3)] == ["resp_1", "resp_2", "resp_3"]
    said = {call.attributes[semconv.RESPONSE_ID]: call.attributes[semconv.INPUT_MESSAGES] for call in calls(spans())}
    assert [word in said[id] for word, id in (("one", "resp_1"), ("blue", "resp_2"), ("two", "resp_3"))] == [True] * 3


def test_an_answer_to_what_was_not_seen_is_told(spans: Spans) -> None:
    with connected_bare(answering(lambda _: Reply("Hi."))) as connection:
        connection.send(['{"type": "response.create", ', '"model": "m"}'])  # in fragments
        while "response.completed" not in str(connection.recv()):
            pass
    [run] = build_trajectories(spans())
    assert len(run.calls) == 1
    assert run.unread, "its prompt was not"


def test_what_is_put_into_an_answer_is_said_to_be_unread(spans: Spans) -> None:
    def script(message: Event) -> Iterator[Event | None]:
        events = list(response_events({"model": "m"}, Reply("Done.")))
        yield from events[:2] if message["type"] == "response.create" else events[2:]

    with connected_bare(script) as connection:
        connection.send(json.dumps({"type": "response.create", "model": "m", "input": "hi"}))
        connection.recv()
        connection.send(json.dumps({"type": "response.inject", "response_id": "resp_1", "input": []}))
        while "response.completed" not in str(connection.recv()):
            pass
    [run] = build_trajectories(spans())
    assert run.unread


async def test_a_call_that_is_cancelled_is_recorded_as_that(spans: Spans) -> None:
    def script(message: Event) -> Iterator[Event | None]:
        yield from [*response_events(message, Reply("Never whole."))][:3]

    async def asks(server: ResponsesSocket) -> None:
        async with AsyncOpenAI(base_url=server.url, api_key=KEY).responses.connect() as connection:
            await connection.response.create(model="m", input="hi")
            async for event in connection:
                if event.type != "response.created":
                    begun.set()

    begun = asyncio.Event()
    with serve_socket(script) as server, arttrace.trajectory(name="run"):
        task = asyncio.create_task(asks(server))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    [call] = calls(spans())
    assert call.attributes[semconv.INTERRUPTED] == "cancelled"


def test_lanes_that_are_idle_are_forgotten(spans: Spans) -> None:
    with connected(answering(lambda _: Reply("Hi."))) as (_, connection):
        for number in range(110):
            ask(connection, input="hi", stream_id=f"lane {number}")
        followed = vars(connection._connection)["_arttrace_calls"]
        assert len(followed._lanes) == 100
    assert len(calls(spans())) == 110


@pytest.mark.parametrize("begun", [0, 3])
def test_an_answer_that_breaks_off_is_told(begun: int, spans: Spans) -> None:
    def script(message: Event) -> Iterator[Event | None]:
        yield from [*response_events(message, Reply("Never whole."))][:begun]
        yield None

    with connected_bare(script) as connection:
        connection.send(json.dumps({"type": "response.create", "model": "m", "input": "hi"}))
        for _ in range(begun):
            connection.recv()
        with pytest.raises(ConnectionClosed):
            connection.recv()
    [call] = calls(spans())
    assert call.status_message
    assert (semconv.INTERRUPTED in call.attributes) == bool(begun)


def test_a_connection_that_is_closed_early_ends_its_calls(spans: Spans) -> None:
    def script(message: Event) -> Iterator[Event | None]:
        yield from [*response_events(message, Reply("Never whole."))][:3]

    with serve_socket(script) as server, arttrace.trajectory(name="run"):
        with client(server).responses.connect() as connection:
            connection.response.create(model="m", input="hi")
            connection.recv()
        with client(server).responses.connect() as connection:
            connection.response.create(model="m", input="nobody reads on")
    first, second = calls(spans())
    assert first.attributes[semconv.INTERRUPTED] == "closed"
    assert "nobody" in second.attributes[semconv.INPUT_MESSAGES]


def test_what_is_not_to_be_recorded_is_not(spans: Spans) -> None:
    with connected(answering(lambda message: Reply(message["input"]))) as (_, connection):
        with arttrace.no_capture():
            ask(connection, input="secret")
        ask(connection, input="known")
    [call] = calls(spans())
    assert "known" in call.attributes[semconv.INPUT_MESSAGES]


def test_other_sockets_are_left_alone(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []
    monkeypatch.setattr(summary, "is_on", lambda: True)
    monkeypatch.setattr(summary, "passed", lambda host, path, why: passed.append(path))

    def script(message: Event) -> Iterator[Event | None]:
        yield message

    with serve_socket(script) as server, arttrace.trajectory(name="run"):
        for path in ("/prices", "/realtime", "/responses"):
            with websockets_client.connect(server.url.replace("http", "ws") + path) as connection:
                connection.send(
                    '{"type": "response.create", "input": 1' + ("}" if path != "/responses" else ', "x": 1}')
                )
                connection.recv()
                connection.send(b"[]")
    assert passed == ["/v1/prices", "/v1/realtime"]


def test_a_route_does_not_lead_them_and_says_so(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    led = arttrace.route("m", to="policy", base_url="http://127.0.0.1:9/v1")
    with connected(answering(lambda _: Reply("Hi."))) as (_, connection), led:
        ask(connection, input="hi")
    assert "a call by WebSocket is neither routed nor asked for token ids" in caplog.text
    assert len(calls(spans())) == 1


@pytest.mark.parametrize("broken", ["sent", "received", "ended"])
def test_a_failure_of_ours_is_counted_and_the_program_goes_on(
    broken: str, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("ours")

    monkeypatch.delenv("ARTTRACE_RAISE")
    monkeypatch.setattr(SocketCalls, broken, fails)
    before = guard.failures["following a WebSocket"]
    with connected(answering(lambda _: Reply("Hi."))) as (_, connection):
        assert ask(connection, input="hi").response.output_text == "Hi."
    assert guard.failures["following a WebSocket"] > before
