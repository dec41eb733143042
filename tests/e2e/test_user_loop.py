"""The loop as a user types it: serve, run an agent, look, score, train, and the next call is the new version's.

Every step is the real command in a process of its own; only the judge stands in for a model.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Asked, Call, Reply, serve_script

from arttrace.records import semconv
from arttrace.store import Store
from arttrace.system.paths import DataDir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = Path(__file__).parent / "programs"
ARTTRACE = (sys.executable, "-c", "from arttrace.commands import main; main()")
QUESTIONS = ("imported mango", "frozen bean")
RUNS = 12


@dataclass
class Site:
    """A directory to work in, and the environment that the printed instructions give an agent."""

    folder: Path
    env: dict[str, str]

    def sh(self, *command: str | Path, code: int = 0) -> str:
        """What a command that ends with `code` printed."""
        done = subprocess.run(
            list(map(str, command)), cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    def arttrace(self, *arguments: str | Path, code: int = 0) -> str:
        return self.sh(*ARTTRACE, *arguments, code=code)

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.arttrace("ls", "--json", "--limit", "200"))
        return found


@pytest.fixture(scope="module")
def site(demo_base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("user")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "ARTTRACE_")) and k != "MODEL"}
    command = (*ARTTRACE, "serve", "--base-model", demo_base_model, "--port", "0", "--json")
    with (folder / "serve.err").open("w") as log:
        server = subprocess.Popen(
            list(map(str, command)), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready, (folder / "serve.err").read_text()
        env |= {"OPENAI_BASE_URL": f"{json.loads(ready)['url']}/v1", "OPENAI_API_KEY": "arttrace"}
        yield Site(folder, env)
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(300) in (0, 130)
    assert not (folder / ".arttrace" / "serving.json").exists()


@pytest.fixture
def judge_url() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", "trainer.demo.stand_in_judge"], stdout=subprocess.PIPE, text=True
    ) as judge:
        assert judge.stdout is not None
        assert "stand-in" in judge.stdout.readline()
        yield judge.stdout.readline().split()[-1]
        judge.send_signal(signal.SIGINT)


def test_the_loop_of_a_users_own_program(site: Site, judge_url: str) -> None:
    for question in QUESTIONS:
        answers = site.sh(sys.executable, EXAMPLES / "quickstart" / "agent.py", question, str(RUNS)).splitlines()
        assert len(answers) == RUNS
        assert sum(answer.startswith(question) for answer in answers) > RUNS / 2
    market = EXAMPLES / "market" / "agent.py"
    assert "fresh apple" in site.arttrace("run", "--", sys.executable, market, "fresh apple and canned bean")

    runs = site.listed()
    assert len(runs) == 2 * RUNS + 1
    assert not [run for run in runs if run["incomplete"]]
    assert all(run["captured_tokens"] == run["trained_tokens"] > 0 for run in runs)
    [planner] = [run for run in runs if "market" in run["entry"]]
    assert (planner["agents"], planner["calls"]) == (3, 6)
    assert "policy@0" in site.arttrace("ls")
    tree = site.arttrace("show", planner["id"][:8])
    assert tree.count("agent ask_checker  (inferred") == 2
    assert "tool ask_checker" in tree

    judge = ("--judge", "openai/stand-in-judge", "--judge-base-url", judge_url)
    scored = json.loads(site.arttrace("score", *judge, "--json"))
    assert (scored["scored_now"], scored["singletons"], scored["failed"]) == (2, 1, [])
    assert Counter(len(group["scores"]) for group in scored["groups"]) == {RUNS: 2}
    assert "0 of 2 groups scored now" in site.arttrace("score", *judge)
    rewards = {run["id"]: run["reward"] for run in site.listed()}
    assert rewards.pop(planner["id"]) is None
    assert {0.3, 1.0} <= set(rewards.values())

    trained = site.arttrace("train", "--steps", "1")
    assert trained.startswith(f"policy@1: {2 * RUNS} trajectories in 2 groups")
    assert "served: policy@1 answers from the next call on" in trained
    assert (site.folder / ".arttrace" / "policies" / "policy" / "policy@1" / "adapter_model.safetensors").is_file()

    before = time.time_ns()
    site.sh(sys.executable, EXAMPLES / "quickstart" / "agent.py", QUESTIONS[0])
    with Store.open(DataDir(site.folder / ".arttrace")) as store:
        [newest] = store.summaries(since_ns=before)
        answered_by = store.trajectory(newest.id).policy_versions
        [step] = store.policy_steps("policy")
    assert answered_by == ("policy@1",)
    assert len(step.consumed) == 2 * RUNS

    refused = site.arttrace("train", code=1)
    assert "nothing to train on" in refused
    assert "2 alone in its group" in refused


def _foreign_model(asked: Asked) -> Reply:
    """A stand-in for the model that the agent has in production: it asks both price services, and trusts the list's."""
    if asked.results:
        return Reply(" and ".join(asked.results) if "ask_checker" in asked.tools else asked.results[0])
    items, tools = asked.users[0].split(" and "), asked.tools
    return Reply(calls=tuple(Call(t, {"item": i}, f"call_{t}_{i}") for i in items for t in tools))


