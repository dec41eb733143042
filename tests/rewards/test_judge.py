"""The judge through the real litellm and real HTTP; only the model behind it is a stand-in."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest

from arttrace.loop import History
from arttrace.records.group import Group
from arttrace.records.reward import Judgement
from arttrace.records.trajectory import Trajectory
from arttrace.rewards import judge, judgement_key, rewards_from, ruler, ruler_score_group, score_groups
from arttrace.rewards.judge_errors import JudgeUnavailable, judge_error
from arttrace.rewards.judge_prompt import parse_prompt
from arttrace.system.errors import JudgeError, StoreError

MODEL = "openai/stand-in"
TRUTH = {"run-a": 1.0, "run-b": 0.0, "run-c": 0.0}


def score(server: Any, group: Group, **options: Any) -> Judgement | None:
    return asyncio.run(ruler_score_group(group, MODEL, {"api_base": server.url}, **options))


def test_a_good_answer(judge_server: Any, group: Group) -> None:
    judgement = score(judge_server, group)
    assert judgement is not None
    assert judgement.scores == TRUTH
    assert judgement.explanations["run-b"] == "it says 9"
    assert (judgement.input_tokens, judgement.output_tokens) == (100, 10)
    assert judgement.cost is None, "nobody knows the price of a judge of one's own"
    assert (judgement.group, judgement.judge) == ("pears", MODEL)
    assert judgement.key == judgement_key(group, MODEL)
    [request] = judge_server.requests
    assert request["model"] == "stand-in"
    assert request["response_format"]["json_schema"]["strict"] is True
    rewards = rewards_from(judgement)
    assert {(r.trajectory_id, r.value, r.source, r.name) for r in rewards} == {
        (id, value, "judge", "ruler") for id, value in TRUTH.items()
    }
    assert {reward.judgement_id for reward in rewards} == {judgement.id}


def test_the_key_names_judge_rubric_and_runs_in_any_order(group: Group) -> None:
    def with_runs(runs: tuple[Trajectory, ...]) -> Group:
        return msgspec.structs.replace(group, trajectories=runs)

    runs = group.trajectories
    key = judgement_key(group, MODEL)
    assert judgement_key(with_runs(runs[::-1]), MODEL) == key
    later = msgspec.structs.replace(runs[0], revision="later")
    others = (
        judgement_key(group, "openai/o3"),
        judgement_key(group, MODEL, "be kind"),
        judgement_key(with_runs(runs[:2]), MODEL),
        judgement_key(with_runs((later, *runs[1:])), MODEL),
    )
    assert len({key, *others}) == 5


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"unread": {"no scope, chat: unreadable gen_ai.input.messages": 1}}, "messages that cannot be read"),
        ({"incomplete": "2 of 3 spans arrived"}, "incomplete"),
    ],
)
def test_a_run_that_is_not_all_there_is_not_shown_to_the_judge(
    judge_server: Any, group: Group, caplog: pytest.LogCaptureFixture, fault: dict[str, Any], reason: str
) -> None:
    """What of it came would be judged as if it were all."""
    first, *whole = group.trajectories
    torn = msgspec.structs.replace(group, trajectories=(msgspec.structs.replace(first, **fault), *whole))
    judgement = score(judge_server, torn)
    assert judgement is not None
    assert judgement.scores == {"run-b": 0.0, "run-c": 0.0}
    assert judgement.key == judgement_key(torn, MODEL)
    assert judgement.key == judgement_key(Group(group.key, tuple(whole)), MODEL), "whoever leaves it out pays once"
    [request] = judge_server.requests
    assert len(parse_prompt(request["messages"][1]["content"])) == 2
    assert f"group 'pears': 1 of 3 runs are not judged: 1 x {reason}" in caplog.text

    none = tuple(msgspec.structs.replace(one, **fault) for one in group.trajectories)
    with pytest.raises(JudgeError, match=f"no run that can be judged: 3 x {reason}"):
        score(judge_server, Group(group.key, none))
    assert len(judge_server.requests) == 1


def test_scores_are_matched_by_id_whatever_their_order(judge_server: Any, group: Group) -> None:
    def backwards(request: dict[str, Any]) -> tuple[int, Any]:
        scores = {"scores": judge_server.scores(request)[::-1]}
        return judge_server.says(json.dumps(scores))(request)

    judge_server.script = [backwards]
    judgement = score(judge_server, group)
    assert judgement is not None
    assert judgement.scores == TRUTH


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("I would rather not.", "no JSON"),
        (None, "no JSON"),
        ('{"scores": [{"trajectory_id": "1", "explanation": "", "score": 1}]}', "scored 1 of 3"),
        (json.dumps({"scores": [{"trajectory_id": str(n), "score": n} for n in (1, 2, 3)]}), "outside 0..1"),
    ],
)
def test_an_unusable_answer_is_reported_to_the_judge_and_asked_for_again(
    judge_server: Any, group: Group, content: str | None, cause: str
) -> None:
    judge_server.script = [judge_server.says(content)]
    judgement = score(judge_server, group)
    assert judgement is not None
    assert judgement.scores == TRUTH
    assert cause in judge_server.requests[1]["messages"][-1]["content"]
    assert judgement.input_tokens == 200, "an unusable answer is paid for as well"


def test_answers_that_stay_unusable_are_an_error_after_a_bounded_number_of_attempts(
    judge_server: Any, group: Group
) -> None:
    judge_server.script = [judge_server.says("no")] * 10
    with pytest.raises(JudgeError, match=r"cannot be used: it holds no JSON.*after 4 attempts"):
        score(judge_server, group)
    assert len(judge_server.requests) == 4


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failure_that_passes_is_waited_for(judge_server: Any, group: Group, status: int) -> None:
    judge_server.script = [judge_server.fails(status, "too busy")] * 2
    judgement = score(judge_server, group)
    assert judgement is not None
    assert judgement.scores == TRUTH
    assert len(judge_server.requests) == 3


def test_a_failure_that_stays_is_an_error(judge_server: Any, group: Group) -> None:
    judge_server.script = [judge_server.fails(500, "out of order")] * 10
    with pytest.raises(JudgeError, match="out of order") as caught:
        score(judge_server, group)
    assert not isinstance(caught.value, JudgeUnavailable)
    assert len(judge_server.requests) == 4


def test_a_judge_that_refuses_structured_output_is_asked_without(judge_server: Any, make_run: Any) -> None:
    refuse = judge_server.fails(400, "response_format json_schema is not supported")

    def strict(request: dict[str, Any]) -> tuple[int, Any]:
        return refuse(request) if "response_format" in request else judge_server.good(request)

    judge_server.script = [strict, strict, strict]
    groups = [Group(key, (make_run(f"{key}1", "6"), make_run(f"{key}2", "9"))) for key in "xy"]
    judged = asyncio.run(score_groups(groups, MODEL, {"api_base": judge_server.url}, max_concurrency=1))
    assert [list(one.scores.values()) for one in judged if isinstance(one, Judgement)] == [[1.0, 0.0], [1.0, 0.0]]
    with_format = [request for request in judge_server.requests if "response_format" in request]
    assert len(with_format) == 1, "the refusal is remembered"


def test_a_bad_request_that_is_not_about_structured_output_is_reported(judge_server: Any, group: Group) -> None:
    judge_server.script = [judge_server.fails(400, "temperature must be 1")] * 10
    with pytest.raises(JudgeError, match="temperature must be 1"):
        score(judge_server, group)
    assert len(judge_server.requests) == 2


def test_a_group_longer_than_the_judge_reads_is_cut(judge_server: Any, make_run: Any) -> None:
    too_long = judge_server.fails(
        400,
        "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens.",
        code="context_length_exceeded",
    )
    judge_server.script = [too_long]
    group = Group("long", (make_run("a", "6", "word " * 4000), make_run("b", "9", "other " * 4000)))
    judgement = score(judge_server, group)
    assert judgement is not None
    assert judgement.scores == {"a": 1.0, "b": 0.0}
    first, second = (len(request["messages"][1]["content"]) for request in judge_server.requests)
    assert second < first * 0.51


def test_a_group_many_times_longer_than_the_judge_reads_is_cut_to_that(judge_server: Any, make_run: Any) -> None:
    """As of vLLM with a model that litellm does not know, which names its limit."""
    said = (
        "This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    )
    too_long = judge_server.fails(400, said)

    def small(request: dict[str, Any]) -> tuple[int, Any]:
        asked = sum(len(message["content"]) for message in request["messages"])
        return too_long(request) if asked > 8192 * 3 else judge_server.good(request)

    judge_server.script = [small] * 8
    group = Group("long", (make_run("a", "6", "word " * 60_000), make_run("b", "9", "other " * 60_000)))
    judgement = score(judge_server, group)
    assert judgement is not None
    assert judgement.scores == {"a": 1.0, "b": 0.0}
    assert len(judge_server.requests) == 2
    left = sum(len(message["content"]) for message in judge_server.requests[-1]["messages"])
    assert 8192 * 2 < left <= 8192 * 3, "as much as it reads, but for room for its answer"


def test_no_judge_there(group: Group) -> None:
    params = {"api_base": "http://127.0.0.1:9/v1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arttrace.rewards.judge_calls.BACKOFF_S", 0.01)
        with pytest.raises(
            JudgeUnavailable, match=r"openai/stand-in at http://127.0.0.1:9/v1 cannot be reached"
        ) as caught:
            asyncio.run(ruler_score_group(group, MODEL, params))
    assert "--judge" in (caught.value.hint or "")


def test_a_missing_key_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch, group: Group) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(JudgeUnavailable, match="needs a key") as caught:
        asyncio.run(ruler_score_group(group, "openai/o3"))
    assert "OPENAI_API_KEY" in (caught.value.hint or "")


def test_a_missing_key_as_an_older_openai_client_names_it() -> None:
    """litellm gives it on as a server's error."""
    error = RuntimeError(
        "OpenAIException - The api_key client option must be set either by passing api_key to the client"
    )
    assert isinstance(judge_error(error, "openai/o3", {}), JudgeUnavailable)


