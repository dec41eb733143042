"""A process that keeps a store for long answers for it when it owns the file, and goes on when its owner has ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from simulated_agent import research_run

from arttrace.store import RemoteStore, Store, open_store
from arttrace.store.access.client import OwnerClient
from arttrace.store.access.owner_file import read_owner
from arttrace.store.server.owner import answering, hold_store
from arttrace.system.errors import StoreError, StoreInUse
from arttrace.system.paths import DataDir

THREADS = 8


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path)


@contextlib.contextmanager
def owned(data: DataDir) -> Iterator[None]:
    """Somebody else owns a store with one run."""
    with Store.open(data, create=True) as own, answering(own):
        own.append(research_run("run"))
        yield


def test_who_takes_a_store_over_from_its_owner_answers_for_it(data: DataDir) -> None:
    with contextlib.ExitStack() as first:
        first.enter_context(owned(data))
        with hold_store(data) as held:
            assert isinstance(held, RemoteStore)
            assert len(held.summaries()) == 1
            first.close()
            assert len(held.summaries()) == 1
            assert read_owner(data) is not None, "others find who has the file"
            with open_store(data) as other:
                assert isinstance(other, RemoteStore)
                assert len(other.summaries()) == 1
        assert read_owner(data) is None


def test_of_threads_that_find_the_owner_gone_one_takes_over_and_all_are_answered(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_over: list[Store] = []
    asked = threading.Barrier(THREADS)
    send = OwnerClient._send

    def at_one_time(self: OwnerClient, *args: str, **content: object) -> bytes:
        try:
            return send(self, *args, **content)
        except StoreError:
            with contextlib.suppress(threading.BrokenBarrierError):
                asked.wait(10)
            raise

    with contextlib.ExitStack() as first:
        first.enter_context(owned(data))
        with open_store(data, on_taken_over=taken_over.append) as held, ThreadPoolExecutor(THREADS) as threads:
            first.close()
            monkeypatch.setattr(OwnerClient, "_send", at_one_time)
            answers = [threads.submit(held.summaries) for _ in range(THREADS)]
            assert [len(one.result()) for one in answers] == [1] * THREADS
    assert len(taken_over) == 1


def gone(data: DataDir, reopen: Callable[[], Store]) -> RemoteStore:
    """A store whose owner has ended."""
    with owned(data):
        owner = read_owner(data)
        assert owner is not None
        return RemoteStore(data, OwnerClient(owner.url, owner.token), reopen)


def test_a_store_that_could_not_be_taken_over_is_once_it_can_be(data: DataDir) -> None:
    refusals = [StoreInUse("another process is opening it")]

    def reopen() -> Store:
        if refusals:
            raise refusals.pop()
        return Store.open(data)

    with gone(data, reopen) as held:
        with pytest.raises(StoreInUse):
            held.summaries()
        assert len(held.summaries()) == 1


def test_nobody_takes_a_store_over_after_its_end(data: DataDir) -> None:
    held = gone(data, lambda: Store.open(data))
    held.close()
    with pytest.raises(StoreError, match="was closed"):
        held.summaries()
    Store.open(data).close()