@dataclass
class PriceDesk:
    """The agent in programs/price_desk.py, recorded while its model was another, then run under the policy."""

    site: Site

    def record(self, *questions: str) -> None:
        shutil.copy(PROGRAMS / "price_desk.py", self.site.folder)
        with serve_script(_foreign_model) as production:
            env = self._env(1) | {"OPENAI_BASE_URL": production.url, "OPENAI_API_KEY": "foreign"}
            replace(self.site, env=env).sh(sys.executable, "price_desk.py", *questions)

    def rollout(self, *options: str) -> list[dict[str, Any]]:
        """What `arttrace rollout` tells of each run, on a later day and with nobody at the agent's own base URL."""
        (self.site.folder / "ran").write_text("")
        chosen = ("--from-store", "--entry", "price_desk:answer", "--concurrency", "2", "--json")
        later = replace(self.site, env=self._env(2) | {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
        runs: list[dict[str, Any]] = json.loads(later.arttrace("rollout", *chosen, *options))["runs"]
        assert {run["outcome"] for run in runs} == {"complete"}
        assert all(run["captured_tokens"] == run["trained_tokens"] > 0 for run in runs)
        return runs

    def really_ran(self) -> Counter[str]:
        """Tool calls since the last rollout began, as the tools themselves noted them."""
        return Counter((self.site.folder / "ran").read_text().splitlines())

    def tool_calls(self, trajectory_id: str) -> list[tuple[str, str]]:
        """Each call of a price service by its tool and item, with its result, in order."""
        with Store.open(DataDir(self.site.folder / ".arttrace")) as store:
            spans = sorted(store.spans(trajectory_id), key=lambda span: span.start_ns)
        calls = [span.attributes for span in spans if str(span.attributes.get(semconv.TOOL_NAME)).endswith("_price")]
        found = []
        for call in calls:
            item = json.loads(call[semconv.TOOL_CALL_ARGUMENTS])["item"]
            found.append((f"{call[semconv.TOOL_NAME]} {item}", json.loads(call[semconv.TOOL_CALL_RESULT])))
        return found

    def _env(self, day: int) -> dict[str, str]:
        return self.site.env | {"RAN": str(self.site.folder / "ran"), "DAY": str(day)}


def test_a_recorded_run_of_another_model_becomes_a_scenario_that_the_policy_learns_from(site: Site) -> None:
    desk = PriceDesk(site)
    questions = ("imported mango and frozen bean", "fresh apple and canned bean")
    desk.record(*questions)
    recorded = {run["id"]: run for run in site.listed() if run["entry"] == "price_desk:answer"}
    assert len(recorded) == 2
    assert all((run["trained_tokens"], run["agents"]) == (0, 3) for run in recorded.values())

    live = desk.rollout("-n", "8")
    assert Counter(run["replay_of"] for run in live) == dict.fromkeys(recorded, 8)
    assert {run["group"] for run in live} == {run["group"] for run in recorded.values()}
    [before] = {tuple(run["policy_versions"]) for run in live}
    ran = Counter(call for run in live for call, _ in desk.tool_calls(run["trajectory"]))
    assert desk.really_ran() == ran
    assert sum(ran.values()) > 16

    answered = desk.rollout("-n", "8", "--limit", "1", "--tools", "recorded", "--on-missing", "live")
    [original] = {run["replay_of"] for run in answered}
    record = desk.tool_calls(original)
    missing: Counter[str] = Counter()
    for run in answered:
        left = list(record)
        for call in desk.tool_calls(run["trajectory"]):
            known = next((one for one in left if one[0] == call[0]), None)
            if known is None:
                missing[call[0]] += 1
            else:
                assert call == known, "the answer of the day of the record"
                left.remove(known)
        assert len(left) < len(record)
    assert desk.really_ran() == missing
    assert {run["group"] for run in answered} <= {run["group"] for run in live}

    feedback = "import sys, arttrace\nfor n, id in enumerate(sys.argv[1:]): arttrace.reward(n % 2, trajectory_id=id)"
    replayed = [run["trajectory"] for run in (*live, *answered)]
    site.sh(sys.executable, "-c", feedback, *replayed)
    trained = site.arttrace("train", "--steps", "1")
    assert "24 trajectories in 2 groups" in trained
    version = trained.partition(":")[0]
    with Store.open(DataDir(site.folder / ".arttrace")) as store:
        assert {one.trajectory_id for one in store.policy_steps("policy")[-1].consumed} == set(replayed)

    [after] = desk.rollout("-n", "1", "--limit", "1")
    assert after["policy_versions"] == [version] != list(before)


CUT_PROGRAM = """
import sys
import arttrace, httpx
from agent import SYSTEM, TOOLS
from openai import OpenAI

@arttrace.trajectory
def ask(client, bound, stream):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "imported mango"}]
    asked = dict(model="policy@0", messages=messages, tools=TOOLS, temperature=0, max_tokens=bound)
    if not stream:
        answer = client.chat.completions.create(**asked)
        [choice] = answer.choices
        return choice.finish_reason, answer.usage.completion_tokens, len(choice.message.tool_calls or ())
    for chunk in client.chat.completions.create(**asked, stream=True):
        reason = chunk.choices[0].finish_reason if chunk.choices else reason
    return reason, bound, 1

client = OpenAI()
whole, length, calls = ask(client, 64, False)
assert (whole, calls) == ("tool_calls", 1)
for bound in (length, length - 1):
    for stream in (False, True):
        reason, sampled, calls = ask(client, bound, stream)
        print(reason, sampled - length, calls)
gateway = str(client.base_url).removesuffix("/v1/")
ask(client.with_options(base_url=f"{gateway}/r/through-the-gateway/v1"), length - 1, False)
key = {"authorization": "Bearer arttrace"}
httpx.post(f"{gateway}/r/through-the-gateway/end", json={}, headers=key).raise_for_status()
"""


def test_an_answer_that_vllm_cuts_behind_a_whole_tool_call_is_known_as_cut(site: Site) -> None:
    shutil.copy(EXAMPLES / "quickstart" / "agent.py", site.folder)
    (site.folder / "cut.py").write_text(CUT_PROGRAM)
    before = time.time_ns()
    said = site.sh(sys.executable, "cut.py").splitlines()
    assert said == ["tool_calls 0 1", "tool_calls 0 1", "tool_calls -1 1", "length -1 1"], "vLLM's own words"
    with Store.open(DataDir(site.folder / ".arttrace")) as store:
        runs = [
            store.trajectory(one.id) for one in sorted(store.summaries(since_ns=before), key=lambda one: one.start_ns)
        ]
    ends = [
        (choice.finish_reason, placed.call.interrupted)
        for run in runs
        for placed in run.calls
        for choice in placed.call.choices
    ]
    whole, cut = ("tool_calls", None), ("length", None)
    assert ends == [whole, whole, whole, cut, cut, cut, cut]