def test_a_model_without_a_provider(group: Group) -> None:
    with pytest.raises(JudgeUnavailable, match="is not known") as caught:
        asyncio.run(ruler_score_group(group, "nonsense"))
    assert "openai/o3" in (caught.value.hint or "")


def test_a_model_of_a_server_of_ones_own_without_a_provider(judge_server: Any, group: Group) -> None:
    with pytest.raises(JudgeUnavailable, match="names no provider") as caught:
        asyncio.run(ruler_score_group(group, "my-judge", {"api_base": judge_server.url}))
    assert "openai/my-judge" in (caught.value.hint or "")
    assert judge_server.requests == []


def test_keys_never_show(
    judge_server: Any, group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "hush-hush-hush")
    key = "very-secret-key"
    judge_server.script = [judge_server.fails(401, f"Incorrect API key {key}, sk-12345678abc or hush-hush-hush")]
    caplog.set_level(logging.DEBUG, logger="arttrace")
    with pytest.raises(JudgeUnavailable, match="refuses") as caught:
        asyncio.run(ruler_score_group(group, MODEL, {"api_base": judge_server.url, "api_key": key}))
    assert judge_server.keys == [f"Bearer {key}"]
    shown = str(caught.value) + caplog.text + "".join(capfd.readouterr())
    for secret in (key, "sk-12345678abc", "hush-hush-hush"):
        assert secret not in shown


