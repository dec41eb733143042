"""`arttrace score` on a real store, asking a stand-in judge over real HTTP."""

from __future__ import annotations

import errno
import io
import json
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arttrace.commands import main
from arttrace.records import semconv
from arttrace.records.record import encode_record
from arttrace.records.span import SpanRow
from arttrace.rewards.judge_prompt import parse_prompt
from arttrace.store import Store
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


@pytest.fixture
def spool_run(data: DataDir) -> Callable[..., str]:
    """Spools one run with one model call; returns the trajectory's id."""
    count = 0

    def spool(scenario: str | None, answer: str, *, whole: bool = True, cut: int | None = None) -> str:
        nonlocal count
        count += 1
        trajectory_id, trace_id, start = f"{count:032x}", f"{count:032x}", count * 1_000_000
        shared = {semconv.TRAJECTORY_ID: trajectory_id}
        root = SpanRow(
            trace_id=trace_id,
            span_id=f"{count:08x}00000001",
            name="invoke_agent answer",
            start_ns=start,
            end_ns=start + 900,
            attributes={
                **shared,
                semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
                semconv.AGENT_NAME: "answer",
                semconv.ENTRY: "agent:answer",
                semconv.ENTRY_ARGUMENTS: json.dumps({"run": count}),
                semconv.ENTRY_RESULT: json.dumps(answer),
                semconv.TRAJECTORY_SPAN_COUNT: 1 if whole else 2,
                **({semconv.SCENARIO: scenario} if scenario else {}),
            },
        )
        chat = SpanRow(
            trace_id=trace_id,
            span_id=f"{count:08x}00000002",
            parent_span_id=root.span_id,
            name="chat model",
            kind=3,
            start_ns=start + 1,
            end_ns=start + 800,
            attributes={
                **shared,
                semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
                semconv.INPUT_MESSAGES: json.dumps(
                    [{"role": "user", "parts": [{"type": "text", "content": "What do two pears cost?"}]}]
                )[:cut],
                semconv.OUTPUT_MESSAGES: json.dumps(
                    [{"role": "assistant", "parts": [{"type": "text", "content": answer}], "finish_reason": "stop"}]
                ),
            },
        )
        writer = JournalWriter(data.spool)
        for span in (chat, root):
            writer.append(encode_record(span))
        writer.close()
        return trajectory_id

    return spool


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def score(
    data: DataDir, judge_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Runs the command as the shell would."""

    def run(*arguments: str, url: str | None = None) -> Outcome:
        base = ["--judge", "openai/stand-in", "--judge-base-url", url or judge_server.url, "--dir", str(data.root)]
        monkeypatch.setattr(sys, "argv", ["arttrace", "score", *base, *arguments])
        monkeypatch.setenv("COLUMNS", "120")
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


def test_each_group_is_one_line_that_fits_a_page(spool_run: Callable[..., str], score: Callable[..., Outcome]) -> None:
    for scenario in (
        'agent:answer {"question":"What do two pears and a plum from the market cost in [bold]"}',
        "plums",
    ):
        spool_run(scenario, "6")
        spool_run(scenario, "9")
    head, pears, plums, end = score().out.splitlines()
    assert max(map(len, (head, pears, plums))) <= 100
    assert pears.startswith('agent:answer {"question":"What do')
    assert "…  " in pears
    assert plums.split()[:2] == ["plums", "2"]
    assert end.startswith("2 of 2 groups scored now")


def test_what_a_judge_s_server_says_cannot_steer_the_terminal(
    judge_server: Any, spool_run: Callable[..., str], score: Callable[..., Outcome]
) -> None:
    for reward in ("6", "9"):
        spool_run("pears", reward)
    judge_server.script += [judge_server.fails(401, "\x1b[2Jpaid\x1b]0;title\x07 \u202edesrever")]
    failed = score()
    assert failed.code == 1
    assert "·[2Jpaid·]0;title· ·desrever" in failed.err
    assert {"\x1b", "\x07", "\u202e"}.isdisjoint(failed.err + failed.out)


def test_groups_are_scored_stored_and_never_paid_for_twice(
    data: DataDir,
    judge_server: Any,
    spool_run: Callable[..., str],
    score: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("arttrace.commands.scoring.score.BESIDE_LINES_S", 0.0)
    right, wrong = spool_run("pears", "6"), spool_run("pears", "9")
    spool_run("plums", "6")
    spool_run("plums", "6")
    spool_run("alone", "6")
    spool_run("pears", "6", whole=False)
    first = score()
    assert first.code == 0, first.err
    assert len(judge_server.requests) == 2
    assert "[2/2]" in first.err
    assert re.search(r"^1 of 2 groups, .* left$", first.err, re.MULTILINE), first.err
    [pears] = [line.split() for line in first.out.splitlines() if line.startswith("pears")]
    assert pears == ["pears", "2", "0.500", "0.500", "0.00", "1.00", "110", "price", "not", "known"]
    assert "2 of 2 groups scored now, 0 before; 1 single run left out" in first.out
    assert "1 incomplete run left out" in first.out
    with Store.open(data) as store:
        given = {run.id: [(r.value, r.source) for r in run.rewards] for run in store.trajectories(groups=["pears"])}
    assert given[right] == [(1.0, "judge")]
    assert given[wrong] == [(0.0, "judge")]

    again = score("--json")
    assert len(judge_server.requests) == 2, "nothing is asked again"
    document = json.loads(again.out)
    assert {group["group"]: sorted(group["scores"].values()) for group in document["groups"]} == {
        "pears": [0.0, 1.0],
        "plums": [1.0, 1.0],
    }
    assert (document["scored_now"], document["singletons"], document["incomplete"], document["cost"]) == (0, 1, 1, None)

    spool_run("pears", "7")
    score()
    assert len(judge_server.requests) == 3, "a group that grew is judged anew, the other is not"
    score("--rubric", "Prefer plums.")
    assert len(judge_server.requests) == 5, "another rubric is another judgement"


def test_the_scores_of_a_rubric_that_is_gone_back_to_count_again(
    data: DataDir, judge_server: Any, spool_run: Callable[..., str], score: Callable[..., Outcome]
) -> None:
    """They are paid for; the rewards were still those of the rubric in between, in silence."""
    right, wrong, taken_back = spool_run("pears", "6"), spool_run("pears", "9"), spool_run("pears", "8")
    other = json.dumps({"scores": [{"trajectory_id": id, "explanation": "no", "score": 0.3} for id in "123"]})

    def counting() -> dict[str, list[float]]:
        with Store.open(data) as store:
            return {run.id: [one.value for one in run.rewards] for run in store.trajectories()}

    assert score().code == 0
    judge_server.script = [judge_server.says(other)]
    assert score("--rubric", "Prefer plums.").code == 0
    assert counting() == {right: [0.3], wrong: [0.3], taken_back: [0.3]}
    with Store.open(data) as store:
        [run] = store.trajectories(ids=[taken_back])
        store.append([msgspec.structs.replace(run.rewards[0], counts=False, time_ns=run.rewards[0].time_ns + 1)])

    said = "1 group has its earlier scores by this judge and rubric again"
    planned = score("--dry-run")
    assert said.replace("has", "would have") in planned.out
    assert json.loads(score("--dry-run", "--json").out)["again"] == 1
    assert counting()[right] == [0.3]
    assert said in score().out
    assert counting() == {right: [1.0], wrong: [0.0], taken_back: []}
    assert said not in score().out
    assert json.loads(score("--rubric", "Prefer plums.", "--json").out)["again"] == 1
    assert counting() == {right: [0.3], wrong: [0.3], taken_back: []}
    assert len(judge_server.requests) == 2, "nothing is paid for twice"


def test_a_run_with_a_prompt_that_was_cut_is_left_out_and_counted(
    data: DataDir, judge_server: Any, spool_run: Callable[..., str], score: Callable[..., Outcome]
) -> None:
    """`OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT` of its exporter cut it: the judge would see an answer to nothing."""
    whole = {spool_run("pears", "6"), spool_run("pears", "9")}
    cut = spool_run("pears", "6", cut=40)
    spool_run("plums", "6")
    spool_run("plums", "6", cut=40)
    planned = score("--dry-run")
    assert "1 group (2 runs) would be scored" in planned.out
    assert "  2 runs left out (messages that cannot be read)" in planned.out.splitlines()
    done = score()
    assert done.code == 0, done.err
    [request] = judge_server.requests
    assert len(parse_prompt(request["messages"][1]["content"])) == 2
    shown = " ".join(done.out.split())
    assert "; 1 single run left out (nothing to compare them with); 2 runs left out (messages that cannot be" in shown
    with Store.open(data) as store:
        assert {run.id for run in store.trajectories() if run.rewards} == whole
        assert set(store.trajectory(cut).unread) == {f"no scope, chat: unreadable {semconv.INPUT_MESSAGES}"}
    assert json.loads(score("--json").out)["unread"] == 2
    assert json.loads(score("--json", "--dry-run").out)["unread"] == 2
    none = score("--group", "plums")
    assert "1 can be judged (left out: 1 messages that cannot be read)" in " ".join(none.err.split())


def test_it_goes_on_where_it_was_stopped(
    data: DataDir, judge_server: Any, spool_run: Callable[..., str], score: Callable[..., Outcome]
) -> None:
    for scenario in ("a", "b", "c"):
        spool_run(scenario, "6")
        spool_run(scenario, "9")
    refused = judge_server.fails(401, "no more")
    judge_server.script = [judge_server.good, refused, refused]
    stopped = score()
    assert stopped.code == 1
    assert "1 of 3 groups scored and stored" in stopped.err
    assert "refuses" in stopped.err
    done = score("--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["scored_now"] == 2
    assert len(judge_server.requests) == 5


def test_a_disk_that_fills_up_between_judgement_and_rewards_loses_no_reward(
    data: DataDir,
    spool_run: Callable[..., str],
    score: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = spool_run("pears", "6")
    spool_run("pears", "9")
    Store.open(data).close()
    append, appended = JournalWriter.append, 0

    def filling_up(self: JournalWriter, payload: bytes) -> None:
        nonlocal appended
        appended += 1
        if appended == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, payload)

    monkeypatch.setattr(JournalWriter, "append", filling_up)
    full = score()
    assert full.code == 1
    assert "No space left" in full.err
    again = score()
    assert again.code == 0, again.err
    with Store.open(data) as store:
        assert [reward.value for reward in store.trajectory(right).rewards][-1:] == [1.0]


def test_a_group_that_fails_is_named_and_the_others_are_stored(
    judge_server: Any, spool_run: Callable[..., str], score: Callable[..., Outcome]
) -> None:
    for scenario in ("a", "b"):
        spool_run(scenario, "6")
        spool_run(scenario, scenario)

    def only_b(request: dict[str, Any]) -> tuple[int, Any]:
        sent = request["messages"][1]["content"]
        return (judge_server.says("no") if '"a"' in sent else judge_server.good)(request)

    judge_server.script = [only_b] * 5
    outcome = score()
    assert outcome.code == 1
    assert "not scored: a:" in outcome.out
    assert "1 of 2 groups could not be scored" in outcome.err
    assert "1 of 2 groups scored now, 0 before" in " ".join(outcome.out.split())
    assert "\nb " in outcome.out
    assert "after 4 attempts); 440 tokens, price not known" in outcome.out

    judge_server.script = [only_b] * 5
    [failed] = json.loads(score("--json").out)["failed"]
    assert (failed["group"], failed["input_tokens"], failed["output_tokens"], failed["cost"]) == ("a", 400, 40, None)


def test_one_group_and_a_rubric_from_a_file(
    tmp_path: Path, judge_server: Any, spool_run: Callable[..., str], score: Callable[..., Outcome]
) -> None:
    rubric = tmp_path / "rubric.txt"
    rubric.write_text("Only pears count.")
    for scenario in ("a", "b"):
        spool_run(scenario, "6")
        spool_run(scenario, "9")
    assert score("--group", "b", "--rubric", str(rubric)).code == 0
    [request] = judge_server.requests
    assert "Only pears count." in request["messages"][0]["content"]


@pytest.mark.parametrize(
    ("scenarios", "arguments", "cause", "hint"),
    [
        (None, (), "no store in", "arttrace run"),
        (["a", "b", None], (), "nothing to compare: of 3 trajectories", "the same `scenario`"),
        (["a"], ("--group", "b"), "group 'b' has no trajectory", "arttrace ls"),
        (["a", "a"], ("--rubric", " "), "the rubric is empty", ""),
    ],
)
def test_nothing_to_score_is_shown_with_the_hint(
    spool_run: Callable[..., str],
    score: Callable[..., Outcome],
    judge_server: Any,
    scenarios: list[str | None] | None,
    arguments: tuple[str, ...],
    cause: str,
    hint: str,
) -> None:
    for scenario in scenarios or ():
        spool_run(scenario, "6")
    outcome = score(*arguments)
    assert outcome.code != 0
    assert cause in outcome.err
    assert hint in outcome.err
    assert judge_server.requests == []


def test_no_judge_there(spool_run: Callable[..., str], score: Callable[..., Outcome]) -> None:
    spool_run("a", "6")
    spool_run("a", "9")
    outcome = score(url="http://127.0.0.1:9/v1")
    assert outcome.code == 1
    assert "cannot be reached" in outcome.err
    assert "--judge-base-url" in outcome.err
    assert "Traceback" not in outcome.err


class InterruptedAtTheFirst(io.StringIO):
    """Standard error of a command that gets Ctrl-C as it says of the first group that it is scored."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if text.startswith("[1/3]"):
            signal.raise_signal(signal.SIGINT)
        return written


def test_ctrl_c_keeps_what_is_scored(
    data: DataDir,
    judge_server: Any,
    spool_run: Callable[..., str],
    score: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for scenario in ("a", "b", "c"):
        spool_run(scenario, "6")
        spool_run(scenario, "9")
    ended, waited = threading.Event(), []

    def never(request: dict[str, Any]) -> tuple[int, Any]:
        waited.append(ended.wait(60))
        return judge_server.good(request)

    judge_server.script = [judge_server.good, never, never]
    said = InterruptedAtTheFirst()
    monkeypatch.setattr(sys, "stderr", said)
    assert score().code == 130
    assert waited == [], "no answer is waited for"
    ended.set()
    shown = said.getvalue()
    assert shown.startswith("[1/3]")
    assert "1 of 3 groups scored and stored; run again to continue." in shown
    assert "Traceback" not in shown
    with Store.open(data) as store:
        assert len([run for run in store.trajectories() if run.rewards]) == 2
