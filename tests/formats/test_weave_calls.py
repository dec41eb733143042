"""Calls as W&B Weave exports them: recorded with weave 0.54.0 around the real clients, see data/make_weave.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from system_files import lines, read

from arttrace.commands import cli
from arttrace.formats.evaluations import rewards_of
from arttrace.formats.imported_files import read_file
from arttrace.formats.sdks.tolerant import normalised
from arttrace.records.call import Call
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories

DATA = Path(__file__).parent / "data"
CALLS: list[dict[str, Any]] = [json.loads(line) for line in (DATA / "weave.jsonl").read_text().splitlines()]
AGENTS = {"claude-streamed": "claude streamed", "plainly": "plain"}
"""Names that Weave changes, or that the function has in it alone."""


def runs(name: str) -> dict[str, list[Trajectory]]:
    """The runs of a file, by the name of their root, in order of start."""
    records = read_file((DATA / f"{name}.jsonl").read_bytes(), name).records
    rewards = [one for one in records if isinstance(one, Reward)]
    found = build_trajectories([normalised(one) for one in records if isinstance(one, SpanRow)], rewards)
    by_name: dict[str, list[Trajectory]] = {}
    for run in sorted(found, key=lambda run: run.start_ns):
        by_name.setdefault(AGENTS.get(run.agents[0].name, run.agents[0].name), []).append(run)
    return by_name


def of_trace(name: str, calls: list[dict[str, Any]] = CALLS) -> list[dict[str, Any]]:
    """The calls of the first trace whose root is the op of this name."""
    root = next(call for call in calls if f"/op/{name}:" in call["op_name"] and call["parent_id"] is None)
    return [call for call in calls if call["trace_id"] == root["trace_id"]]


def facts(call: Call) -> dict[str, Any]:
    """What a model was asked and answered, as far as Weave can know it."""
    return {
        "models": (call.request_model.removeprefix("openai/"), call.response_model),  # a name that litellm was given
        "messages": call.messages,
        "tools": call.tools,
        "answers": [
            (one.message, one.finish_reason, one.token_ids, one.logprobs, one.prompt_token_ids) for one in call.choices
        ],
        "prompt": call.prompt_token_ids and list(call.prompt_token_ids),
        "sampling": (call.temperature, call.altered_sampling),
        "usage": (call.input_tokens, call.output_tokens),
        "response": call.response_id,
        "failed": call.error is not None,
        "interrupted": call.interrupted,
    }


IMPORTED, CAPTURED = runs("weave"), runs("weave_captured")
LACKING = {("streamer", 2): (), ("claude streamed", 0): ("gen_ai.output.messages",)}
"""What cannot be read of two calls: a stream that the program left after its first chunk, which Weave keeps up to there
(all of it had arrived), and one of Anthropic's, of which Weave keeps no tool calls and no thinking."""


def test_every_call_that_weave_recorded_is_read_or_named() -> None:
    found, _ = read((DATA / "weave.jsonl").read_bytes())
    assert (found.kinds, found.refused) == ({"weave calls": 66}, 0)
    assert found.unread == {"weave-export, chat: unreadable gen_ai.output.messages": 1}
    assert found.left_out == {"feedback without a clear number": 1, "scores without a clear number": 4}


@pytest.mark.parametrize("agent", sorted(set(CAPTURED) - {"predict"}))
def test_a_run_is_the_one_that_was_captured_beside(agent: str) -> None:
    for imported, captured in zip(IMPORTED[agent], CAPTURED[agent], strict=True):
        for at, (theirs, ours) in enumerate(zip(imported.calls, captured.calls, strict=True)):
            if (agent, at) in LACKING:
                assert theirs.call.messages == ours.call.messages
                assert theirs.call.unreadable == LACKING[agent, at]
                assert theirs.call.interrupted == (None if LACKING[agent, at] else "closed")
            else:
                assert facts(theirs.call) == facts(ours.call), (agent, at)
        assert tree(imported) == tree(captured)
        if agent not in {of for of, _ in LACKING}:
            assert tools(imported) == tools(captured)
        assert (imported.error is None) == (captured.error is None)
        assert imported.incomplete == ""


