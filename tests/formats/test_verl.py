"""What verl dumps of rollouts and validations (data/make_verl.py): decoded text, in messages as far as they are
certain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reported_runs import shown
from system_files import lines, read

from arttrace.formats.imported_files import read_file
from arttrace.formats.systems.rollouts.printed_chats import prompt_of, turns_of
from arttrace.records.reward import Reward
from arttrace.records.sequence import NotTrained
from arttrace.records.span import SpanRow
from arttrace.rewards.selection import good_runs, never_trained_on
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.groups import group_trajectories

DATA = Path(__file__).parent / "data"
ROLLOUTS, VALIDATION, OLDER = (DATA / f"verl_{name}.jsonl" for name in ("rollouts", "validation", "older"))
SYSTEM, USER = "system: Be brief.\n\nUse tools.", "user: 6 x 7?\nExactly."
UNSURE = "texts of several turns, each kept as one, whose runs are not to be trained on"


def items(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def spoken(run: dict[str, Any]) -> list[tuple[list[str], str]]:
    return [(call["asked"], call["answers"][0][1]) for call in run["calls"]]


def test_rollouts_of_the_newest_version() -> None:
    found, runs = shown(ROLLOUTS.read_bytes())
    assert (found.kinds, found.refused, found.unread, found.left_out) == ({"verl rollouts": 4}, 0, {}, {UNSURE: 1})
    by_uid = {run["metadata"]["uid"]: run for run in runs}
    thought, twice, compacted, several = (
        by_uid[f"{id}"] for id in ("5d1b-a_0_0", "5d1b-a_1_0", "5d1b-a_2_1", "77c0-b_0_0")
    )
    looked = 'assistant: <think>\nI look.\n</think>\n [call_0_0 times {"a":6,"b":7}]'
    assert spoken(thought) == [
        ([SYSTEM, USER], looked), ([SYSTEM, USER, looked, "tool: [call_0_0 42]"], "assistant: 42")
    ]  # fmt: skip
    both = 'assistant: [call_0_0 times {"a":6,"b":7}] [call_0_1 times {"a":1,"b":2}]'
    assert spoken(twice) == [
        ([SYSTEM, USER], both),
        ([SYSTEM, USER, both, "tool: [call_0_0 42]", "tool: [call_0_1 2]"], "assistant: It is 42."),
    ]
    assert all(call["offered"] == ["times"] for run in (thought, twice) for call in run["calls"])
    assert [(tool[0], tool[2], tool[4]) for tool in twice["tools"]] == [
        ("call_0_0", "times", "42"), ("call_0_1", "times", "2")
    ]  # fmt: skip
    assert spoken(compacted) == [([SYSTEM, USER], "assistant: I go on."), ([USER], "assistant: 42")]
    assert [len(call["asked"]) for call in several["calls"]] == [1]
    assert several["tags"] == ("not-trainable",)
    assert {run["metadata"]["uid"]: [reward[:2] for reward in run["rewards"]] for run in runs} == {
        "5d1b-a_0_0": [("reward", 1.0)], "5d1b-a_1_0": [("reward", 0.0)], "5d1b-a_2_1": [("reward", 0.5)],
        "77c0-b_0_0": [("reward", 1.0)],
    }  # fmt: skip
    assert thought["metadata"] == {"step": 3, "uid": "5d1b-a_0_0", "ground_truth": "42"}
    assert (thought["result"], [run.get("incomplete") for run in runs]) == ("42", [None] * 4)


def test_sessions_of_a_prompt_are_a_group() -> None:
    _, runs = read(ROLLOUTS.read_bytes())
    assert sorted((group.key, len(group.trajectories)) for group in group_trajectories(runs)) == [
        ("5d1b-a", 3), ("77c0-b", 1)
    ]  # fmt: skip
    assert len({run.scenario for run in runs if run.group == "5d1b-a"}) == 1


def test_equal_prompts_of_a_step_are_a_group_where_no_session_is_named() -> None:
    first, *_ = rows = items(OLDER)[:2]
    later = [{**first, "step": 8}, {**first, "gts": "43"}, {**first, "reward": 1.0}]
    _, runs = read(lines(*rows, *later))
    assert sorted(len(group.trajectories) for group in group_trajectories(runs)) == [1, 1, 1, 2]
    assert len({run.scenario for run in runs}) == 2


def test_rollouts_of_older_versions() -> None:
    found, runs = shown(OLDER.read_bytes())
    assert found.kinds == {"verl rollouts": 7}
    assert found.left_out == {UNSURE: 2}
    said = [(spoken(run), run.get("tags")) for run in runs]
    called = 'assistant: [call_0_0 times {"a":6}]'
    assert sorted(said, key=str) == sorted(
        [
            ([([SYSTEM, USER], "assistant: 42")], None),
            ([([SYSTEM, USER], "assistant: 42")], None),
            ([([SYSTEM, USER], "assistant: 41\nuser\nNo.\nassistant\n42")], ("not-trainable",)),
            (
                [
                    ([SYSTEM, USER], called),
                    ([SYSTEM, USER, called, "tool: [call_0_0 42]"], "assistant: 42"),
                ],
                None,
            ),
            ([([USER], "assistant: 42")], None),
            (
                [(
                    ["user: system\n\nBe brief.\n\nUse tools.user\n\n6 x 7?\nExactly.assistant\n\n"],
                    "assistant: 42",
                )],
                ("not-trainable",),
            ),
            ([(["user: 6 x 7 ="], "assistant:  42")], None),
        ],
        key=str,
    )  # fmt: skip


def test_validations_are_held_out() -> None:
    for path in (VALIDATION, None):
        data = path.read_bytes() if path else lines({**items(OLDER)[0], "step": 0})
        _, runs = read(data)
        assert [run.tags for run in runs] == [("held-out",)] * len(runs)
        assert all(never_trained_on(run) for run in runs)
    _, runs = shown(VALIDATION.read_bytes())
    assert sorted(run["metadata"]["acc"] for run in runs) == [False, True]


def test_what_cannot_be_taken_apart_is_never_imitated() -> None:
    records = read_file(OLDER.read_bytes(), "file").records
    rewards = [one for one in records if isinstance(one, Reward)]
    runs = build_trajectories([one for one in records if isinstance(one, SpanRow)], rewards)
    chosen = good_runs(group_trajectories(runs), min_reward=0.0)
    assert len(chosen.runs) == 5
    assert chosen.left_out == {NotTrained.NOT_TRAINABLE: 2}


def test_a_session_that_lacks_an_output_is_incomplete() -> None:
    first, second = (one for one in items(ROLLOUTS) if one["uid"].startswith("5d1b-a_2"))
    for rows in ([second], [first, "{", items(ROLLOUTS)[-1]]):
        data = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in rows).encode()
        _, runs = shown(data)
        [run] = (run for run in runs if run["metadata"]["uid"].startswith("5d1b-a_2"))
        assert run["incomplete"] == "interrupted: 1 line of the session missing"


def test_a_line_that_cannot_be_read_costs_itself() -> None:
    good = json.dumps(items(OLDER)[0]).encode()
    found, runs = shown(b"\n".join([good[:40], good]))
    assert (found.refused, len(runs)) == (1, 1)
    assert found.reasons[0].startswith("line 1: ")


@pytest.mark.parametrize("score", ["good", None, [1.0]])
def test_a_score_that_is_no_number_is_no_reward(score: Any) -> None:
    found, [run] = shown(lines({**items(OLDER)[0], "score": score}))
    assert "rewards" not in run
    assert found.left_out == ({} if score is None else {"rewards that are no numbers": 1})


def test_results_behind_the_last_answer_are_counted() -> None:
    item = items(ROLLOUTS)[0]
    cut = {**item, "output": item["output"].partition("\n</tool_response>")[0]}
    found, [run] = shown(lines(cut))
    assert found.left_out == {"messages behind the last answer": 1}
    assert len(run["calls"]) == 1


@pytest.mark.parametrize(
    "output",
    [
        "<tool_call>\n{\"name\": \"times\"\n</tool_call>\nuser\n<tool_response>\nno\n</tool_response>\nassistant\n42",
        "<tool_call>\n{\"name\": \"times\", \"arguments\": {}}\n</tool_call>\nuser\n<tool_response>\n1\n"
        "</tool_response>\n<tool_response>\n2\n</tool_response>\nassistant\n42",
    ],
)  # fmt: skip
def test_a_call_that_has_not_its_own_result_stays_text(output: str) -> None:
    found, [run] = shown(lines({**items(ROLLOUTS)[0], "output": output}))
    assert found.left_out == {}
    (_, first), (asked, last) = spoken(run)
    assert first.startswith("assistant: <tool_call>")
    assert [one.partition(":")[0] for one in asked] == ["system", "user", "assistant", "user"]
    assert (last, "tools" in run) == ("assistant: 42", False)


@pytest.mark.parametrize(
    ("prompt", "begun"),
    [("user\nQ\nassistant\n<think>\n", "<think>\n"), ("user\nQ\nassistant\n<think>\n\n</think>\n\n", "")],
)
def test_thoughts_that_the_template_began_are_the_answers(prompt: str, begun: str) -> None:
    read = prompt_of(prompt)
    assert [message["content"] for message in read.messages] == ["Q"]
    [answer] = turns_of("So.\n</think>\n\n42", read).messages
    assert answer["content"] == f"{begun}So.\n</think>\n\n42"


@pytest.mark.parametrize(
    "text",
    [
        "user\nQ\nassistant\nA\nuser\nQ\nassistant\n", "system\nS\nsystem\nuser\nQ\nassistant\n",
        "Q\nassistant\n", "S\nuser\nQ\nassistant\n", "system\nS\nassistant\n", "user\nuser\nassistant\n",
    ],
)  # fmt: skip
def test_a_prompt_whose_roles_have_several_lines_stays_one_text(text: str) -> None:
    prompt = prompt_of(text)
    assert ([message["content"] for message in prompt.messages], prompt.are_certain) == ([text], False)


@pytest.mark.parametrize(
    "output",
    [
        "4\nuser\nAre you sure? I think it is",
        "4\ntool\n5",
        "4\nsystem\nStop.",
        "user\nNo.",
        "4\nuser",
        "4\nassistant\n5",
        "Hm.\nuser\n<tool_response>\n5\n</tool_response>\nassistant\n5\nuser\nNo.",
    ],
)
@pytest.mark.parametrize("asks", ["assistant", "model"])
def test_a_line_of_another_role_in_an_answer_is_not_certain_to_be_the_models(output: str, asks: str) -> None:
    """What a user or an environment said is not imitated."""
    turns = turns_of(output, prompt_of(f"user\n2 + 2?\n{asks}\n"))
    assert turns.messages == [{"role": "assistant", "content": output}]
    assert not turns.are_certain


def test_a_role_that_is_named_in_a_line_or_in_a_result_is_no_turn() -> None:
    prompt = prompt_of("user\n2 + 2?\nassistant\n")
    assert turns_of("The user asks.\nuser: 4\n tool\nusers", prompt).are_certain
    inside = "Hm.\nuser\n<tool_response>\nroot\nuser\nsystem\n</tool_response>\nassistant\n5"
    turns = turns_of(inside, prompt)
    assert ([message["role"] for message in turns.messages], turns.are_certain) == (
        ["assistant", "user", "assistant"], True
    )  # fmt: skip


def test_a_line_of_a_role_is_not_certain_behind_a_prompt_of_no_template_either() -> None:
    assert not turns_of("4\nuser\nAre you sure?", prompt_of("2 + 2 =")).are_certain


def test_a_text_of_half_markers_is_read_once() -> None:
    piece = "user\n<tool_response>\n<tool_call>\n# Tools\n\n<tools>\nassistant\nuser\n"
    for prompt in (f"user\n{piece * 20_000}\nassistant\n", "user\nQ\nassistant\n"):
        for output in (piece * 20_000, "user\n<tool_response>\n" * 50_000, "<tool_call>\n" * 50_000):
            assert turns_of(output, prompt_of(prompt)).messages
