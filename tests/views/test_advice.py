"""What can be done about a run that is not whole is said where the run is shown: `show`, `ls` and the viewer's page."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from simulated_agent import T0, Run, hexid, message
from starlette.testclient import TestClient
from viewer_site import KEY

from arttrace.commands import cli
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.web.app import create_app

ASKED, ANSWER = [message("user", "where?")], message("assistant", "there")
RAW = "has what came"


def incomplete(
    id: str, *, answer: bool = True, parent: str | None = None, root: bool = True, **said: object
) -> list[Record]:
    run = Run(id)
    run.chat("c", ASKED, *((ANSWER,) if answer else ()), at=1, parent=parent, **said)
    return [*run.end(at=9)] if root else [*run.spans]


def of_another_sdk(id: str, **said: object) -> list[Record]:
    attributes = {semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: "m", semconv.USAGE_OUTPUT_TOKENS: 5}
    attributes |= {getattr(semconv, name): value for name, value in said.items()}
    call = SpanRow(hexid(id, 32), hexid(id), "chat m", start_ns=T0, end_ns=T0 + 9, kind=3, attributes=attributes)
    return [call]


MESSAGES = '[{"role":"user","parts":[{"type":"text","content":"where?"}]}]'
RUNS: dict[str, tuple[list[Record], str]] = {
    "root": (incomplete("root", root=False), "The span at its top did not arrive"),
    "parent": (incomplete("parent", parent=hexid("gone")), "A span that others name did not arrive."),
    "later": (incomplete("later", answer=False, INTERRUPTED="background"), "Ask without `background`"),
    hexid("asked", 32): (of_another_sdk("asked", INPUT_MESSAGES=MESSAGES), "recorded what was asked, and no answer"),
    hexid("said", 32): (of_another_sdk("said", OUTPUT_MESSAGES=MESSAGES), "The prompt was not recorded"),
    "cut": (
        incomplete("cut", INPUT_MESSAGES="[]", TRUNCATED=[semconv.INPUT_MESSAGES]),
        "was cut (beyond 8 MiB by capture, else by OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)",
    ),
    hexid("neither", 32): (of_another_sdk("neither"), "ARTTRACE_CAPTURE_CONTENT=off"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("advice")
    with Store.open(DataDir(root), create=True) as store:
        for records, _ in RUNS.values():
            store.append(records)
    return root


def printed(root: Path, *arguments: str) -> str:
    text = CliRunner().invoke(cli, [*arguments, "--dir", str(root)], catch_exceptions=False).output
    return " ".join(text.split())


@pytest.mark.parametrize("id", RUNS)
def test_show_says_what_helps(root: Path, id: str) -> None:
    assert RUNS[id][1] in printed(root, "show", id)


def test_the_list_says_what_helps_with_unread_calls_once(root: Path) -> None:
    text = printed(root, "ls")
    assert text.count("recorded what was asked, and no answer") == 1
    assert "The prompt was not recorded" in text
    assert "did not arrive" not in text, "why a run is incomplete is said by `show`"


def test_the_viewer_says_what_helps(root: Path) -> None:
    heard = {"authorization": f"Bearer {KEY}"}
    with Store.open(DataDir(root)) as store:
        pages = TestClient(create_app(store, KEY), base_url="http://localhost", headers=heard)
        for id, (_, words) in RUNS.items():
            shown = pages.get(f"/runs/{id}").text
            assert words in shown, id
            assert "arttrace doctor" not in shown, "it says nothing of stored runs"
        assert "1 call not read: no scope, chat: no answer" in pages.get(f"/runs/{hexid('asked', 32)}").text
        assert "1 call not read: no scope, chat: no answer" in pages.get("/runs").text