def tree(run: Trajectory) -> list[tuple[str, str | None, int]]:
    """Its agents, each with the agent above it and the number of its calls."""
    names = {agent.id: AGENTS.get(agent.name, agent.name) for agent in run.agents}
    calls = [placed.agent_id for placed in run.calls]
    return sorted((names[one.id], names.get(one.parent_id or ""), calls.count(one.id)) for one in run.agents)


def tools(run: Trajectory) -> list[tuple[str, str, str, str | None, bool]]:
    """Its tool calls, without the ids that are made up where an API has none."""
    ids = {part.id for one in run.calls for choice in one.call.choices for part in choice.message.tool_calls}
    return [
        (one.name, one.id if one.id in ids else "", one.arguments, one.result, one.inferred) for one in run.tool_calls
    ]


def test_errors_say_what_was_raised() -> None:
    """Each retry of a program is a call of its own."""
    [run] = IMPORTED["retrier"]
    assert [placed.call.error for placed in run.calls] == ["InternalServerError: Error code: 500 - engine died", None]
    [run] = IMPORTED["fallen"]
    assert run.error == run.calls[0].call.error == "RateLimitError: Error code: 429 - slow down"


def spans(data: bytes) -> dict[str, SpanRow]:
    return {one.span_id: one for one in read_file(data, "x").records if isinstance(one, SpanRow)}


WRITTEN: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "list": lambda calls: json.dumps(calls).encode(),
    "answer of /calls/query": lambda calls: json.dumps({"calls": calls}).encode(),
    "newest first": lambda calls: lines(*calls[::-1]),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_however_the_calls_are_written_they_are_the_same(form: str) -> None:
    assert spans(WRITTEN[form](CALLS)) == spans(lines(*CALLS))


def test_what_the_client_gives_may_be_written_as_text() -> None:
    """`json.dumps(call.to_dict(), default=str)` writes objects of the clients as Python does."""
    text = (DATA / "weave_get_calls.jsonl").read_bytes()
    assert b"ObjectRecord({" in text
    given, all_of_them = spans(text), spans(lines(*CALLS))
    assert given == {id: all_of_them[id] for id in given}
    assert len(given) == 20


def test_times_may_be_written_as_python_does() -> None:
    calls = [{**call, "started_at": call["started_at"].replace("T", " ").replace("Z", "+00:00")} for call in CALLS]
    assert spans(lines(*calls)) == spans(lines(*CALLS))


@pytest.mark.parametrize(
    "text", ["ObjectRecord(", "ObjectRecord({'a': open('x')})", "ObjectRecord({**{}})", "ObjectRecord({1: 2j})"]
)
def test_a_text_that_is_no_object_of_weaves_stays_a_text(text: str) -> None:
    first, *rest = of_trace("researcher")
    _, [run] = read(lines({**first, "output": text}, *rest))
    assert run.result == text


def test_a_thread_is_a_conversation_and_its_attributes_are_metadata() -> None:
    first, second = IMPORTED["chatter"]
    assert [run.metadata["customer"] for run in (first, second)] == ["ada", "ada"]
    talk = {one.attributes.get("gen_ai.conversation.id") for one in spans(lines(*of_trace("chatter"))).values()}
    assert talk == {"talk-1"}


def test_feedback_is_rewards_and_notes() -> None:
    [run] = IMPORTED["researcher"]
    assert [(one.name, one.value, one.agent_id) for one in run.rewards] == [
        ("reaction", 1.0, None),
        ("correctness", 0.5, None),
    ]
    assert [one.explanation for one in run.notes] == ["well done"]


