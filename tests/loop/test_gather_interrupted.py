"""A real Ctrl-C while rollouts run: what was gathered is in the store with its rewards, and nothing hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from scripted_server import Asked, Reply, serve_script

from arttrace.records.semconv import POLICY_VERSION_HEADER
from arttrace.rewards import trajectory_reward
from arttrace.store import open_store
from arttrace.system.paths import DataDir

PROGRAM = """
import asyncio, sys
import arttrace
import arttrace.loop as art

url, data, way = sys.argv[1:]
arttrace.init(dir=data)
model = art.Model("policy", inference_base_url=url, inference_api_key="k")

async def rollout(question):
    client = model.openai_client()
    asked = [{"role": "user", "content": question}]
    answer = await client.chat.completions.create(model="policy", messages=asked)
    print(question, flush=True)
    reward = float(question.rpartition(" ")[2])
    if way == "decorated":
        arttrace.reward(reward)
        return answer
    return art.Trajectory([*asked, answer.choices[0]], reward=reward)

if way == "decorated":
    rollout = arttrace.trajectory(rollout)

async def main():
    groups = [
        art.TrajectoryGroup((rollout(f"done {n}") for n in range(2)), key="whole"),
        art.TrajectoryGroup((rollout(f"{what} {n}") for n, what in enumerate(["done", "wait", "done"])), key="half"),
    ]
    reported = lambda group: print(group.key, flush=True)
    await art.gather_trajectory_groups(groups, pbar_desc="gather", after_each=reported)

asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["decorated", "built"])
def test_what_was_gathered_is_kept(tmp_path: Path, way: str) -> None:
    waits, may_go_on = threading.Event(), threading.Event()

    def said(asked: Asked) -> Reply:
        if asked.users[-1].startswith("wait"):
            waits.set()
            may_go_on.wait(120)
        return Reply("an answer")

    program, data = tmp_path / "program.py", DataDir(tmp_path / "data")
    program.write_text(PROGRAM)
    with serve_script(said) as server:
        server.headers[POLICY_VERSION_HEADER] = "policy@1"
        command = [sys.executable, str(program), server.url, str(data.root), way]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                ended = sorted(process.stdout.readline() for _ in range(5))
                assert ended == ["done 0\n", "done 0\n", "done 1\n", "done 2\n", "whole\n"]
                assert waits.wait(60)
                process.send_signal(signal.SIGINT)
                said_last = process.communicate(timeout=30)[1]
            finally:
                process.kill()
                may_go_on.set()
    assert process.returncode == -signal.SIGINT, said_last
    assert "KeyboardInterrupt" in said_last
    with open_store(data) as store:
        kept = {
            (str(run.group), run.incomplete, trajectory_reward(run)): len(run.calls) for run in store.trajectories()
        }
    assert kept == {
        ("whole", "", 0.0): 1,
        ("whole", "", 1.0): 1,
        ("half", "", 0.0): 1,
        ("half", "interrupted: cancelled", None): 1,
        ("half", "", 2.0): 1,
    }
