"""`arttrace rollout`: recorded runs of real agent code become scenarios, run again by real worker processes.

The model is a scripted server behind real HTTP; everything else is what a user has.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripted_server import Asked, Call, Reply, ScriptedServer, serve_script

from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.errors import RolloutError
from arttrace.system.evaluations import read_evaluations
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_key, group_trajectories
from trainer.commands.rollout import command
from trainer.grpo.batch import make_batch
from trainer.rollouts.replay import same_entry
from trainer.rollouts.report import Outcome, report_of

_AGENT = """
import asyncio, dataclasses, json, os, pathlib, sys, time
import arttrace

if os.environ.get("CLIENT") == "httpx2":  # whose import takes a seventh of openai's
    import httpx2

    async def ask(**request):
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        async with httpx2.AsyncClient(trust_env=False) as client:
            answer = await client.post(url, json=request)
        return answer.raise_for_status().json()["choices"][0]["message"]
else:
    import openai

    async def ask(**request):
        completion = await openai.AsyncOpenAI(max_retries=0).chat.completions.create(**request)
        return completion.choices[0].message.model_dump(exclude_none=True)

@dataclasses.dataclass
class Style:
    words: int

def ran(what):
    with open(os.environ["RAN"], "a") as log:
        log.write(what + "\\n")

@arttrace.tool
def price(item):
    ran(f"price {item}")
    if item == "ghost":
        raise KeyError(item)
    return {"price": len(item), "source": os.environ.get("SOURCE", "shop")}

@arttrace.tool
async def stock(item):
    ran(f"stock {item}")
    return 5

async def talk(question):
    messages = [{"role": "user", "content": question}]
    tools = [{"type": "function", "function": {"name": n, "parameters": {}}} for n in ("price", "stock")]
    for _ in range(4):
        reply = await ask(model="gpt-4o", messages=messages, tools=tools)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return reply["content"]
        for made in reply["tool_calls"]:
            arguments = json.loads(made["function"]["arguments"])
            try:
                result = price(**arguments) if made["function"]["name"] == "price" else await stock(**arguments)
            except KeyError as error:
                result = f"no such item: {error}"
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": json.dumps(result)})

async def one_of_several():
    place = pathlib.Path(os.environ["RAN"]).with_name("at_once")
    place.mkdir(exist_ok=True)
    (place / str(os.getpid())).touch()
    await asyncio.sleep(0.3)
    ran(f"beside {len(list(place.iterdir())) - 1} others")
    (place / str(os.getpid())).unlink()

@arttrace.trajectory
async def answer(question, *notes, style: Style = Style(3), **more):
    mode = os.environ.get("MODE")
    if mode == "slow":
        await asyncio.sleep(60)
    if mode == "ask":
        input("and the password? ")
    if mode == "count":
        await one_of_several()
    if mode == "reward":
        said = await talk(question)
        arttrace.reward(float("yam" in question))
        return [said]
    if mode == "raise":
        await talk(question)
        raise ValueError("I give up")
    return [await talk(question), list(notes), style.words, more]

@arttrace.trajectory
def odd(thing, key=""):
    return asyncio.run(talk("price of fig"))

class Shop:
    @arttrace.trajectory
    def serve(self, question):
        return asyncio.run(talk(question))

    @classmethod
    @arttrace.trajectory
    async def branch(cls, question):
        return [cls.__name__, await talk(question)]

if __name__ == "__main__" and sys.argv[1] == "program":
    if os.environ.get("MODE") == "ask":
        input("and the password? ")
    print(asyncio.run(talk(sys.argv[2])))
elif __name__ == "__main__":
    for what in sys.argv[1:]:
        kind, _, question = what.partition(":")
        os.environ["SOURCE"] = "the shop of that day"
        if kind == "odd":
            odd(object())
        elif kind == "method":
            Shop().serve("price of fig")
        elif kind == "branch":
            asyncio.run(Shop.branch("price of fig"))
        elif kind == "long":
            arttrace.init(dir=os.environ["LONG"])
            asyncio.run(answer("price of date", "x" * (9 << 20)))
        else:
            arttrace.init(capture_content=kind)
            asyncio.run(answer(question, "n1", "n2", style=Style(7), tone="dry"))