def test_swallowed_errors_are_logged(judge_server: Any, group: Group, caplog: pytest.LogCaptureFixture) -> None:
    judge_server.script = [judge_server.says("no")] * 10
    assert score(judge_server, group, swallow_exceptions=True) is None
    assert "cannot be used" in caplog.text


def test_identical_runs_are_sent_once_and_score_equal(judge_server: Any, make_run: Any) -> None:
    group = Group("twins", tuple(make_run(str(n), "6" if n % 2 else "9") for n in range(8)))
    judgement = score(judge_server, group)
    assert judgement is not None
    assert judgement.scores == {str(n): float(n % 2) for n in range(8)}
    assert judge_server.requests[0]["messages"][1]["content"].count("<trajectory id=") == 2


def test_a_single_run_is_scored_with_a_warning(
    judge_server: Any, make_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    judgement = score(judge_server, Group("alone", (make_run("a", "6"),)))
    assert judgement is not None
    assert judgement.scores == {"a": 1.0}
    assert "compares nothing" in caplog.text


def test_an_empty_group_is_an_error(judge_server: Any) -> None:
    with pytest.raises(JudgeError, match="no trajectory"):
        score(judge_server, Group("none", ()))
    assert judge_server.requests == []


def test_debug_prints_the_explanations(judge_server: Any, group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    score(judge_server, group, debug=True)
    assert "run-a  1.000  it says 6" in capsys.readouterr().err


def groups_of(make_run: Any, count: int) -> list[Group]:
    return [Group(f"g{n}", (make_run(f"{n}a", "6"), make_run(f"{n}b", "9"))) for n in range(count)]


def test_groups_are_judged_side_by_side_within_the_bound(judge_server: Any, make_run: Any) -> None:
    running, most, lock, both = 0, 0, threading.Lock(), threading.Barrier(2, timeout=60)

    def slow(request: dict[str, Any]) -> tuple[int, Any]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait()
        with lock:
            running -= 1
        return judge_server.good(request)

    judge_server.script = [slow] * 6
    groups = groups_of(make_run, 6)
    seen: list[str] = []
    judged = asyncio.run(
        score_groups(
            groups,
            MODEL,
            {"api_base": judge_server.url},
            max_concurrency=2,
            on_judged=lambda group, judgement: seen.append(judgement.group),
        )
    )
    assert [one.group for one in judged if isinstance(one, Judgement)] == [group.key for group in groups]
    assert sorted(seen) == [group.key for group in groups]
    assert most == 2


def test_one_group_that_fails_costs_no_other(judge_server: Any, make_run: Any) -> None:
    judge_server.script = [judge_server.says("no")] * 4
    groups = groups_of(make_run, 3)
    judged = asyncio.run(score_groups(groups, MODEL, {"api_base": judge_server.url}, max_concurrency=1))
    assert [type(one) for one in judged] == [JudgeError, Judgement, Judgement]


def test_a_judge_that_is_gone_ends_the_round_and_keeps_what_was_judged(judge_server: Any, make_run: Any) -> None:
    judge_server.script = [judge_server.good, judge_server.fails(401, "no")]
    stored: list[Judgement] = []
    with pytest.raises(JudgeUnavailable):
        asyncio.run(
            score_groups(
                groups_of(make_run, 9),
                MODEL,
                {"api_base": judge_server.url},
                max_concurrency=1,
                on_judged=lambda group, judgement: stored.append(judgement),
            )
        )
    assert [judgement.group for judgement in stored] == ["g0"]
    assert len(judge_server.requests) == 2


def test_an_answer_under_way_when_the_judge_is_gone_is_kept(
    judge_server: Any, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, scored = threading.Event(), judge._score_group

    async def noticed(*given: Any) -> Judgement | None:
        try:
            return await scored(*given)
        except JudgeUnavailable:
            gone.set()
            raise

    def late(request: dict[str, Any]) -> tuple[int, Any]:
        gone.wait(60)
        return judge_server.good(request)

    monkeypatch.setattr(judge, "_score_group", noticed)
    judge_server.script = [late, judge_server.fails(401, "no more")]
    stored: list[Judgement] = []
    with pytest.raises(JudgeUnavailable):
        asyncio.run(
            score_groups(
                groups_of(make_run, 4),
                MODEL,
                {"api_base": judge_server.url},
                max_concurrency=2,
                on_judged=lambda group, judgement: stored.append(judgement),
            )
        )
    assert len(stored) == 1
    assert len(judge_server.requests) == 2, "no further group is sent"


def test_an_answer_under_way_when_a_group_cannot_be_loaded_is_kept(judge_server: Any, make_run: Any) -> None:
    gone = threading.Event()

    def late(request: dict[str, Any]) -> tuple[int, Any]:
        gone.wait(60)
        return judge_server.good(request)

    def broken() -> Group:
        gone.set()
        raise StoreError("the store cannot be read")

    judge_server.script = [late]
    groups = groups_of(make_run, 3)
    loaded = [lambda: groups[0], broken, lambda: groups[2]]
    stored: list[str] = []
    with pytest.raises(StoreError, match="cannot be read"):
        asyncio.run(
            judge.score_loaded(
                loaded,
                judge.Judge(MODEL, {"api_base": judge_server.url}),
                judge.DEFAULT_RUBRIC,
                votes=1,
                max_concurrency=2,
                on_judged=lambda group, judgement: stored.append(group.key),
            )
        )
    assert stored == ["g0"], "it is paid for"
    assert len(judge_server.requests) == 1, "no further group is sent"


def test_an_error_of_the_store_comes_out_as_it_is(judge_server: Any, make_run: Any) -> None:
    def full(group: Group, judgement: Judgement) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        asyncio.run(score_groups(groups_of(make_run, 2), MODEL, {"api_base": judge_server.url}, on_judged=full))


def test_plain_conversations_are_scored_in_their_order(judge_server: Any) -> None:
    from openai.types.chat import ChatCompletionMessage

    def by_last_message(request: dict[str, Any]) -> tuple[int, Any]:
        runs = parse_prompt(request["messages"][1]["content"])
        last = {id: run["agents"][0]["histories"][0]["messages"][-1]["content"] for id, run in runs.items()}
        scores = [{"trajectory_id": id, "explanation": "e", "score": int(said) / 10} for id, said in last.items()]
        return judge_server.says(json.dumps({"scores": scores}))(request)

    judge_server.script = [by_last_message]
    question = {"role": "user", "content": "How many?"}
    conversations = [
        [question, {"role": "assistant", "content": "3"}],
        [question, ChatCompletionMessage(role="assistant", content="7")],
        [question, {"role": "assistant", "content": "3", "tool_calls": None}],
    ]
    tool = {"type": "function", "function": {"name": "count"}}
    scores = asyncio.run(ruler(conversations, MODEL, {"api_base": judge_server.url}, tools=[tool]))
    assert [(one.trajectory_id, one.score) for one in scores] == [("1", 0.3), ("2", 0.7), ("3", 0.3)]
    sent = judge_server.requests[0]["messages"][1]["content"]
    assert sent.count("How many?") == 1
    assert sent.count("<trajectory id=") == 2, "nulls of the client's objects make no difference"
    assert '"name": "count"' in sent
    with pytest.raises(JudgeError, match="no conversation"):
        asyncio.run(ruler([], MODEL))
    with pytest.raises(TypeError, match="not int"):
        asyncio.run(ruler([[3]], MODEL))  # type: ignore[list-item]


def test_conversations_of_trajectories_without_tools_are_scored(judge_server: Any) -> None:
    """Whose `tools` are None, as those of ART's are."""
    trajectories = [History([{"role": "user", "content": f"{number} x 2?"}]) for number in range(2)]
    conversations = [one.messages() for one in trajectories]
    scores = asyncio.run(ruler(conversations, MODEL, {"api_base": judge_server.url}, tools=trajectories[0].tools))
    assert [one.trajectory_id for one in scores] == ["1", "2"]


def test_litellm_is_loaded_only_when_a_judge_is_asked() -> None:
    code = "import sys, arttrace.rewards; sys.exit('litellm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
