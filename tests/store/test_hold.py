"""A process that keeps a store for long answers for it whenever it owns the file."""

from __future__ import annotations

import contextlib
from pathlib import Path

from simulated_agent import research_run

from arttrace.store import RemoteStore, Store, open_store
from arttrace.store.access.owner_file import read_owner
from arttrace.store.server.owner import answering, hold_store
from arttrace.system.paths import DataDir


def test_who_takes_a_store_over_from_its_owner_answers_for_it(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    with contextlib.ExitStack() as first:
        own = first.enter_context(Store.open(data, create=True))
        own.append(research_run("run"))
        first.enter_context(answering(own))
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