"""

WORDS = "the price is 5"


def _model(asked: Asked) -> Reply:
    """Asks for the price of what it is asked about, then says it. One that was asked to asks for other things."""
    question = asked.users[-1]
    if asked.results:
        return Reply(f"{WORDS}: {asked.results[-1]}")
    item = question.rpartition(" ")[2]
    return Reply(calls=(Call("stock" if "stock" in question else "price", {"item": item}),))


@dataclass
class Site:
    """The folder with the agent, a data directory with what was recorded, and the policy of the replay."""

    folder: Path
    data: DataDir
    policy: ScriptedServer
    said: str = ""

    @property
    def agent(self) -> str:
        return str(self.folder / "agent.py")

    def kept(self) -> list[Trajectory]:
        with Store.open(self.data, create=True) as store:
            return store.trajectories()

    def recorded(self, question: str) -> list[Trajectory]:
        """The recorded runs that were asked this, the newest first."""
        return [
            one
            for one in self.kept()[::-1]
            if "replay_of" not in one.metadata and (one.arguments or {}).get("question") == question
        ]

    def replayed(self) -> list[Trajectory]:
        return [one for one in self.kept() if "replay_of" in one.metadata]

    def ran(self) -> Counter[str]:
        """The tools that were executed since the recording."""
        log = self.data.root / "ran"
        return Counter(log.read_text().splitlines() if log.exists() else ())

    def rollout(self, *options: str, code: int = 0) -> dict[str, Any]:
        """The report of the command, or its error."""
        given = ("--dir", str(self.data.root), "--policy", self.policy.url, "--concurrency", "1", "--json", *options)
        done = CliRunner().invoke(command, list(given))
        self.said = done.stderr
        if isinstance(done.exception, RolloutError):
            assert code == 1, done.exception
        else:
            assert done.exit_code == code, (done.exception, done.output)
        return json.loads(done.stdout) if done.stdout else {"error": str(done.exception)}

    def replay(self, question: str, *options: str, code: int = 0) -> dict[str, Any]:
        return self.rollout("--trajectory", self.recorded(question)[0].id, *options, code=code)


BY_HTTPX2 = {"CLIENT": "httpx2", "ARTTRACE_CAPTURE_HTTP": "1"}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the agent, and in `data` what it did when its user ran it, with another model. A run on 9 MB is in
    `long`: whatever reads runs would read it."""
    folder = tmp_path_factory.mktemp("recording")
    (folder / "agent.py").write_text(_AGENT)
    asked = ("stock of mango", "price of ghost", "price of mango", "price of fig", "price of mango")
    less = ("redacted:price of pear", "off:price of lime")
    runs = ("odd", "method", "branch", "long", *less, *(f"full:{question}" for question in asked))
    with serve_script(_model) as production:
        env = {
            **os.environ,
            "ARTTRACE_DIR": str(folder / "data"),
            "OPENAI_BASE_URL": production.url,
            "OPENAI_API_KEY": "k",
            "RAN": str(folder / "ran"),
            "LONG": str(folder / "long"),
        }
        program = (sys.executable, "-c", "from arttrace.commands import main; main()", "run", "--", sys.executable)
        for recorded, client in (
            ((sys.executable, folder / "agent.py", *runs), {}),
            ((*program, folder / "agent.py", "program", "price of plum"), BY_HTTPX2),
        ):
            subprocess.run(recorded, env={**env, **client}, check=True, capture_output=True, timeout=600)
    with Store.open(DataDir(folder / "data"), create=True):
        pass  # read from the spool once, not by each test
    return folder


