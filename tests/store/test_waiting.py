"""Whoever asks for a store that another process opens, and reads again for minutes, waits and learns how far it is."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from served_app import served
from stored_runs import store_by_an_earlier_version

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.spool import Spool
from arttrace.store import RemoteStore, Store, open_store
from arttrace.store.access import open_store as opening_module
from arttrace.store.access import remote
from arttrace.store.file.reading import Elsewhere, reading_reported
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.owner import answering
from arttrace.system.errors import StoreError, StoreInUse
from arttrace.system.paths import DataDir

READS_AGAIN = """
import sys
from pathlib import Path
from arttrace.store.file import reread
from arttrace.store.server.owner import hold_store
from arttrace.system.paths import DataDir

reread._AT_ONCE = 1
read, parts = reread._reread, iter(range(9))

def once_reported(connection, traces):
    if next(parts) == 1:
        print("one is read", flush=True)
        sys.stdin.readline()
    read(connection, traces)

reread._reread = once_reported
with hold_store(DataDir(Path(sys.argv[1]))):
    sys.stdin.read()
"""


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


def collector(data: DataDir) -> contextlib.AbstractContextManager[str]:
    """One without a process that loads: who owns the store is another matter."""
    return served(CollectorApp(Spool(data), Forward(data), Authorizer("token", "key")))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_it_waits_until_another_process_has_read_the_runs_again(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    monkeypatch.setenv("ARTTRACE_API_KEY", "key")
    store_by_an_earlier_version(data)
    command = [sys.executable, "-c", READS_AGAIN, str(data.root)]
    shown: list[tuple[int, int]] = []
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
        collector(data) as url,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        going_on = other.stdin

        def telling(total: int) -> Callable[[int], object]:
            def tell(done: int) -> None:
                if not shown:
                    going_on.write("\n")
                    going_on.flush()
                shown.append((done, total))

            return tell

        try:
            assert other.stdout.readline() == "one is read\n"
            asked = dataclasses.replace(data, url=url) if elsewhere else data
            with reading_reported(telling), open_store(asked) as store:
                assert isinstance(store, RemoteStore)
                assert [calls for (calls,) in store.sql("SELECT calls FROM trajectories")[1]] == [1, 1]
        finally:
            other.communicate()
    assert (shown[0], shown[-1]) == ((1, 2), (2, 2))


def test_the_owner_has_its_time_to_answer_from_when_the_file_is_open(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the opening itself is waited for."""
    now = [0.0]
    opens = Store.open

    def opened_late(data: DataDir, *, create: bool = False) -> Store:
        if not now[0]:
            now[0] += 1000
            raise StoreInUse("opened meanwhile by another process, which will answer at once")
        return opens(data, create=create)

    monkeypatch.setattr(opening_module.Store, "open", opened_late)
    monkeypatch.setattr(opening_module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))
    with open_store(data, create=True) as store:
        assert isinstance(store, Store)


def test_patience_begins_anew_with_each_step_and_ends_without_one() -> None:
    now = [0.0]
    waiting = Elsewhere(30, clock=lambda: now[0])
    for at in range(5):
        now[0] += 29
        waiting.at((at, 9))
        assert not waiting.is_over
    for at in (None, (4, 9)):
        now[0] += 16
        waiting.at(at)
    assert waiting.is_over


def test_a_collector_that_has_just_begun_is_waited_for(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTTRACE_API_KEY", "key")
    with Store.open(data, create=True) as store, contextlib.ExitStack() as stack:
        url = stack.enter_context(collector(data))
        waits: list[float] = []

        def begin(pause_s: float) -> None:
            waits.append(pause_s)
            if len(waits) == 2:
                stack.enter_context(answering(store))

        monkeypatch.setattr(remote, "time", SimpleNamespace(sleep=begin))
        with open_store(dataclasses.replace(data, url=url)) as asked:
            assert asked.summaries() == []
        assert len(waits) == 2


def test_one_whose_store_nobody_opens_is_said_to_be_so(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTTRACE_API_KEY", "key")
    monkeypatch.setattr(remote, "RETRY_S", 0.2)
    with collector(data) as url, pytest.raises(StoreError, match="nobody owns the store at the moment"):
        open_store(dataclasses.replace(data, url=url))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_pruning_may_take_longer_than_what_else_is_asked(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """A hundred gigabytes are not written anew in ten minutes: who asked gave up, which ended it each time."""
    monkeypatch.setenv("ARTTRACE_API_KEY", "key")
    waited: dict[str, list[float]] = {}

    def noted(send: Callable[..., object]) -> Callable[..., object]:
        def noting(self: object, request: httpx.Request, **how: object) -> object:
            waited.setdefault(request.url.path, []).append(request.extensions["timeout"]["read"])
            return send(self, request, **how)

        return noting

    for client in (httpx.Client, httpx.AsyncClient):
        monkeypatch.setattr(client, "send", noted(client.send))
    with (
        Store.open(data, create=True) as own,
        answering(own),
        collector(data) as url,
        open_store(dataclasses.replace(data, url=url) if elsewhere else data) as store,
    ):
        store.prune(dry_run=True)
        store.summaries()
    askers = 2 if elsewhere else 1
    assert (waited["/api/prune"], waited["/api/summaries"]) == (askers * [86_400.0], askers * [600.0])
