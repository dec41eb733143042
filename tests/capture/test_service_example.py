"""The FastAPI service of examples/service, run by uvicorn: its answers are runs, its users' feedback their rewards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from chat_server import serve

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