@pytest.fixture
def by_httpx2(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent asks without openai."""
    for name, value in BY_HTTPX2.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def site(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    shutil.copytree(recording / "data", tmp_path / "data")
    with serve_script(_model) as policy:
        policy.headers["x-arttrace-policy-version"] = "policy@4"
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")  # where nobody may be asked
        monkeypatch.setenv("RAN", str(tmp_path / "data" / "ran"))
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        yield Site(recording, DataDir(tmp_path / "data"), policy)


def _outcomes(report: dict[str, Any]) -> Counter[str]:
    return Counter(run["outcome"] for run in report["runs"])


def test_a_recorded_run_becomes_a_group_of_trainable_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.commands.rollout.BESIDE_LINES_S", 0.0)
    entry = f"{site.agent}:answer"
    shown = site.rollout("--dry-run", "--entry", entry, "--limit", "2")
    assert [one["arguments"]["question"] for one in shown["scenarios"]] == ["price of mango", "price of fig"]
    assert not site.policy.sent

    report = site.rollout("-n", "2", "--entry", entry, "--limit", "2")
    assert _outcomes(report) == {"complete": 4}
    assert re.search(r"^3 of 4 runs, .* left$", site.said, re.MULTILINE), site.said
    runs = site.replayed()
    assert {one.id for one in runs} == {run["trajectory"] for run in report["runs"]}
    assert sorted(Counter(one.group for one in runs).values()) == [2, 2]
    [original, _] = site.recorded("price of mango")
    for run in runs:
        assert group_key(run) == group_key(site.recorded(run.arguments["question"])[0])
        assert run.arguments == {**original.arguments, "question": run.arguments["question"]}
        assert run.result[1:] == [["n1", "n2"], 7, {"tone": "dry"}]  # *notes, a dataclass, **more
        assert run.policy_versions == ("policy@4",)
    assert all(run["captured_tokens"] == run["trained_tokens"] > 0 for run in report["runs"])
    assert site.ran() == {"price mango": 2, "price fig": 2}
    assert {sent.json["model"] for sent in site.policy.sent} == {"policy:latest"}

    shown = site.rollout("--dry-run", "--entry", entry)  # a replay is no input of its own
    assert len(shown["scenarios"]) == 4
    shown = site.replay("price of mango", "--dry-run")
    assert shown["scenarios"][0]["group"] == group_key(original)


@pytest.mark.usefixtures("by_httpx2")
def test_tools_are_answered_from_the_record(site: Site) -> None:
    questions = ("price of mango", "stock of mango", "price of ghost")
    chosen = [option for question in questions for option in ("--trajectory", site.recorded(question)[0].id)]
    report = site.rollout(*chosen, "-n", "2", "--tools", "recorded")
    assert _outcomes(report) == {"complete": 6}
    assert site.ran() == {}
    answers = {one.arguments["question"]: one.result[0] for one in site.replayed()}
    assert "the shop of that day" in answers["price of mango"]
    assert answers["stock of mango"].endswith(": 5")
    assert "no such item" in answers["price of ghost"]


@pytest.mark.usefixtures("by_httpx2")
def test_a_call_that_the_record_does_not_hold_fails_or_is_run(site: Site) -> None:
    kiwi = Reply(calls=(Call("price", {"item": "kiwi"}),))
    site.policy.script = lambda asked: _model(asked) if asked.results else kiwi
    report = site.replay("price of mango", "-n", "2", "--tools", "recorded", code=1)
    assert _outcomes(report) == {"lost": 2}
    assert site.ran() == {}
    assert all("a tool call that is not in the record: price" in one.incomplete for one in site.replayed())
    live = site.replay("price of mango", "-n", "1", "--tools", "recorded", "--on-missing", "live")
    assert _outcomes(live) == {"complete": 1}
    assert site.ran() == {"price kiwi": 1}


@pytest.mark.usefixtures("by_httpx2")
def test_failed_runs_are_runs_and_lost_ones_are_in_no_batch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "raise")
    failed = site.replay("price of mango", "-n", "1")
    assert _outcomes(failed) == {"failed": 1}
    assert failed["runs"][0]["reason"] == "ValueError: I give up"
    monkeypatch.setenv("MODE", "")
    for name in BY_HTTPX2:  # how it fails is said by OpenAI's client
        monkeypatch.delenv(name)
    site.policy.failures = [503]
    unanswered = site.replay("price of mango", "-n", "2", code=1)
    assert _outcomes(unanswered) == {"lost": 1, "complete": 1}
    assert any("503" in run["reason"] for run in unanswered["runs"])
    nobody = site.replay("price of mango", "--policy", "http://127.0.0.1:9/v1", "-n", "1", code=1)
    assert "APIConnectionError" in nobody["runs"][0]["reason"] or "not answer" in nobody["runs"][0]["reason"]
    for name, value in (*BY_HTTPX2.items(), ("MODE", "slow")):
        monkeypatch.setenv(name, value)
    late = site.replay("price of mango", "-n", "1", "--timeout", "2", code=1)
    assert {run["reason"] for run in late["runs"]} == {"it took longer than 2 s"}

    runs = site.replayed()
    assert sum(not one.incomplete for one in runs) == 2
    assert sum("the model did not answer" in one.incomplete for one in runs) == 2
    [group] = group_trajectories(runs)
    assert make_batch([group]).left_out["incomplete"] == len(runs) - 2


@pytest.mark.usefixtures("by_httpx2")
def test_what_cannot_be_replayed_is_refused_with_the_reason(site: Site) -> None:
    shutil.copytree(site.folder / "long" / "spool", site.data.root / "spool", dirs_exist_ok=True)
    shown = site.rollout("--dry-run", "--entry", f"{site.agent}:answer")
    assert shown["refused"] == {
        "its arguments were cut to a bound": 1,
        "its arguments were masked or redacted": 1,
        "no arguments were recorded": 1,
    }
    assert len(shown["scenarios"]) == 4
    odd = site.rollout("--entry", f"{site.agent}:odd", code=1)["error"]
    assert "1 x its arguments hold values that are no JSON" in odd
    [method] = [one.id for one in site.kept() if one.entry.endswith("Shop.serve")]
    assert "Shop.serve is a method" in site.rollout("--trajectory", method, "-n", "1", code=1)["error"]
    assert "entry points" in site.rollout("-n", "1", code=1)["error"]
    unknown = site.rollout("--entry", "agent.py:nothing", code=1)["error"]
    assert "no recorded run is one of agent.py:nothing" in unknown
    assert "Recorded were: agent, agent:Shop.branch, agent:Shop.serve, " in unknown
    missing = site.replay("price of fig", "-n", "1", "--entry", f"{site.agent}:nothing", code=1)["error"]
    assert "has no attribute 'nothing'" in missing
    changed = site.replay("price of fig", "-n", "1", "--entry", f"{site.agent}:odd", code=1)
    assert "has no parameter" in changed["runs"][0]["reason"]


@pytest.mark.usefixtures("by_httpx2")
def test_a_class_method_is_run_again(site: Site) -> None:
    report = site.rollout("--entry", f"{site.agent}:Shop.branch", "-n", "1")
    assert _outcomes(report) == {"complete": 1}
    [run] = site.replayed()
    assert run.result[0] == "Shop"


@pytest.mark.usefixtures("by_httpx2")
def test_no_more_runs_at_once_than_asked_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "count")
    report = site.replay("price of fig", "-n", "6", "--concurrency", "2")
    assert _outcomes(report) == {"complete": 6}
    beside = {what: times for what, times in site.ran().items() if what.startswith("beside")}
    assert sum(beside.values()) == 6
    assert beside.keys() <= {"beside 0 others", "beside 1 others"}


@pytest.mark.usefixtures("by_httpx2")
def test_a_run_that_asks_for_input_is_no_word_about_its_agent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "ask")
    [program] = [one for one in site.kept() if one.arguments == {"argv": ["program", "price of plum"]}]
    for recorded in (site.recorded("price of fig")[0], program):
        [run] = site.rollout("--trajectory", recorded.id, "-n", "1", code=1)["runs"]
        assert run["outcome"] == "lost"
    assert {one.incomplete for one in site.replayed()} == {
        "interrupted: it asked for standard input, which no record holds"
    }


@pytest.mark.usefixtures("by_httpx2")
def test_a_program_is_run_again_with_its_arguments(site: Site) -> None:
    [recorded] = [one for one in site.kept() if one.arguments == {"argv": ["program", "price of plum"]}]
    report = site.rollout("--trajectory", recorded.id, "-n", "2")
    assert _outcomes(report) == {"complete": 2}
    assert {one.id for one in site.replayed()} == {run["trajectory"] for run in report["runs"]}
    for run in site.replayed():
        assert (run.entry, run.arguments, run.group) == (recorded.entry, recorded.arguments, report["runs"][0]["group"])
        assert run.policy_versions == ("policy@4",)


@pytest.mark.usefixtures("by_httpx2")
def test_inputs_from_a_file(site: Site) -> None:
    lines = site.data.root / "inputs.jsonl"
    lines.write_text('{"question": "price of yam"}\n\n{"question": "price of yam", "style": {"words": 9}}\n')
    report = site.rollout("--input", str(lines), "--entry", f"{site.agent}:answer", "-n", "2")
    assert _outcomes(report) == {"complete": 4}
    assert len({run["group"] for run in report["runs"]}) == 2
    assert sorted(one.result[2] for one in site.recorded("price of yam")) == [3, 3, 9, 9]
    lines.write_text("[1]\n")
    assert "line 1" in site.rollout("--input", str(lines), "--entry", f"{site.agent}:answer", code=1)["error"]


@pytest.mark.usefixtures("by_httpx2")
def test_held_out_runs_measure_the_policy_and_teach_it_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = site.data.root / "exam.jsonl"
    lines.write_text('{"question": "price of yam"}\n{"question": "price of nothing"}\n')
    entry = ("--entry", f"{site.agent}:answer")
    monkeypatch.setenv("MODE", "reward")
    in_text = ("--dir", str(site.data.root), "--policy", site.policy.url, "--held-out", *entry)
    done = CliRunner().invoke(command, [*in_text, "--input", str(lines), "-n", "2"])
    print(done.output)
    assert re.fullmatch(r"4 runs in 2 groups: 4 complete; .* s\.", done.stdout.splitlines()[0]), done.exception
    assert done.stdout.splitlines()[1:] == [
        "  policy@4 answered",
        "  held out: mean reward 0.500 of 4 runs of policy@4, recorded",
    ]
    assert read_evaluations(site.data, "policy") == {4: {"held-out/reward": 0.5}}
    exam = [run for run in site.kept() if "held-out" in run.tags]
    batch = make_batch(group_trajectories(exam))
    assert (batch.consumed, batch.left_out) == ((), {"held out from training": 4})

    site.policy.headers["x-arttrace-policy-version"] = "policy@5"
    shown = site.rollout("--dry-run", *entry)
    assert {one["arguments"]["question"].rpartition(" ")[2] for one in shown["scenarios"]} == {"mango", "ghost", "fig"}
    again = site.rollout("--held-out", *entry, "-n", "1")  # of what was held out before
    assert again["held_out"] == [{"policy": "policy", "step": 5, "runs": 2.0, "reward": 0.5}]
    assert sorted(run["reward"] for run in again["runs"]) == [0.0, 1.0]
    assert {run.arguments["question"] for run in site.replayed()} == {"price of yam", "price of nothing"}
    named = site.rollout("--trajectory", exam[0].id, *entry, "-n", "1")
    assert named["held_out"], "its input is held out"
    assert all("held-out" in run.tags for run in site.replayed())

    monkeypatch.setenv("MODE", "")
    done = CliRunner().invoke(command, [*in_text, "-n", "1"])
    assert done.exit_code == 0, done.exception
    assert done.stdout.splitlines()[1:] == [
        "  policy@5 answered",
        "  held out: 2 runs without a reward, in no mean",
    ]


def test_without_held_out_runs_their_input_must_be_named(site: Site) -> None:
    said = site.rollout("--held-out", "--entry", f"{site.agent}:answer", code=1)["error"]
    assert "no recorded run of the kind is held out" in said
    assert "--input" in said


@pytest.mark.usefixtures("by_httpx2")
def test_ctrl_c_keeps_what_is_done(site: Site) -> None:
    original = site.recorded("price of mango")[0]
    given = ("--dir", site.data.root, "--policy", site.policy.url, "--trajectory", original.id, "-n", "400", "--json")
    program = "from trainer.commands.rollout import command; command()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "--concurrency", "1", *map(str, given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith("[2/400] done") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    report = json.loads(out)
    assert report["interrupted"]
    assert 2 <= _outcomes(report)["complete"] < 400
    assert {run["trajectory"] for run in report["runs"]} <= {one.id for one in site.replayed() if not one.incomplete}


def test_what_is_missing_after_ctrl_c_is_reported() -> None:
    run = Outcome("t1", "g1", None, "complete", "", 1.0, ("policy@4",), 6, 6)
    lines = report_of([run], wanted=3, seconds=2.0, interrupted=True, stopped=None).text().splitlines()
    assert lines[1] == "  stopped: 2 of 3 runs not made; runs made later join these groups"


@pytest.mark.parametrize(
    ("rewards", "line"),
    [
        ((0.5, 1.0), "Next: arttrace train."),
        ((0.5, None), "Next: arttrace score --judge MODEL, and arttrace train."),
    ],
)
def test_no_judge_is_named_where_the_agent_rewarded_all_its_runs(rewards: tuple[float | None, ...], line: str) -> None:
    runs = [
        Outcome(f"t{n}", "g1", None, "complete", "", 1.0, ("policy@4",), 6, 6, reward)
        for n, reward in enumerate(rewards)
    ]
    lost = Outcome("lost", "g1", None, "lost", "timeout", 1.0, ("policy@4",), 6, 6)
    said = report_of([*runs, lost], wanted=3, seconds=2.0, interrupted=False, stopped=None).text()
    assert said.splitlines()[-1] == line


def test_without_a_served_policy_the_hint_is_shown(site: Site) -> None:
    done = CliRunner().invoke(command, ["--dir", str(site.data.root), "--entry", f"{site.agent}:answer"])
    assert "no policy is being served" in str(done.exception)
    assert "arttrace serve" in str(done.exception)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/home/me/agent.py:run", "agent.py:run", True),
        ("app.agent:run", "agent.py:run", True),
        ("agent:run", "agent:other", False),
        ("a.agent:run", "b.other:run", False),
    ],
)
def test_spellings_of_one_entry(one: str, other: str, same: bool) -> None:
    assert same_entry(one, other) is same