def with_feedback(kind: str, payload: Any) -> tuple[list[tuple[str, float]], dict[str, int]]:
    [call, *_] = of_trace("retrier")
    given = {"id": "f", "feedback_type": kind, "payload": payload, "created_at": "2026-01-01T00:00:00Z"}
    found = read_file(lines({**call, "summary": {"weave": {"feedback": [given]}}}), "x")
    return [(one.name, one.value) for one in found.records if isinstance(one, Reward)], found.left_out


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        ("wandb.reaction.1", {"emoji": "\N{THUMBS DOWN SIGN}"}, [("reaction", 0.0)]),
        ("wandb.reaction.1", {"emoji": "\N{PARTY POPPER}"}, []),
        ("wandb.annotation.quality", {"value": 4}, [("quality", 4.0)]),
        ("wandb.annotation.quality", {"value": "good"}, []),
        ("wandb.runnable.judge", {"output": {"ok": True, "why": "so"}}, [("judge.ok", 1.0)]),
        ("wandb.runnable.judge", {"output": 0.25}, [("judge", 0.25)]),
        ("wandb.runnable.judge", {"output": {"passed": True, "metadata": {"score": 3}}}, [("judge", 1.0)]),
        ("mine", {"a": 1, "b": {"value": False}}, [("mine.a", 1.0)]),
        ("mine", {"a": 1, "b": 2}, []),
        ("mine", None, []),
        ("mine", {"value": float("inf")}, []),
    ],
)
def test_feedback_with_a_number_is_a_reward(kind: str, payload: Any, expected: list[tuple[str, float]]) -> None:
    found, left_out = with_feedback(kind, payload)
    assert found == expected
    assert left_out == ({} if expected else {"feedback without a clear number": 1})


def test_what_was_given_beside_a_reward_is_kept() -> None:
    [call, *_] = of_trace("retrier")
    given = {"id": "f", "feedback_type": "wandb.runnable.j", "payload": {"output": {"passed": False, "why": "so"}}}
    found = read_file(lines({**call, "summary": {"weave": {"feedback": [given]}}}), "x")
    assert [one.explanation for one in found.records if isinstance(one, Reward)] == ['{"passed":false,"why":"so"}']


def scored(given: Any) -> tuple[list[tuple[str, float]], dict[str, int], Any]:
    """The rewards of an example of whose answer the scorer `s` said this, what was left out, and the metadata."""
    call = next(call for call in CALLS if "Evaluation.predict_and_score:" in call["op_name"])
    found, [run] = read(lines({**call, "summary": {}, "output": {"output": "x", "scores": {"s": given}}}))
    rewards = [(one.name, one.value) for one in found.records if isinstance(one, Reward)]
    return rewards, found.left_out, run.metadata["scores"]


@pytest.mark.parametrize(
    ("better", "worse", "name"),
    [
        (True, False, "s"),
        (0.5, 0.25, "s"),
        (
            {"passed": True, "metadata": {"predictions": {"Race/Origin": 0, "Religion": 0}, "threshold": 0.5}},
            {"passed": False, "metadata": {"predictions": {"Race/Origin": 3, "Religion": 3}, "threshold": 0.5}},
            "s",
        ),
        ({"passed": True, "score": 0.1}, {"passed": False, "score": 0.9}, "s"),
        (
            {"similarity_score": 0.9, "is_similar": True},
            {"similarity_score": 0.5, "is_similar": False},
            "s.similarity_score",
        ),
        (
            {"summarization_eval_score": 1.0, "is_entity_dense": True, "entity_density": 0.1},
            {"summarization_eval_score": 0.0, "is_entity_dense": True, "entity_density": 0.4},
            "s.summarization_eval_score",
        ),
        ({"json_valid": True}, {"json_valid": False}, "s.json_valid"),
        ({"correct": True, "length": 3}, {"correct": False, "length": 900}, "s"),
    ],
)  # fmt: skip
def test_the_better_answer_of_an_evaluation_has_the_higher_reward(better: Any, worse: Any, name: str) -> None:
    (first, *_), (second, *_) = scored(better), scored(worse)
    assert [of for of, _ in (*first, *second)] == [name, name]
    assert first[0][1] > second[0][1]


@pytest.mark.parametrize(
    "given",
    [{"levenshtein_distance": 3}, {"has_hallucination": True, "conclusion": "x"}, {"length": 1, "right": 1}, "good"],
)
def test_a_score_that_is_no_clear_number_is_no_reward_and_stays_in_the_runs_metadata(given: Any) -> None:
    assert scored(given) == ([], {"scores without a clear number": 1}, {"s": given})


