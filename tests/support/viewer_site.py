"""A viewer over a store that the real pipeline made: a real openai client in a real agent, captured by arttrace,
against a stand-in model; and a server of the viewer in this process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from word_model import Words, serve_words

from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.reward import Judgement, Reward, reward_clock
from arttrace.store import AnyStore, open_store
from arttrace.store.server.owner import http_server, listen, url_of
from arttrace.system.evaluations import add_evaluation
from arttrace.system.paths import DataDir
from arttrace.views.web.app import create_app
from arttrace.views.web.guard import login_link

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The shell is Chromium without its windows, which opens a page in a quarter of the time."""
PROGRAM = Path(__file__).with_name("travel_desk.py")
KEY = "a key for tests"
HOSTILE = "<script>window.ran=1</script><img src=x onerror='window.ran=1'>'\"><svg onload=window.ran=1>"

LISBON = [
    {
        "question": "Plan a weekend in Lisbon",
        "scenario": "lisbon weekend",
        "seed": seed,
        "tags": ["beta"],
        "reward": reward,
    }
    for seed, reward in ((0, 0.9), (1, 0.6), (2, 0.1))
]
OSLO = [{"question": "Plan a day in Oslo", "scenario": "oslo day", "seed": 0, "reward": 0.5}] * 3
OTHERS = [
    {"question": "Plan a weekend in Atlantis", "scenario": "atlantis", "tags": ["beta", "odd"]},
    {"question": f"Plan a day in Bergen {HOSTILE}", "scenario": f"bergen {HOSTILE}", "tags": [HOSTILE], "image": True},
    {"question": "Plan a night in Porto", "scenario": "porto", "top_p": 0.5},
    {"question": "Plan a week in Lisbon", "scenario": "lisbon week", "again": True, "seed": 0},
]


def capture(root: Path, asked: Sequence[dict[str, Any]], version: str = "policy@3") -> Words:
    """Lets the travel desk answer, captured into a data directory."""
    with serve_words(version) as (url, words):
        environment = os.environ | {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "none",
            "ARTTRACE_DIR": str(root),
            "ARTTRACE_SUMMARY": "0",
        }
        subprocess.run([sys.executable, str(PROGRAM), json.dumps(asked)], env=environment, check=True, timeout=120)
    return words


def make_site(root: Path) -> None:
    """Runs, a judgement, two policy steps with a daemon's state, and a tokenizer."""
    words = capture(root, [*LISBON, *OSLO, *OTHERS])
    words.write(root / "model")
    data = DataDir(root)
    with open_store(data) as store:
        runs = store.trajectories(group="lisbon weekend")
        scores = {run.id: score for run, score in zip(runs, (0.95, 0.5, 0.05), strict=True)}
        words_of_judge = ("It names sights and a hotel with rooms.", "Short, yet correct.", "It refuses the task.")
        said = {run.id: text for run, text in zip(runs, words_of_judge, strict=True)}
        judgement = Judgement(
            "j1", "key", "lisbon weekend", "openai/o3", "rubric", scores, said, 900, 120, 0.004, reward_clock.now_ns()
        )
        rewards = [
            Reward(
                id=f"j1:{id}",
                trajectory_id=id,
                value=score,
                name="ruler",
                source="judge",
                explanation=said[id],
                judgement_id="j1",
                time_ns=reward_clock.now_ns(),
            )
            for id, score in scores.items()
        ]
        store.append([judgement, *rewards, *steps(root, [Consumed(run.id, run.revision) for run in runs])])
    for step, score in ((0, 0.31), (10, 0.62), (30, 0.81)):
        add_evaluation(data, "policy", step, {"val/reward": score, "val/runs": 12.0})
    policy = root / "policies" / "policy"
    policy.mkdir(parents=True)
    (policy / "daemon.json").write_bytes(msgspec.json.encode(daemon_state()))
    write_serving(data, "policy@20")


def steps(root: Path, consumed: Sequence[Consumed], count: int = 30) -> list[PolicyStep]:
    """Steps of a policy that gets better."""
    now = time.time_ns()
    return [
        PolicyStep(
            policy="policy",
            step=step,
            adapter=str(root / "policies" / "policy" / f"policy@{step}"),
            consumed=tuple(consumed) if step == count else (),
            base_model=str(root / "model"),
            time_ns=now - (count - step) * 60_000_000_000,
            method="grpo",
            metrics={
                "reward_mean": 0.4 + 0.5 * (1 - 0.9**step) + 0.02 * (step * 7 % 5 - 2),
                "reward_spread": 0.5 * 0.95**step,
                "entropy": 1.8 * 0.96**step,
                "kl": 0.002 * step,
                "clip_fraction": 0.01 * (step % 4),
                "logprob_difference_mean": 0.0002 * (step % 3),
                "logprob_difference_max": 0.002 * (step % 3),
                "tokens_per_second": 3000.0 + 40 * step,
                "tokens_trained": 3800.0,
                "groups": 8.0,
                "groups_equal": float(step % 3),
                "loss": 0.003,
                "grad_norm": 0.02,
                "rollout_s": 3.0,
                "score_s": 0.4,
                "train_s": 0.7,
                "publish_s": 0.1,
            },
        )
        for step in range(1, count + 1)
    ]


def write_serving(data: DataDir, version: str) -> None:
    """What a gateway of this process writes while `version` answers."""
    serving = {"url": "http://127.0.0.1:9", "policy": "policy", "version": version, "pid": os.getpid()}
    data.serving.write_bytes(msgspec.json.encode(serving))


def daemon_state() -> dict[str, Any]:
    """What a daemon that waits writes."""
    now = time.time_ns()
    return {
        "policy": "policy",
        "state": "wait",
        "pid": 1,
        "since_ns": now - 90_000_000_000,
        "started_ns": now - 3_600_000_000_000,
        "step": 30,
        "queue": {"ready": 1, "waiting": 2, "left_out": {"incomplete": 1, "in a group of equal rewards": 3}},
        "reason": "one group is ready, a step takes 8",
        "hint": "run the agent on more inputs",
    }


class Viewer(NamedTuple):
    """A running viewer: its address, the link that logs in, and its store."""

    url: str
    link: str
    store: AnyStore


@contextmanager
def serve_viewer(root: Path) -> Iterator[Viewer]:
    """The viewer of a data directory, in a thread."""
    listener = listen("127.0.0.1", 0)
    with open_store(DataDir(root)) as store:
        server = http_server(create_app(store, KEY))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield Viewer(url_of(listener), login_link(url_of(listener), KEY), store)
        finally:
            server.should_exit = True
            thread.join()
            listener.close()
