"""The viewer where another process holds the store: it asks the owner, and what a person says goes through it."""

from __future__ import annotations

from pathlib import Path

from simulated_agent import research_run
from starlette.testclient import TestClient

from arttrace.store import Store, open_store
from arttrace.store.access.remote import RemoteStore
from arttrace.store.server.owner import answering
from arttrace.system.paths import DataDir
from arttrace.views.web.app import create_app


def test_every_page_is_the_same_through_the_owner(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    addresses = ["/runs", "/groups", "/groups/one?key=s1", "/training", "/runs?q=question"]
    addresses += [f"/runs/first-run{tab}" for tab in ("", "/timeline", "/graph", "/tokens", "/spans", "/run.json")]
    shown = {"authorization": "Bearer key"}
    with Store.open(data, create=True) as own, answering(own), open_store(data) as asked:
        own.append(research_run("first-run", "s1"))
        assert isinstance(asked, RemoteStore)
        here = TestClient(create_app(own, "key"), base_url="http://localhost", headers=shown)
        there = TestClient(create_app(asked, "key"), base_url="http://localhost", headers=shown)
        for address in addresses:
            answer = there.get(address)
            assert answer.status_code == 200
            assert answer.text == here.get(address).text
        assert there.post("/runs/first-run/rewards", data={"value": "0.25"}).status_code == 200
        assert [one.value for one in own.trajectory("first-run").rewards] == [0.25]