def test_each_example_of_an_evaluation_is_a_run() -> None:
    """In a group with the other trials of its example, with what the scorers said, here no one number, as metadata; the
    judges are not in it."""
    found = IMPORTED["predict"]
    assert len(found) == len(CAPTURED["predict"]) == 4
    assert len({run.scenario for run in found}) == 2
    for imported in found:
        assert imported.metadata["scores"] == {"rate": {"length": 0.25, "right": True}}
        assert (imported.incomplete, len(imported.calls), imported.tool_calls) == ("", 1, ())
    ours = [[facts(placed.call) for placed in run.calls] for run in CAPTURED["predict"]]
    assert sorted(map(repr, ours)) == sorted(repr([facts(placed.call) for placed in run.calls]) for run in found)


def evaluated(name: str) -> list[dict[str, Any]]:
    """The calls of one example whose scorer asks a model."""
    all_of_them = json.loads(json.dumps(CALLS))
    example = next(call for call in all_of_them if "Evaluation.predict_and_score:" in call["op_name"])
    calls = [example]
    for call in all_of_them:  # in order of start: what is above comes first
        if call["parent_id"] in {one["id"] for one in calls}:
            calls.append(call)
    judge = next(call for call in calls if "/op/rate:" in call["op_name"])
    asks = next(call for call in calls if "openai.chat" in call["op_name"])
    usage = {"usage": asks["summary"]["usage"], "status_counts": {"success": 2, "error": 0}}
    judge["summary"] = {**judge["summary"], **usage}
    return [*calls, {**asks, "id": name, "parent_id": judge["id"]}]


def test_a_judge_that_asks_a_model_is_a_run_of_its_own() -> None:
    _, found = read(lines(*evaluated("judges-call")))
    assert sorted((run.agents[0].name, len(run.calls)) for run in found) == [("predict", 1), ("rate", 1)]


@pytest.mark.parametrize(
    "other",
    [
        "weave:///team/agents/object/listB:bbb/index/0",
        "weave:///team/agents/object/listA:bbb/index/0",
        "weave:///team/agents/object/listA:aaa/attr/rows/index/0",
        {"question": "x"},
    ],
    ids=str,
)
def test_examples_of_two_lists_are_two_tasks(other: Any) -> None:
    first = next(call for call in CALLS if "/op/Evaluation.predict_and_score:" in call["op_name"])
    references = [
        "weave:///team/agents/object/listA:aaa/index/0",
        other,
        "weave:///team/agents/object/listA:aaa/index/0",
    ]
    calls = [{**first, "id": f"c{at}", "inputs": {"example": one}} for at, one in enumerate(references)]
    _, found = read(lines(*calls))
    assert sorted(Counter(run.scenario for run in found).values()) == [1, 2]


def incomplete(calls: list[dict[str, Any]]) -> list[tuple[str, str]]:
    _, found = read(lines(*calls))
    return sorted((run.agents[0].name, run.incomplete) for run in found)


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        ("openai.chat.completions.create", "1 of 5 spans missing"),
        ("rate", "1 of 5 spans missing"),
        ("Evaluation.summarize", ""),
        ("Evaluation.evaluate", ""),
    ],
)
def test_an_example_that_lacks_calls_is_incomplete(without: str, reason: str) -> None:
    calls = [call for call in of_trace("Evaluation.evaluate") if f"/op/{without}:" not in call["op_name"]]
    assert incomplete(calls) == [("predict", reason)] * 4


def test_an_example_of_which_there_is_no_more_is_incomplete() -> None:
    call = next(call for call in CALLS if "/op/Evaluation.predict_and_score:" in call["op_name"])
    assert incomplete([call]) == [("predict", "4 of 5 spans missing")]
    call = {**call, "summary": {"status_counts": {"success": 1e300}}}
    assert incomplete([call]) == [("predict", "the number of its spans is unreadable")]


def test_an_example_is_complete_whose_judge_asked_a_model_and_each_says_what_it_lacks() -> None:
    calls = [json.loads(line) for line in (DATA / "weave_logged.jsonl").read_text().splitlines()]
    assert incomplete(calls) == [("careful", "")] * 2 + [("judged", "")] * 2
    asked = {call["id"] for call in calls if "/op/judged:" in call["op_name"]}
    of_judges = [call for call in calls if call["parent_id"] in asked]
    lacks = "1 of 2 spans missing"
    assert (
        incomplete([call for call in calls if call not in of_judges]) == [("careful", "")] * 2 + [("judged", lacks)] * 2
    )
    others = [call for call in calls if "openai" not in call["op_name"] or call in of_judges]
    assert incomplete(others) == [("careful", "1 of 5 spans missing")] * 2 + [("judged", "")] * 2


