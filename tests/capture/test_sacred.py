"""Rule 1 of docs/architecture.md: whatever of ours fails, the user's program gets the same values and
exceptions as without us.

Nothing is listed by hand: a program that uses all of capture is run once to see which functions of arttrace it enters,
then once for each of them with that function raising.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import aiohttp
import faults
import httpx
import openai
import pytest
import requests
from botocore.awsrequest import AWSRequest
from botocore.httpsession import URLLib3Session
from chat_server import ChatServer
from pydantic import BaseModel

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.context.flow import EMPTY_FLOW, current_flow, set_flow
from arttrace.capture.export import lifecycle
from arttrace.capture.patches import hooks
from arttrace.capture.patches import httpx as http_hook
from arttrace.capture.patches.model_clients import stainless as openai_hook
from arttrace.wire.content import MaskFailed

FLUSH_S = 3.0


def plain(value: Any) -> Any:
    return (type(value).__qualname__, value.model_dump() if isinstance(value, BaseModel) else repr(value))


def outcome(run: Callable[[], Any]) -> Any:
    try:
        result = run()
        return [plain(each) for each in result] if isinstance(result, list) else plain(result)
    except Exception as error:
        return ("raised", type(error), str(error), type(error.__cause__))


class Program:
    """An agent that uses every part of capture; `bare` is the same without arttrace."""

    def __init__(self, server: ChatServer, directory: Path, *, bare: bool = False) -> None:
        self.server = server
        self.directory = directory
        self.runs = 0
        self.bare = bare
        options: Any = {"base_url": server.url, "api_key": "sk-test-0123456789", "max_retries": 0}
        self.client = openai.OpenAI(**options)
        self.async_client = openai.AsyncOpenAI(**options)
        self.loop = asyncio.new_event_loop()

    def close(self) -> None:
        self.loop.run_until_complete(self.async_client.close())
        self.client.close()
        self.loop.close()

    def decorated(self, fn: Callable[..., Any], kind: str = "trajectory", **options: Any) -> Any:
        return fn if self.bare else getattr(arttrace, kind)(**options)(fn)

    def run(self) -> list[Any]:
        """What the user's code saw, step by step."""
        set_flow(EMPTY_FLOW)
        agent = self.decorated(self.agent, group=lambda *_: "group", tags=["a"], metadata={"k": 1})
        seen = [outcome(lambda: agent("hi")), outcome(lambda: agent())]
        seen.append(outcome(lambda: self.decorated(self.fails)()))
        seen.append(outcome(lambda: list(self.decorated(self.generator)())))
        seen.append(outcome(lambda: self.loop.run_until_complete(self.decorated(self.async_agent)("x"))))
        seen.append(outcome(lambda: self.loop.run_until_complete(self.collect())))
        seen.append(outcome(self.block))
        seen.append(outcome(lambda: self.create("orphan")))
        seen.append(outcome(lambda: self.by_plain_http()))
        return seen

    def create(self, text: str, **options: Any) -> Any:
        messages: Any = [{"role": "user", "content": text}]
        return self.client.chat.completions.create(model="m", messages=messages, **options)

    def by_plain_http(self) -> Any:
        body = {"model": "m", "messages": [{"role": "user", "content": "plain"}]}
        answered = httpx.post(f"{self.server.url}/chat/completions", json=body).json()
        by_boto3 = AWSRequest("POST", f"{self.server.url}/chat/completions", data=json.dumps(body)).prepare()
        return answered, json.loads(URLLib3Session().send(by_boto3).content)

    def by_http(self, text: str) -> Any:
        """What a tool gets over HTTP, by every client."""

        async def asynchronously() -> Any:
            async with aiohttp.ClientSession() as session, session.get(f"{self.server.url}/aiohttp") as answer:
                read = len(await answer.read())
            async with httpx.AsyncClient(verify=False) as client:
                return answer.status, read, (await client.get(f"{self.server.url}/async?q={text}")).status_code

        with ThreadPoolExecutor(1) as pool, httpx.Client(verify=False) as client:  # this may run inside an event loop
            found: list[Any] = [pool.submit(asyncio.run, asynchronously()).result()]
            found.append(client.get(f"{self.server.url}/httpx").status_code)
            found.append(outcome(lambda: client.get("http://127.0.0.1:1/"))[:2])
        found.append(requests.get(f"{self.server.url}/requests", timeout=30).status_code)
        return found

    def fails(self) -> None:
        raise LookupError("the user's")

    def agent(self, text: str) -> Any:
        tool = self.decorated(lambda q: {"found": self.by_http(q)}, "tool", name="look")
        seen = [outcome(lambda: self.create(text)), tool("x")]
        seen.append(outcome(lambda: list(self.create(text, stream=True))))
        seen.append(outcome(lambda: next(iter(self.create(text, stream=True)))))
        seen.append(outcome(lambda: list(self.create("break", stream=True))))
        seen.append(outcome(lambda: self.create("garbage", temperature="x")))
        self.server.failures.append((400, b'{"error": {"message": "no"}}'))
        seen.append(outcome(lambda: self.create(text)))
        seen.append(self.decorated(lambda: self.create(text).id, "agent", name="helper")())
        with ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(outcome, lambda: self.create("pool")).result())
        thread = threading.Thread(target=lambda: seen.append(outcome(lambda: self.create("thread"))))
        thread.start()
        thread.join()
        if not self.bare:
            arttrace.reward(0.5, name="resolved")
            arttrace.update(tags=["b"], metadata={"more": [1]})
            arttrace.current_trajectory()
        with nullcontext() if self.bare else arttrace.no_capture():
            seen.append(outcome(lambda: self.create(text)))
        return seen

    def generator(self) -> Iterator[Any]:
        yield self.create("in a generator").id
        yield 2

    async def async_agent(self, text: str) -> list[Any]:
        create = self.async_client.chat.completions.create
        messages: Any = [{"role": "user", "content": text}]
        answer = await create(model="m", messages=messages)
        chunks = [chunk async for chunk in await create(model="m", messages=messages, stream=True)]
        async for _ in await create(model="m", messages=messages, stream=True):
            break
        call = asyncio.ensure_future(create(model="m", messages=messages))
        await asyncio.sleep(0)
        call.cancel()
        (cancelled,) = await asyncio.gather(call, return_exceptions=True)
        return [answer, *chunks, (type(cancelled), type(cancelled.__cause__))]

    async def collect(self) -> list[Any]:
        async def generator() -> AsyncIterator[int]:
            for number in range(2):
                await asyncio.sleep(0)
                yield number

        return [item async for item in self.decorated(generator)()]

    def block(self) -> Any:
        if self.bare:
            return self.create("block").id
        with arttrace.trajectory(name="block") as run:
            run.set_arguments(a=1)
            run.update(tags=["t"])
            run.reward(1.0)
            answer = self.create("block").id
            run.set_result(answer)
        return answer


