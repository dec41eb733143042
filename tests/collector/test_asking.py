"""Whoever asks the store, or sends to the collector, cannot keep the others from it: not by asking too much, not by
leaving, not by sending half a request."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from collector_process import ARTTRACE, collecting, environment
from served_app import served
from simulated_agent import research_run

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.spool import Spool
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store, open_store
from arttrace.store.access import queries, remote, sql
from arttrace.store.access.owner_file import read_owner
from arttrace.store.file import cancellation
from arttrace.store.server import limits, owner, timeouts
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.owner import answering, hold_store, listen
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir

ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000) c"
LONG = "SELECT count(*) FROM range(1000000) a, range(30000) b"
"""Half a minute: it comes to its end where nothing stops it."""

PATIENCE_S = 60.0
NOTHING_CAME = b"nothing came"
"""For what should come long before."""


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


@pytest.fixture
def owned(data: DataDir) -> Iterator[Store]:
    with hold_store(data, create=True) as store:
        assert isinstance(store, Store)
        store.append(research_run("a"))
        yield store


def ask_and_stay(url: str, token: str, sql: str) -> socket.socket:
    """A connection on which a query was sent, and no answer awaited."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    body = json.dumps({"query": sql}).encode()
    connection = socket.create_connection((host, int(port)))
    connection.sendall(
        f"POST /api/sql HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return connection


@contextlib.contextmanager
def no_query_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends what is still asked at the end of the block: a server waits for its answers."""
    made: list[cancellation.Stop] = []

    class KnownStop(cancellation.Stop):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    def stopped() -> bool:
        for stop in made:
            stop("the test ends")
        return store._file.readers == 0

    monkeypatch.setattr(limits, "Stop", KnownStop)
    try:
        yield
    finally:
        eventually(stopped)


@pytest.mark.parametrize("forwarded", [False, True])
@pytest.mark.parametrize("sql", [ENDLESS, "SELECT pg_sleep(100000)", "SELECT * FROM range(10000000000)"])
def test_a_query_ends_when_its_caller_leaves(
    owned: Store, data: DataDir, monkeypatch: pytest.MonkeyPatch, sql: str, forwarded: bool
) -> None:
    owner = read_owner(data)
    assert owner is not None
    front = served(CollectorApp(Spool(data), Forward(data), Authorizer(owner.token)))
    with front if forwarded else contextlib.nullcontext(owner.url) as url, no_query_goes_on(owned, monkeypatch):
        callers = [ask_and_stay(url, owner.token, sql) for _ in range(limits.QUERIES)]
        assert eventually(lambda: owned._file.readers == limits.QUERIES)
        for caller in callers:
            caller.close()
        assert eventually(lambda: owned._file.readers == 0)
        with open_store(data) as store:
            assert store.sql("SELECT count(*) FROM spans")[1] == [(8,)]


def test_many_queries_keep_nobody_else_from_the_store(
    owned: Store, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = read_owner(data)
    assert owner is not None
    with no_query_goes_on(owned, monkeypatch):
        callers = [ask_and_stay(owner.url, owner.token, "SELECT pg_sleep(100000)") for _ in range(60)]
        assert eventually(lambda: owned._file.readers == limits.QUERIES)
        with open_store(data) as store:
            assert [one.id for one in store.summaries()] == ["a"]
            store.append(research_run("b"))
            assert len(store.trajectories()) == 2
        assert owned._file.readers == limits.QUERIES
        for caller in callers:
            caller.close()
        assert eventually(lambda: owned._file.readers == 0)


@pytest.mark.parametrize("further", [{f"x-{number}": "a" for number in range(101)}, {"x-long": "a" * (33 << 10)}])
def test_headers_beyond_the_bounds_are_refused(owned: Store, data: DataDir, further: dict[str, str]) -> None:
    owner = read_owner(data)
    assert owner is not None
    authorization = {"authorization": f"Bearer {owner.token}"}
    refused = httpx.get(f"{owner.url}/api/trajectories/a", headers=authorization | further, timeout=100)
    assert (refused.status_code, "too large" in refused.text) == (431, True)
    assert httpx.get(f"{owner.url}/api/trajectories/a", headers=authorization, timeout=100).status_code == 200


def test_a_query_has_so_long(owned: Store, data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "QUERY_S", 0.3)
    with open_store(data) as store, pytest.raises(StoreError, match=r"took longer than 0\.3 seconds"):
        store.sql(LONG)
    assert owned._file.readers == 0


def test_a_query_that_reads_the_runs_first_keeps_what_it_read(
    owned: Store, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading many runs takes longer than a query may; whoever asks again need not begin anew."""
    owned.append(research_run("b"))
    read: list[str] = []
    build = Store._build

    def slow(self: Store, given: list[str]) -> list[Trajectory]:
        if len(read) == 1:
            stop = cancellation._current.get()
            assert stop is not None
            stop(*cancellation.took_too_long(0.3))  # its time is over now, and not before
            cancellation.check()
        read.extend(given)
        return build(self, given)

    monkeypatch.setattr(queries, "_SPANS_AT_ONCE", 1)
    monkeypatch.setattr(Store, "_build", slow)
    with open_store(data) as store:
        with pytest.raises(StoreError, match=r"took longer than 0\.3 seconds: it reads the runs") as error:
            store.sql("SELECT * FROM tool_calls")
        assert error.value.hint == "What was read is kept: try again."
        monkeypatch.setattr(Store, "_build", lambda self, given: [read.extend(given), build(self, given)][1])
        assert len(store.sql("SELECT * FROM tool_calls")[1]) == 8
    assert sorted(read) == ["a", "b"]


def test_a_query_in_ones_own_process_has_so_long_too(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "QUERY_S", 0.3)
    with Store.open(data, create=True) as store:
        with pytest.raises(StoreError, match=r"took longer than 0\.3 seconds"):
            store.sql(LONG)
        monkeypatch.undo()
        assert store.sql("SELECT 1")[1] == [(1,)]


def test_one_waits_for_its_turn_so_long(owned: Store, data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAIT_S", 0.3)
    owner = read_owner(data)
    assert owner is not None
    with no_query_goes_on(owned, monkeypatch):
        callers = [ask_and_stay(owner.url, owner.token, "SELECT pg_sleep(100000)") for _ in range(limits.QUERIES)]
        assert eventually(lambda: owned._file.readers == limits.QUERIES)
        answer = httpx.post(
            f"{owner.url}/api/sql",
            json={"query": "SELECT 1"},
            headers={"authorization": f"Bearer {owner.token}"},
            timeout=60,
        )
        assert (answer.status_code, "try again" in answer.json()["message"]) == (503, True)
        for caller in callers:
            caller.close()


def test_an_answer_is_so_large(owned: Store, data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "MAX_ANSWER_BYTES", 4 << 20)
    with open_store(data) as store:
        with pytest.raises(StoreError, match="the answer is over 4 MiB"):
            store.sql("SELECT * FROM range(2000000)")
        with pytest.raises(StoreError, match="the answer is over 4 MiB"):
            store.sql("SELECT repeat('x', 1000) FROM range(100000)")
        assert len(store.sql("SELECT * FROM range(10000)")[1]) == 10_000


def test_a_query_has_so_much_memory(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(data, create=True) as store:
        [(limit,)] = store.sql("SELECT current_setting('memory_limit')")[1]
        with monkeypatch.context() as patch:
            patch.setattr("arttrace.store.file.duckdb_file._SETTINGS", {})
            with Store.open(DataDir(data.root / "other"), create=True) as usual:
                assert limit != usual.sql("SELECT current_setting('memory_limit')")[1][0][0]
    monkeypatch.setattr("arttrace.store.file.duckdb_file._SETTINGS", {"memory_limit": "100MB"})
    with Store.open(data) as store:
        with pytest.raises(StoreError, match="Out of Memory"):
            store.sql("SELECT len(list(range)) FROM range(100000000)")
        store.append(research_run("b"))
        assert [one.id for one in store.trajectories()] == ["b"]


# --- half a request -------------------------------------------------------------------------------------------


@pytest.fixture
def collector(data: DataDir) -> Iterator[tuple[CollectorApp, str]]:
    app = CollectorApp(Spool(data), Forward(data), Authorizer("token"), in_flight_bytes=100_000)
    with served(app) as url:
        yield app, url


Connect = Callable[[bytes], socket.socket]


@pytest.fixture
def connect(collector: tuple[CollectorApp, str]) -> Iterator[Connect]:
    """Opens connections and sends something on each; all are closed before the collector, which waits for them."""
    host, _, port = collector[1].removeprefix("http://").rpartition(":")
    with contextlib.ExitStack() as opened:

        def connect(sent: bytes) -> socket.socket:
            connection = opened.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
            connection.sendall(sent)
            return connection

        yield connect


def answer(connection: socket.socket) -> bytes:
    """The beginning of what is answered, b"" where it is the end, and words that no server sends where nothing came."""
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""
    except TimeoutError:
        return NOTHING_CAME


HALF_A_BODY = (
    b"POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 90000\r\n\r\n"
    + bytes(20_000)
)


def test_a_stalled_upload_gives_its_place_back(
    collector: tuple[CollectorApp, str], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, url = collector
    monkeypatch.setattr(timeouts, "BODY_S", 1.0)
    stalled = [connect(HALF_A_BODY) for _ in range(5)]
    for one in stalled:
        said = answer(one)
        assert said.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 503 "))  # for the fifth there was no room
        assert said.startswith(b"HTTP/1.1 503 ") or b"\r\nconnection: close\r\n" in said
        if one is not stalled[-1]:
            assert ended(one)
    assert app.budget.used == 0
    assert httpx.post(f"{url}/v1/traces", json={}).status_code == 200


def test_a_body_that_trickles_is_one_that_stalls(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "BODY_S", 1.0)
    one = connect(HALF_A_BODY)
    one.settimeout(0.05)
    said = b""
    deadline = time.monotonic() + PATIENCE_S
    while not said and time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            one.sendall(b"x")
            said = one.recv(65536)
    assert said.startswith(b"HTTP/1.1 408 ")


def test_a_slow_upload_is_taken_as_long_as_it_comes(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all for longer than nothing may come."""
    monkeypatch.setattr(timeouts, "BODY_S", 3.0)
    monkeypatch.setattr(timeouts, "MIN_BYTES_PER_S", 500)
    body = b'{"resourceSpans": []' + b" " * 4979 + b"}"
    head = (
        b"POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    one = connect(head % len(body))
    for start in range(0, len(body), 1000):
        time.sleep(0.8)
        with contextlib.suppress(OSError):  # where it was refused meanwhile
            one.sendall(body[start : start + 1000])
    assert answer(one).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", b"POST /v1/traces HTTP/1.1\r\nhost: local"])
def test_half_a_head_is_waited_for_so_long(connect: Connect, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(timeouts, "HEAD_S", 2.0)
    assert ended(connect(sent))
    second = connect(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert answer(second).startswith(b"HTTP/1.1 200 ")
    second.sendall(b"GET /hea")  # of a further request
    assert ended(second)


def test_a_head_is_so_large(connect: Connect) -> None:
    one = connect(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
    with contextlib.suppress(OSError):
        for _ in range(100):
            one.sendall(b"x-a: " + b"a" * 10_000 + b"\r\n")
    assert ended(one)


def test_connections_without_a_head_give_way_to_others(
    collector: tuple[CollectorApp, str], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = collector
    monkeypatch.setattr(timeouts, "MAX_WITHOUT_HEAD", 20)
    monkeypatch.setattr(timeouts, "HEAD_S", 1000.0)  # their time is not what ends them
    waiting = [connect(b"POST /v1/traces HTTP/1.1\r\n") for _ in range(60)]
    assert httpx.get(f"{url}/health").status_code == 200
    assert all(map(ended, waiting[:39]))


def ended(connection: socket.socket) -> bool:
    """Whether the connection ends behind the rest of an answer, which may come in parts."""
    while (rest := answer(connection)) not in (b"", NOTHING_CAME):
        pass
    return rest == b""


def test_a_second_collector_says_who_owns_the_store(data: DataDir) -> None:
    """They share the directory: the second one receives, the first one loads."""
    command = [*ARTTRACE, "collect", "--port", "0"]
    with collecting(data) as (_, url):
        while (first := read_owner(data)) is None:
            time.sleep(0.05)
        with subprocess.Popen(
            command, env=environment(data), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as second:
            assert second.stdout is not None
            assert second.stderr is not None
            line = second.stderr.readline()
            other = second.stdout.readline().split()[2]
            second.terminate()
            second.wait(60)
    assert other != url
    assert f"is owned by process {first.pid} at {first.url} since 20" in line
    assert "it loads what is collected here too" in line


def test_a_collector_elsewhere_that_restarts_is_asked_again(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTTRACE_API_KEY", "key")
    with Store.open(data, create=True) as store, contextlib.ExitStack() as stack:
        with answering(store, "key"):
            found = read_owner(data)
            assert found is not None
            asked = stack.enter_context(open_store(dataclasses.replace(data, url=found.url)))
        port = int(found.url.rpartition(":")[2])
        monkeypatch.setattr(owner, "listen", lambda host, _port: listen(host, port))
        waits: list[float] = []

        def restart(pause_s: float) -> None:
            waits.append(pause_s)
            if len(waits) == 3:
                stack.enter_context(answering(store, "key"))

        monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=time.monotonic, sleep=restart))
        asked.append(research_run("a"))
        assert [one.id for one in asked.summaries()] == ["a"]
        assert len(waits) >= 3


def test_a_collector_elsewhere_that_is_gone_is_an_error_in_the_end(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARTTRACE_API_KEY", "key")
    with Store.open(data, create=True) as store, answering(store, "key"):
        found = read_owner(data)
        assert found is not None
        asked = open_store(dataclasses.replace(data, url=found.url))
    monkeypatch.setattr(remote, "RETRY_S", 0.2)
    with asked, pytest.raises(StoreError, match="does not answer"):
        asked.summaries()