def test_a_run_that_evaluates_is_complete_without_what_the_runs_below_it_did() -> None:
    calls = json.loads(json.dumps(of_trace("Evaluation.evaluate")))
    root = next(call for call in calls if call["parent_id"] is None)
    main = {
        **root,
        "id": "main",
        "op_name": "weave:///team/agents/op/main:x",
        "output": 1,
        "inputs": {},
        "attributes": {},
    }
    main["summary"] = {**root["summary"], "status_counts": {"success": 23, "error": 0}}
    root["parent_id"] = "main"
    assert incomplete([main, *calls]) == [("main", "")] + [("predict", "")] * 4
    one_more = {**main, "summary": {**main["summary"], "status_counts": {"success": 24, "error": 0}}}
    assert incomplete([one_more, *calls])[0] == ("main", "1 of 4 spans missing")


def test_an_evaluation_that_a_program_logs_is_read_as_one_that_weave_runs() -> None:
    """Of `EvaluationLogger`, whose scorers do not say that they are of an evaluation."""
    found, runs = read((DATA / "weave_logged.jsonl").read_bytes())
    assert (found.kinds, found.unread, found.left_out) == ({"weave calls": 14}, {}, {})
    assert sorted((run.agents[0].name, [placed.call.request_model for placed in run.calls]) for run in runs) == [
        ("careful", ["gpt-4o"]),
        ("careful", ["gpt-4o"]),
        ("judged", ["judge"]),
        ("judged", ["judge"]),
    ]
    rewards = [(one.name, one.value) for one in found.records if isinstance(one, Reward)]
    assert sorted(rewards) == [("judged", 1.0)] * 2 + [("length", 0.25)] * 2
    assert not any(run.incomplete or run.tool_calls for run in runs)


def test_feedback_on_a_part_of_an_example_is_of_its_run() -> None:
    calls = evaluated("judges-call")
    sub = next(call for call in calls if "/op/sub:" in call["op_name"])
    mine = [{"id": "f1", "feedback_type": "mine", "payload": {"value": 1}}, *sub["summary"]["weave"]["feedback"]]
    sub["summary"]["weave"]["feedback"] = [
        *mine,
        {"id": "f2", "feedback_type": "wandb.note.1", "payload": {"note": "x"}},
    ]
    found = read_file(lines(*calls), "x")
    [reward] = [one for record in found.records if isinstance(record, SpanRow) for one in rewards_of(record)]
    assert (reward.id, reward.name, reward.value) == ("f1", "mine", 1.0)
    assert found.left_out == {"notes on parts of evaluations": 1, "scores without a clear number": 1}


def test_a_part_that_is_named_as_a_reward_of_ours_is_a_part(tmp_path: Path) -> None:
    """A display name is the user's, and the part's feedback is on its span, as a reward that we sent is on one."""
    calls = json.loads(json.dumps(of_trace("Evaluation.evaluate")))
    for call in calls:
        if "/op/predict:" in call["op_name"] or "/op/sub:" in call["op_name"]:
            given = {"id": call["id"], "feedback_type": "mine", "payload": {"value": 1}}
            call |= {"display_name": "evaluate it", "summary": {**call["summary"], "weave": {"feedback": [given]}}}
    found = read_file(lines(*calls), "x")
    assert found.spans == len(calls) == 22
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(found.records)
        seen = [(one.agents[0].name, one.incomplete, len(one.calls), len(one.rewards)) for one in store.trajectories()]
        assert seen == [("predict", "", 1, 2)] * 4
        in_sql = store.sql(
            "SELECT t.calls, count(*) FROM trajectories t JOIN rewards r ON r.trajectory_id = t.id GROUP BY ALL"
        )
        assert in_sql[1] == [(1, 8)]