@pytest.fixture
def programs(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[list[Any], Program]]:
    """What the program sees without us, and the program with us."""
    # Whether a call lasts so long that it is shown in progress is the machine's doing: test_durability.py tests that.
    monkeypatch.setattr("arttrace.capture.export.recorder._SHOWN_AFTER_S", 3600.0)
    program, bare = Program(server, tmp_path), Program(server, tmp_path, bare=True)
    with arttrace.no_capture():
        expected = bare.run()
    yield expected, program
    program.close()
    bare.close()


def whole(program: Program) -> list[Any]:
    """The program from its first to its last moment, with a recorder of its own."""
    program.server.failures.clear()
    program.runs += 1
    arttrace.init(
        dir=program.directory / str(program.runs),
        capture_http=True,
        http_spans=True,
        propagate=["127.0.0.1"],
        trainable=["http://another.host/v1"],
        mask=lambda content, *, kind: content,
        sample=lambda run: False,
    )
    seen = program.run()
    arttrace.flush(FLUSH_S)
    lifecycle.at_exit()
    lifecycle._outlasted.clear()
    return seen


SHELLS = {
    "api": "init current_trajectory flush no_capture reward update",
    "decorators": "trajectory agent tool ScopeDecorator.__init__ ScopeDecorator.__call__ ScopeDecorator.__enter__ "
    "ScopeDecorator.__exit__ ScopeDecorator._open",
    "handle": "RunHandle.__init__ RunHandle.set_arguments RunHandle.set_result RunHandle.update RunHandle.reward",
    "context.no_capture": "NoCapture.__init__ NoCapture.__enter__ NoCapture.__exit__ _MutedBlock.__init__ "
    "_MutedBlock.__bool__",
    "context.execution": "EnteredBlock.__init__",
    "context.position": "Position.reward",
    "context.scope": "Scope.set_arguments Scope.set_result Scope.update Scope._content recorded_answer",
    "context.generators": "ScopeStep.__init__ ScopeStep.__enter__ ScopeStep.__exit__ leave close finish named_as "
    "is_coroutine AlreadyOpen.__init__ AlreadyOpen.__call__ AlreadyOpen.__del__ Unawaited.__init__ Unawaited.begin "
    "Unawaited.__del__ drive_coroutine _driven drive_generator drive_async_generator _Yielded.__init__ _Yielded.add "
    "_Yielded.result",
    "patches.model_clients.stainless": "_begin",
    "patches.model_clients.made": "made awaited",
    "patches.outgoing_headers": "_context_for _with_headers",
    "patches.httpx": "begin_plain_call _call_of _send_out _answered not_answered raised returned "
    "Tap.__del__ Tap._take Tap._ended Tap._broken",
    "patches.http_spans": "_begin _answered",
    "patches.requests_aiohttp": "_call_of",
    "calls.tapped_raw": "TappedRaw.stream TappedRaw._tapped",
    "calls.routing": "apply",
    "patches.threads": "in_flow",
    "context.flow": "current_flow set_flow",
    "base.annotations": "require_function",
    "base.guard": "Guard.__enter__ Guard.__exit__",
    "patches.hooks": "install",
    "export.recorder": "Recorder._work",
    "export.lifecycle": "at_exit _all _outlasting",
}
"""What stands around the guards and so cannot be under one: the public names and the frames that the user's own code
runs in, each with its work under a guard inside, what only reads or writes a variable, and what refuses a wrong use."""

