"""The FastAPI service of examples/service, run by uvicorn: its answers are runs, its users' feedback their rewards."""

from __future__ import annotations

import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from chat_server import serve
from langfuse_server import langfuse_server
from tiny_model import make_base_model

from arttrace.store import open_store
from arttrace.system.journal.reader import OPEN_SUFFIX
from arttrace.system.paths import DataDir

SERVICE = Path(__file__).parents[2] / "examples" / "service"


@contextmanager
def service(root: Path, **environ: str) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    """The running service with a stand-in for the model, and a client of it; ended by SIGTERM."""
    with serve() as model:
        env = {**os.environ, "ARTTRACE_DIR": str(root), "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "k", **environ}
        command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0"]
        with subprocess.Popen(command, cwd=SERVICE, env=env, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            try:
                found = next(m for line in running.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
                with httpx.Client(base_url=found[0], timeout=60) as client:
                    yield client, running
            finally:
                running.terminate()
                running.wait(60)


def test_answers_become_runs_and_feedback_their_rewards(tmp_path: Path) -> None:
    with service(tmp_path) as (client, running):
        answers = [client.post("/answers", json={"text": "why?", "user": user}).json() for user in "ab"]
        given = client.post("/feedback", json={"run": answers[0]["run"], "stars": 4})
        unknown = client.post("/feedback", json={"run": "nobody", "stars": 4})
    assert (given.status_code, given.text, unknown.status_code) == (200, "null", 422)
    assert [answer["answer"] for answer in answers] == ["answer 0 to why?"] * 2
    assert running.returncode == -signal.SIGTERM  # so Python's exit handlers did not run
    assert not list(DataDir(tmp_path).spool.glob(f"*{OPEN_SUFFIX}"))  # and yet the spool was closed
    with open_store(DataDir(tmp_path)) as store:
        runs = {run.id: run for run in store.trajectories()}
    assert set(runs) == {answer["run"] for answer in answers}
    first, second = (runs[answer["run"]] for answer in answers)
    assert (first.tags, first.metadata, first.incomplete) == (("production",), {"user": "a"}, "")
    assert [(reward.name, reward.value) for reward in first.rewards] == [("stars", 0.75)]
    assert second.rewards == ()
    assert first.group == second.group == "why?"
    assert first.entry_name == "examples.service.app:support"


def test_redacted_it_keeps_what_the_code_says_and_nothing_of_what_users_say(tmp_path: Path) -> None:
    with service(tmp_path, ARTTRACE_CAPTURE_CONTENT="redacted") as (client, _):
        for text in ("where is my mango", "where is my mango", "where is my plum"):
            client.post("/answers", json={"text": text, "user": "ada"})
    with open_store(DataDir(tmp_path)) as store:
        runs = list(store.trajectories())
    assert [run.metadata for run in runs] == [{"user": "ada"}] * 3
    assert len({run.group for run in runs}) == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"where is" in path.read_bytes()]


def test_masked_it_answers_as_before_and_langfuse_gets_what_is_stored(tmp_path: Path) -> None:
    """Langfuse is a stand-in."""
    asked = "who is ann@example.org, +49 30 1234567?"
    with langfuse_server() as langfuse, service(tmp_path, **langfuse.environ()) as (client, running):
        answer = client.post("/answers", json={"text": asked, "user": "c"}).json()
        client.post("/feedback", json={"run": answer["run"], "stars": 4})
        running.terminate()
        running.wait(60)
    assert answer["answer"] == f"answer 0 to {asked}"
    with open_store(DataDir(tmp_path)) as store:
        (run,) = store.trajectories()
    assert (run.incomplete, run.result) == ("", ["answer 0 to who is [email], [phone]?", run.id])
    assert run.calls[0].call.messages[0].text == "who is [email], [phone]?"
    assert [item["type"] for item in langfuse.observations.values()].count("GENERATION") == 1
    assert [score["value"] for score in langfuse.scores.values()] == [0.75]
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    kept += json.dumps(list(langfuse.observations.values()), default=str).encode()
    assert b"[email], [phone]" in kept
    assert b"ann@example.org" not in kept
    assert b"+49 30 1234567" not in kept


def test_numbers_are_masked_and_ids_are_not() -> None:
    """Digits in the middle of an id once were taken for a telephone number, in one run of seven."""
    redacted = runpy.run_path(str(SERVICE / "redaction.py"))["redacted"]
    for number in ("+49 30 1234567", "0301234567", "(030) 123-4567", "tel:030/1234567,"):
        assert "[phone]" in redacted(f"call {number} now", kind="result")
        assert "1234567" not in redacted(f"call {number} now", kind="result")
    draw = random.Random(7)
    ids = [f"{draw.getrandbits(128):032x}" for _ in range(1000)]
    assert sum(bool(re.search(r"\d{9}", id)) for id in ids) > 50
    assert redacted(ids, kind="result") == ids


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base_model(tmp_path_factory.mktemp("base"))


def test_the_service_is_trained_offline_from_its_own_traces(tmp_path: Path, base_model: Path) -> None:
    """On the answers that users liked, those with something masked too: in words, whatever sampled them."""
    with service(tmp_path / "data") as (client, _):
        for number, stars in enumerate((5, 1, 5)):
            text = f"who is user{number}@example.org?" if number else "why?"
            run = client.post("/answers", json={"text": text, "user": "a"}).json()["run"]
            client.post("/feedback", json={"run": run, "stars": stars})
    command = [sys.executable, "-c", "from arttrace.commands import main; main()", "train", "--method", "sft"]
    command += ["--base-model", str(base_model), "--min-reward", "0.75", "--dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("policy@1: 2 trajectories, "), done.stdout
    assert "example.org" not in done.stdout + done.stderr
