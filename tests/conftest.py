"""For all tests: Ctrl-C as a terminal gives it, compiled modules for the processes that they start, no time limit for
hypothesis, and which tests one worker of pytest-xdist runs. For those that ask a judge: one behind real HTTP."""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from empty_store import copied_from
from set_aside import set_aside

from arttrace.rewards.judge_prompt import parse_prompt


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what it runs in the background with SIGINT ignored, and every process started from there inherits
    that. And where Python is asked to write no bytecode, each of the hundreds of processes that the tests start would
    compile all of arttrace again. Of several workers each computes in one thread, or their threads wait for each other.
    And an example takes as long as it takes on a busy machine."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup; what they start does not inherit a handler
        signal.signal(signal.SIGHUP, lambda *_: None)
    read_certificates_when_needed()
    give_answers_a_minute()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if hasattr(config, "workerinput"):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    gc.set_threshold(50_000, 20, 20)
    hypothesis.settings.register_profile(
        "arttrace", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("arttrace")


def read_certificates_when_needed() -> None:
    """httpx reads a file of certificates for every client, which takes it 15 ms, even if that speaks plain HTTP as
    nearly all of the tests do. Of a directory of certificates it reads those that it needs. pip keeps a given file."""
    found = ssl.get_default_verify_paths()
    if found.capath is None or not any(Path(found.capath).glob("*.0")):
        return
    os.environ["SSL_CERT_DIR"] = found.capath
    if given := os.environ.pop("SSL_CERT_FILE", None):
        os.environ.setdefault("PIP_CERT", given)


def give_answers_a_minute() -> None:
    """httpx waits five seconds for an answer where nobody says for how long: on a busy machine a server that a test has
    started may take longer. arttrace itself says it everywhere."""
    for part in ("connect", "read", "write", "pool"):
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, 60.0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collecting the tests makes a million objects that stay: modules, code, the tests themselves. Looking through them
    for garbage takes a third of the time it takes to make them, and 0.7 s each time that a test asks for it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)
        gc.enable()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """What a file's tests import stays as well: where later ones ask for a collection, torch is not looked through.
    But an exception among a test's parameters, which lives as long, lets go of the frames that raised it."""
    try:
        return (yield)
    finally:
        for parameter in getattr(getattr(item, "callspec", None), "params", {}).values():
            if isinstance(parameter, BaseException):
                parameter.__traceback__ = parameter.__context__ = parameter.__cause__ = None
        if nextitem is not None and nextitem.path != item.path:
            set_aside()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker collects garbage once more when its tests are over, and looks at all that they imported: longer than
    the five seconds after which execnet has it interrupt itself. The interpreter's own end collects them as ever."""
    if hasattr(session.config, "workerinput"):
        gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their place, not by their content: packed ones hold the second at which they were packed, and
    two workers that collect in different seconds would not have the same tests."""
    return argname if isinstance(val, bytes) else None


LONGEST_FIRST = (
    "tests/e2e/test_demo.py",
    "tests/e2e/test_examples.py",
    "tests/e2e/test_serving.py",
    "tests/e2e/test_daemon.py",
    "tests/e2e/test_sub_agents.py",
    "tests/e2e/test_loop.py",
    "tests/e2e/test_user_loop.py",  # when the demo has built its model, which is served there
    "tests/e2e/",
    "tests/trainer/learner/test_engines.py",
    "tests/capture/test_sacred.py",
    "tests/benchmarks/",
    "tests/trainer/daemon/",
    "tests/views/web/test_accessible.py",
    "tests/trainer/learner/",
    "tests/trainer/",
    "tests/commands/",
)
"""What several workers begin with, so that none of them is left alone with it at the end."""


_FULL_S = 3600
"""For a test marked `full`, which may run longer than the quarter of an hour of the others on a busy machine."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("full") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_FULL_S))

    def rank(item: pytest.Item) -> int:
        return next((n for n, begin in enumerate(LONGEST_FIRST) if item.nodeid.startswith(begin)), len(LONGEST_FIRST))

    if hasattr(config, "workerinput"):
        items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, a worker runs the tests of a file together, in the files' order: they share servers and models."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # else by how many tests a file has
    return LoadFileScheduling(config, log)


_PARTS = ("closing", "ctrl_c", "damaged", "faults", "full_disk", "growth", "hold", "migration", "opening", "private")
OF_THE_STORES_FILE = tuple(f"tests/store/test_{part}.py" for part in _PARTS)
"""What is about making, opening and closing a store's file: each new one is made there as a user's is."""


@pytest.fixture(scope="session")
def _folder_of_the_empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module", autouse=True)
def _new_stores_are_copies(request: pytest.FixtureRequest, _folder_of_the_empty_store: Path) -> Iterator[None]:
    made_anew = request.node.nodeid.startswith(OF_THE_STORES_FILE)
    with nullcontext() if made_anew else copied_from(_folder_of_the_empty_store):
        yield


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_to_deliver() -> Iterator[None]:
    """What the tests of a module recorded for a collector that is gone is not waited for in those of the next."""
    yield
    if (lifecycle := sys.modules.get("arttrace.capture.export.lifecycle")) is not None:
        lifecycle._outlasted = []


Script = Callable[[dict[str, Any]], tuple[int, Any]]


@dataclass
class JudgeServer:
    """A chat completions server on a free port.

    `script` holds how to answer the next requests; when it is empty, runs whose result is "6" get 1, others 0.
    """

    url: str = ""
    script: list[Script] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def answer(self, request: dict[str, Any]) -> tuple[int, Any]:
        self.requests.append(request)
        return (self.script.pop(0) if self.script else self.good)(request)

    @staticmethod
    def scores(request: dict[str, Any]) -> list[dict[str, Any]]:
        """The truthful scores of the runs in a request."""
        runs = parse_prompt(request["messages"][1]["content"])
        return [
            {"trajectory_id": id, "explanation": f"it says {run['result']}", "score": float(run["result"] == "6")}
            for id, run in runs.items()
        ]

    @classmethod
    def good(cls, request: dict[str, Any]) -> tuple[int, Any]:
        return cls.says(json.dumps({"scores": cls.scores(request)}))(request)

    @staticmethod
    def says(content: str | None, end: str = "stop", **more: Any) -> Script:
        """An answer with this text, for 100 tokens read and 10 written; `more` is beside the text."""
        message = {"role": "assistant", "content": content, **more}
        answer = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "stand-in",
            "choices": [{"index": 0, "message": message, "finish_reason": end}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }
        return lambda _request: (200, answer)

    @staticmethod
    def fails(status: int, message: str, **extra: Any) -> Script:
        return lambda _request: (status, {"error": {"message": message, "type": "error", **extra}})


@pytest.fixture
def judge_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("arttrace.rewards.judge_calls.BACKOFF_S", 0.01)
    server = JudgeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.keys.append(self.headers.get("authorization"))
            status, answer = server.answer(body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_args: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    server.url = f"http://127.0.0.1:{listener.server_port}/v1"
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    listener.shutdown()
    listener.server_close()