UNCOUNTED = {
    "arttrace.capture.base.values:_fallback",
    "arttrace.capture.base.values:_fields",
    "arttrace.capture.base.values:_describe",
    "arttrace.records.values.users_text:plain",
}
"""What fails without a count: a value that cannot be encoded is recorded by its name."""

UNRAISABLE = {"arttrace.capture.patches.httpx:_ending_of"}
"""What fails while a dropped generator is closed, where Python prints an exception and raises none."""

ELSEWHERE = {
    "installing a hook": "test_a_hook_that_cannot_be_installed_is_said_once",
    "the callable given as group": "test_run_values.py",
    "reading a tool's HTTP request": "http_spans/test_http_spans.py",
    "ending the program's trajectory": "test_process.py",
    "saying what a process was given to do": "test_plain_jobs.py",
    "shipping to the collector": "test_shipper.py",
    "forwarding to a receiver": "test_receivers.py",
    "joining a trajectory of another process": "test_propagation_http.py",
    "telling a child process its trajectory": "test_propagation_http.py",
    "opening a scope for a library": "test_tools.py",
    "ending a scope for a library": "test_tools.py",
    "recording a tool's result": "test_tools.py",
    "following the agents of the OpenAI Agents SDK": "tests/frameworks",
    "carrying the flow into a thread": "test_library_spans.py",
    "following a library's span": "test_library_spans.py",
    "following the agents of LlamaIndex": "tests/frameworks",
    "following the agents of PydanticAI": "tests/frameworks",
    "following the steps of LangChain": "test_newer_libraries.py",
    "reading a call of Google ADK": "tests/frameworks",
    "sending a message of AutoGen": "tests/frameworks",
    "handling a message of AutoGen": "tests/frameworks",
    "ending a library's span": "test_library_spans.py",
    "answering a tool from the record": "test_recorded_tools.py",
    "recording Claude Code": "test_claude_agent_sdk.py",
    "following a WebSocket": "test_responses_by_socket.py",
    "noting that a run asked for input": "tests/trainer/test_replay.py",
    "counting what was captured": "test_what_fails_at_the_end_of_a_program_is_counted",
    "taking the hooks out": "test_what_fails_at_the_end_of_a_program_is_counted",
    "keeping what a process of a pool recorded": "test_what_fails_at_the_end_of_a_program_is_counted",
    "keeping what a process recorded that ends itself": "test_what_fails_as_a_process_ends_itself_leaves_its_end_alone",
}
"""Guards under which this program fails nothing, and where they are tested."""


def guards() -> set[str]:
    """The parts of all guards in capture."""
    return {
        value._part
        for module in faults.modules(arttrace.capture)
        for value in vars(module).values()
        if isinstance(value, guard.Guard)
    }


