"""A collector of an earlier version is asked as far as it understands, and said to be one where it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from collector_process import collecting
from simulated_agent import T0, research_run

from arttrace.records.reward import Reward
from arttrace.store import Store, open_store
from arttrace.store.access.client import OwnerClient
from arttrace.store.access.owner_file import read_owner
from arttrace.store.access.remote import RemoteStore
from arttrace.store.server.owner import hold_store
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir
from arttrace.views.statistics import statistics


class EarlierOwner(BaseHTTPRequestHandler):
    """Answers as an owner does that has no `recorded_ids`, knows less of a run, and has fewer columns."""

    owner: ClassVar[dict[str, Any]] = {"directory": "/data", "pid": 1}
    answers: ClassVar[dict[str, tuple[int, bytes]]] = {
        "/api/recorded_ids": (404, b'{"message": "there is no such address here"}'),
        "/api/summaries": (200, msgspec.msgpack.encode([{"id": "a"}])),
        "/api/spans": (400, b'{"message": "spans: Object contains unknown field `limit`"}'),
        "/api/sql": (409, b'{"message": "the query failed: Binder Error: no column reward", "hint": "See --help."}'),
        "/api/trajectory": (409, b'{"message": "no trajectory a", "hint": "`arttrace ls` lists the stored ones."}'),
    }

    def do_GET(self) -> None:
        self._answer(200, msgspec.msgpack.encode(self.owner))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(*self.answers[self.path])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def earlier() -> Iterator[RemoteStore]:
    with HTTPServer(("127.0.0.1", 0), EarlierOwner) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with RemoteStore(DataDir(Path()), OwnerClient(f"http://127.0.0.1:{server.server_port}", None), None) as one:
                yield one
        finally:
            server.shutdown()
            thread.join()


ASKED: dict[str, Callable[[RemoteStore], object]] = {
    "there is no such address here": lambda store: store.recorded_ids(limit=1),
    "answers to summaries cannot be read: Object missing required field": lambda store: store.summaries(),
    "unknown field `limit`": lambda store: store.spans("a"),
    "no column reward": lambda store: store.sql("SELECT reward FROM trajectories"),
}


@pytest.mark.parametrize("says", ASKED)
def test_what_it_does_not_understand_is_said_with_both_versions(earlier: RemoteStore, says: str) -> None:
    with pytest.raises(StoreError) as raised:
        ASKED[says](earlier)
    assert says in raised.value.message
    assert raised.value.hint is not None
    assert raised.value.hint.endswith(
        f"an earlier version of arttrace, this is {version('arttrace')}: if that is why, upgrade arttrace there and "
        "start it again."
    )
    assert raised.value.hint.startswith("See --help. At http" if "column" in says else "At http")


def test_other_refusals_and_the_same_version_say_nothing_of_versions(
    earlier: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError) as raised:
        earlier.trajectory("a")
    assert raised.value.hint == "`arttrace ls` lists the stored ones."
    monkeypatch.setitem(EarlierOwner.owner, "version", version("arttrace"))
    with pytest.raises(StoreError) as raised:
        earlier.sql("SELECT reward FROM trajectories")
    assert raised.value.hint == "See --help."


@pytest.mark.parametrize(
    ("owners", "side"),
    [("0.0.9", "there and start it again"), ("99.1", "here"), ("of another program", "there and start it again")],
)
def test_which_side_to_upgrade_is_said(
    earlier: RemoteStore, monkeypatch: pytest.MonkeyPatch, owners: str, side: str
) -> None:
    monkeypatch.setitem(EarlierOwner.owner, "version", owners)
    with pytest.raises(StoreError) as raised:
        earlier.spans("a")
    assert raised.value.hint is not None
    assert f"answers arttrace {owners}" in raised.value.hint
    assert raised.value.hint.endswith(f"upgrade arttrace {side}.")


def test_an_owner_that_runs_since_before_an_upgrade_is_to_be_started_again(
    earlier: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said of which version the package was that had meanwhile been installed: nothing told what was wrong."""
    monkeypatch.setitem(EarlierOwner.owner, "version", version("arttrace"))
    with pytest.raises(StoreError) as raised:
        earlier.spans("a")
    assert (raised.value.hint or "").endswith("Start both again.")


def test_an_owner_tells_the_version_of_the_code_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It told that of the package that had meanwhile been installed in the place of its own."""
    data = DataDir(tmp_path / "data")
    with hold_store(data, create=True):
        monkeypatch.setattr("arttrace.store.server.api.version", lambda _name: "99.1")
        owner = read_owner(data)
        assert owner is not None
        client = OwnerClient(owner.url, owner.token)
        assert client._owner().version == version("arttrace")
        client.close()


@pytest.mark.parametrize("path", ["/api", "/v1/traces"])
def test_an_address_that_is_more_than_a_collectors_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """It was taken for that of a collector of an earlier version."""
    monkeypatch.setenv("ARTTRACE_API_KEY", "key")
    with (
        collecting(DataDir(tmp_path / "data"), ARTTRACE_API_KEY="key") as (_, url),
        pytest.raises(StoreError) as raised,
    ):
        open_store(DataDir(tmp_path, url=url + path))
    assert raised.value.hint == f"Is {url}{path} the address of a collector, and no more than that?"


@pytest.mark.parametrize("key", [None, "another"])
def test_the_login_of_an_address_is_in_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """Errors get into logs."""
    monkeypatch.setenv("ARTTRACE_API_KEY", key or "")
    with collecting(DataDir(tmp_path / "data"), ARTTRACE_API_KEY="key") as (_, url):
        for at, says in ((url.removeprefix("http://"), "the key"), ("127.0.0.1:9", "does not answer")):
            with pytest.raises(StoreError) as raised:
                open_store(DataDir(tmp_path, url=f"http://me:pass-word@{at}"))
            said = f"{raised.value.message} {raised.value.hint}"
            assert says.removeprefix("the ") in said
            assert at in said
            assert "pass-word" not in said


def test_statistics_need_no_column_that_an_earlier_version_had_not(tmp_path: Path) -> None:
    judged = [Reward(f"j{at}", "a", at / 4, "ruler", "judge", time_ns=T0 + at) for at in range(3)]
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        store.append([*research_run("a"), *research_run("b"), *judged, Reward("code", "a", 1.0, time_ns=T0)])
        expected = statistics(store, "entry")
        assert (
            [one.reward for one in expected] == [store.sql("SELECT avg(reward) FROM trajectories")[1][0][0]] == [0.75]
        )
        connection = store._file.connection
        connection.execute("ALTER VIEW trajectories RENAME TO trajectories_of_today")
        connection.execute("CREATE VIEW trajectories AS SELECT * EXCLUDE (reward) FROM trajectories_of_today")
        assert statistics(store, "entry") == expected