def test_ops_that_say_no_kind() -> None:
    """One around a call is a step; one below which is none is a tool, which is told by what was asked for."""
    [run] = IMPORTED["plain"]
    assert [agent.name for agent in run.agents] == ["plainly"]
    assert [(one.name, one.id, one.result, one.inferred) for one in run.tool_calls] == [
        ("look", "call_a", None, True),
        ("add", "call_b", "3", False),
    ]


def test_token_ids_that_a_server_gave_are_read() -> None:
    [run] = IMPORTED["plain"]
    [choice] = run.calls[0].call.choices
    assert (choice.token_ids, len(choice.logprobs or ())) == ((688, 80, 259, 354, 339, 441), 6)


def test_the_log_probabilities_of_a_stream_are_not_its_last_ones() -> None:
    calls = json.loads(json.dumps(of_trace("streamer")))
    last = {"content": [{"token": "x", "logprob": -1.0}]}
    calls[1]["output"]["choices"][0] |= {"logprobs": last, "token_ids": [1]}
    found, [run] = read(lines(*calls))
    assert run.calls[0].call.choices[0].logprobs is None
    assert found.left_out == {"log-probabilities of streamed answers, of which Weave keeps the last": 1}


@pytest.mark.parametrize("arguments", ["", '"q": "x"}'])
def test_a_streamed_tool_call_of_which_weave_lost_the_beginning_is_cut(arguments: str) -> None:
    """It leaves out the arguments that come with a call's name, as some servers send them."""
    calls = json.loads(json.dumps(of_trace("streamer")))
    [choice] = calls[2]["output"]["choices"]
    choice["message"]["tool_calls"][0]["function"]["arguments"] = arguments
    found, [run] = read(lines(*calls))
    assert [placed.call.truncated for placed in run.calls] == [False, True, False]
    assert run.calls[1].call.unreadable == ("gen_ai.output.messages",)
    assert found.left_out == {"tool calls of streamed answers of which Weave lost the beginning": 1}