def chosen(program: Program) -> dict[str, FunctionType]:
    """The functions of ours that the program enters, but for the shells."""
    shells = {f"arttrace.capture.{module}:{name}" for module, names in SHELLS.items() for name in names.split()}
    ours = faults.functions(arttrace)
    whole(program)  # what happens once in a process is not this program's
    codes = faults.entered(arttrace, lambda: whole(program))
    # arttrace.system.native_threads stands where `threading` would: a lock that raises in its release stays locked, as
    # that one would.
    names = sorted(
        name
        for name, each in ours.items()
        if each.__code__ in codes and name not in shells and not name.startswith("arttrace.system.native_threads:")
    )
    assert len(names) > 100
    return {name: ours[name] for name in names}


def test_whatever_of_ours_fails_the_program_never_notices_and_it_is_counted(
    programs: tuple[list[Any], Program], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, program = programs
    assert whole(program) == expected
    functions = chosen(program)
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    parts: set[str] = set()
    wrong: dict[str, str] = {}
    for name, function in functions.items():
        guard.failures.clear()
        with faults.failing(function):
            try:
                seen = whole(program)
            except Exception as error:
                wrong[name] = f"the program gets {error!r}"
            else:
                steps = [(mine, bare) for mine, bare in zip(seen, expected, strict=True) if mine != bare]
                if steps:
                    wrong[name] = f"the program sees {steps[0][0]}, not {steps[0][1]}"[:600]
        if not guard.failures and name not in UNCOUNTED:
            wrong.setdefault(name, "nothing was counted")
        parts |= guard.failures.keys()
        if current_flow().scope is not None:
            wrong.setdefault(name, "what comes later is of a run that has ended")
        set_flow(EMPTY_FLOW)
        caplog.clear()
        guard.logger.warning("later")
        if caplog.messages != ["later"]:
            wrong.setdefault(name, "what is logged later is lost")
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
    assert guards() - parts - ELSEWHERE.keys() == set(), "guards that nothing here makes fail"


# What fails in a finalizer cannot be raised, and a coroutine whose wrapper raises is awaited by nobody.
@pytest.mark.filterwarnings("ignore:(?s).*faults.Fault. ours:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine 'Program.async_agent' was never awaited:RuntimeWarning")
def test_in_our_own_tests_every_failure_is_seen(programs: tuple[list[Any], Program]) -> None:
    _, program = programs
    unseen = []
    for name, function in chosen(program).items():
        with faults.failing(function):
            try:
                seen = "Fault" in repr(whole(program)) or bool(guard._background)
            except (faults.Fault, MaskFailed):  # the latter where it failed around a mask
                seen = True
        guard._background.clear()
        if not seen and name not in UNCOUNTED | UNRAISABLE:
            unseen.append(name)
        set_flow(EMPTY_FLOW)
    gc.collect()  # what the failures left behind goes here, not in a later test
    assert unseen == []


def test_what_capture_takes_from_the_system_may_fail(
    programs: tuple[list[Any], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, program = programs
    monkeypatch.setenv("ARTTRACE_RAISE", "0")

    def broken(*_: Any) -> Any:
        raise OSError("not now")

    def no_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError

    def refuses(_: logging.LogRecord) -> bool:
        raise RuntimeError("a filter of the user's")

    disturbances: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
        "no random numbers": lambda patch: patch.setattr(
            "arttrace.capture.base.ids._random", SimpleNamespace(getrandbits=broken)
        ),
        "no clock": lambda patch: patch.setattr("time.time_ns", broken),
        "a clock that stands still": lambda patch: patch.setattr("time.time_ns", lambda: 0),
        "a clock of another kind": lambda patch: patch.setattr("time.time_ns", lambda: "noon"),
        "no room in the queue": lambda patch: patch.setattr("arttrace.capture.export.recorder.MAX_WAITING_BYTES", 0),
        "no memory": lambda patch: patch.setattr("arttrace.capture.export.recorder.span_row", no_memory),
        "no disk": lambda patch: patch.setattr("arttrace.system.journal.writer.os.write", broken),
        "a log filter that raises": lambda patch: (
            patch.setattr("arttrace.capture.export.recorder.span_row", no_memory),
            patch.setattr(guard.logger, "filters", [refuses]),
        )[0],
    }
    for name, disturb in disturbances.items():
        guard.failures.clear()
        with monkeypatch.context() as patch:
            disturb(patch)
            assert whole(program) == expected, name
        assert guard.failures or name == "a clock that stands still", name


def test_a_hook_that_cannot_be_installed_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_installed", True)
    for install in (http_hook.install, openai_hook.install):
        guard.failures.clear()
        with pytest.raises(AttributeError):
            hooks._guarded(install)(ModuleType("another library"))
        monkeypatch.setenv("ARTTRACE_RAISE", "0")
        hooks._guarded(install)(ModuleType("another library"))
        assert guard.failures["installing a hook"] == 2
        monkeypatch.setenv("ARTTRACE_RAISE", "1")


AT_THE_END = """
import atexit, sys, threading
if sys.argv[2] == "with":
    import arttrace
    agent = arttrace.trajectory(name="late")
else:
    agent = lambda fn: fn
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], max_retries=0)
@agent
def ask(text):
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    print(answer.choices[0].message.content, flush=True)
    return answer
class Last:
    def __del__(self):
        ask("when collected")
atexit.register(ask, "at exit")
kept = Last()
stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "open"}], stream=True)
print(next(iter(stream)).id)
ask("before")
sys.exit(3)
"""


def test_calls_while_the_interpreter_ends_are_as_without_us(server: ChatServer, tmp_path: Path) -> None:
    def end(how: str) -> tuple[int, str, str]:
        env = {**os.environ, "ARTTRACE_DIR": str(tmp_path), "OPENAI_API_KEY": "sk-test", "ARTTRACE_RAISE": "0"}
        command = [sys.executable, "-c", AT_THE_END, server.url, how]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr.strip().rpartition("\n")[2]

    bare = end("without")
    assert bare[0] in (3, -signal.SIGSEGV)  # Python 3.13.0 fails by itself where a stream is collected so late
    assert bare[1].splitlines()[:3] == ["c1", "answer 0 to before", "answer 0 to at exit"]
    assert end("with") == bare


def test_a_tap_that_was_never_made_whole_has_nothing_below_it() -> None:
    tap = http_hook.Tap.__new__(http_hook.Tap)
    with pytest.raises(AttributeError):
        _ = tap.elapsed
    tap.__del__()  # ends no call: a failure of ours would be raised here


_AT_THE_END = """
import os, queue, sys
from pathlib import Path
import arttrace
from arttrace.capture.base import guard
from arttrace.capture.patches import hooks
from arttrace.capture.patches.processes import pools
from arttrace.capture.export import lifecycle
from arttrace.capture.export import summary
from arttrace.capture.patches import registry as patches

def broken(*_):
    raise RuntimeError("ours")

arttrace.init(dir=sys.argv[1])
summary._path = Path(sys.argv[1])  # a directory is no file to write to
summary.write()
results = queue.SimpleQueue()
lifecycle.hand_over = broken
pools._Results(results).put("the user's")
patches.undo = broken
arttrace.uninstrument()
print(results.get(), sorted(guard.failures))
"""


def test_what_fails_at_the_end_of_a_program_is_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    env = {**os.environ, "ARTTRACE_RAISE": "0"}
    command = [sys.executable, "-c", _AT_THE_END, str(data)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    parts = ["counting what was captured", "keeping what a process of a pool recorded", "taking the hooks out"]
    assert (done.returncode, done.stdout.strip()) == (0, f"the user's {parts}"), done.stderr


_FORKED_END = """
import os, signal, sys, time
import arttrace
from arttrace.capture.base import guard
from arttrace.capture.export import lifecycle
def failing(timeout_s):
    raise RuntimeError("wrong")
def interrupting(timeout_s):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
def end(instead, leave):
    if (pid := os.fork()) == 0:
        lifecycle.hand_over = instead
        guard.failed = lambda part, *_, **__: os.write(1, part.encode())
        with arttrace.trajectory(name="child"):
            pass
        try:
            leave()
        finally:
            os.write(1, b"the child goes on as the parent")
    os.write(1, b", %d\\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
with arttrace.trajectory(name="run"):
    end(failing, lambda: os._exit(7))
    end(interrupting, lambda: os._exit(7))
    end(failing, lambda: signal.raise_signal(signal.SIGTERM))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_what_fails_as_a_process_ends_itself_leaves_its_end_alone(tmp_path: Path) -> None:
    env = {**os.environ, "ARTTRACE_RAISE": "0", "ARTTRACE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", _FORKED_END], env=env, capture_output=True, text=True, timeout=100)
    failed = "keeping what a process recorded that ends itself"
    assert done.stdout == f"{failed}, 7\n, 7\n{failed}, -15\n", done.stderr