def test_langchains_calls_are_read_once() -> None:
    """Its model's call and the one that its client made of it are both recorded, each under a kind of its own."""
    found, [run] = read((DATA / "weave_langchain.jsonl").read_bytes())
    assert (found.kinds, found.unread, found.left_out, run.incomplete) == ({"weave calls": 11}, {}, {}, "")
    first, second = (placed.call for placed in run.calls)
    assert [part.name for part in first.choices[0].message.tool_calls] == ["look", "add"]
    assert [message.role for message in second.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert second.choices[0].message.text == "x is 3."
    assert [(one.name, one.id, one.result, one.inferred) for one in run.tool_calls] == [
        ("look", "call_look", "page x", False),
        ("add", "call_add", "3", False),
    ]
    assert [agent.name for agent in run.agents] == ["LangGraph"]


def test_a_wrapper_of_kind_llm_is_no_second_call() -> None:
    calls = json.loads(json.dumps(of_trace("plainly")))
    for call in calls:
        if "/op/ask:" in call["op_name"]:
            call["attributes"]["weave"]["kind"] = "llm"
    _, [run] = read(lines(*calls))
    assert len(run.calls) == 2


@pytest.mark.parametrize(
    ("content", "left_out"),
    [
        ("weave:///team/agents/object/prompt:abc/attr/content", "references to what Weave keeps elsewhere"),
        ("weave-trace-internal:///cHJvamVjdA==/object/prompt:abc", "references to what Weave keeps elsewhere"),
        (
            [{"type": "image_url", "image_url": {"url": {"_type": "CustomWeaveType", "files": {"content": "abc"}}}}],
            "files that Weave keeps apart",
        ),
    ],
    ids=["ref", "internal ref", "file"],
)
def test_a_prompt_that_is_not_in_the_file_is_no_prompt(content: Any, left_out: str) -> None:
    first, call, *rest = json.loads(json.dumps(of_trace("researcher")))
    call["inputs"]["messages"][0]["content"] = content
    found, [run] = read(lines(first, call, *rest))
    asked = run.calls[0].call
    assert (asked.truncated, asked.unreadable) == (True, ("gen_ai.input.messages",))
    assert found.left_out == {left_out: 1, "feedback without a clear number": 1}
    assert sum(found.unread.values()) == 1


def test_what_was_too_large_for_weave_is_named() -> None:
    first, call, *rest = json.loads(json.dumps(of_trace("researcher")))
    found, _ = read(lines(first, {**call, "inputs": {"_weave": {"error": "<EXCEEDS_LIMITS>"}}}, *rest))
    assert found.left_out == {"values that were too large for Weave": 1, "feedback without a clear number": 1}
    assert sum(found.unread.values()) == 1


def test_a_call_that_goes_on_is_in_progress() -> None:
    first, call, *_ = json.loads(json.dumps(of_trace("researcher")))
    open_call = {**call, "ended_at": None, "output": None, "summary": {"weave": {"status": "running"}}}
    open_run = {**first, "ended_at": None, "output": None, "summary": {"weave": {"status": "running"}}}
    _, [run] = read(lines(open_run, open_call))
    assert run.incomplete == "call in progress; run in progress"
    assert [message.role for message in run.calls[0].call.messages] == ["system", "user"]


def test_calls_that_were_deleted_are_left_out() -> None:
    first, *rest = json.loads(json.dumps(of_trace("retrier")))
    gone = {**rest[0], "deleted_at": "2026-01-01T00:00:00Z"}
    found, [run] = read(lines(first, gone, *rest[1:]))
    assert found.left_out == {"deleted calls": 1}
    assert run.incomplete == "1 of 3 spans missing"


def test_a_run_of_which_only_the_root_was_exported_waits_for_the_rest(tmp_path: Path) -> None:
    """The page of traces shows roots alone, and exports what it shows."""
    first, *rest = of_trace("researcher")
    data = DataDir(tmp_path / "d")
    seen = []
    for calls in ([first], rest):
        (tmp_path / "x.jsonl").write_bytes(lines(*calls))
        done = CliRunner().invoke(cli, ["import", str(tmp_path / "x.jsonl"), "--dir", str(data.root)])
        assert done.exit_code == 0, done.output
        with Store.open(data) as store:
            seen.append([(one.incomplete, one.calls) for one in store.summaries()])
    assert seen == [[("4 of 5 spans missing", 0)], [("", 2)]]


def test_spans_that_weave_received_over_otlp_come_back() -> None:
    """It keeps their attributes in nested form, and their JSON as values."""
    span = {
        "gen_ai": {
            "operation": {"name": "chat"},
            "request": {"model": "m", "temperature": 1.0},
            "input": {"messages": [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]},
            "output": {"messages": [{"role": "assistant", "parts": [{"type": "text", "content": "yo"}]}]},
            "response": {"finish_reasons": ["stop"]},
        }
    }
    tool = {"gen_ai": {"operation": {"name": "execute_tool"}, "tool": {"name": "f", "call": {"arguments": {"a": {}}}}}}
    ids: dict[str, Any] = {
        "project_id": "p",
        "trace_id": "ab" * 16,
        "inputs": {},
        "output": {},
        "summary": {},
        "exception": None,
    }
    times = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}
    calls = [
        {**ids, **times, "id": "01" * 8, "parent_id": None, "op_name": "run"},
        {**ids, **times, "id": "02" * 8, "parent_id": "01" * 8, "op_name": "chat m"},
        {**ids, **times, "id": "03" * 8, "parent_id": "01" * 8, "op_name": "execute_tool f"},
    ]
    sent = [{"gen_ai": {"operation": {"name": "invoke_agent"}, "agent": {"name": "a"}}}, span, tool]
    for call, attributes in zip(calls, sent, strict=True):
        call["attributes"] = {"otel_span": {"name": call["op_name"], "attributes": attributes}}
    _, [run] = read(lines(*calls))
    assert ([agent.name for agent in run.agents], run.incomplete) == (["a"], "")
    [placed] = run.calls
    assert ([one.text for one in placed.call.messages], placed.call.choices[0].message.text) == (["hi"], "yo")
    assert (placed.call.span_id, placed.call.choices[0].finish_reason) == ("02" * 8, "stop")
    assert [(one.name, one.arguments) for one in run.tool_calls] == [("f", '{"a":{}}')]
