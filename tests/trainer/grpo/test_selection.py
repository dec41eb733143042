"""What a step compares, chosen from summaries: the same groups, runs and reasons as from the built trajectories."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_agent import Run, message

from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.store.rows.summary import summarise
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.groups import group_trajectories
from trainer.grpo.batch import make_batch
from trainer.grpo.selection import choose

VALUES = st.sampled_from([0.0, 0.5, 1.0])


@st.composite
def runs(draw: st.DrawFn) -> tuple[str, list[Record]]:
    """A run of a few calls: of a scenario or of none, whole or cut, held out or not, by any versions, rewarded in any
    way."""
    id = f"run-{draw(st.integers(0, 99))}"
    scenario = draw(st.sampled_from(["a", "b", "c", None]))
    run = Run(id, scenario=scenario)
    for number, version in enumerate(draw(st.lists(st.integers(0, 4), max_size=3))):
        policy = draw(st.sampled_from(["policy", "policy", "other"]))
        said = message("assistant", f"answer {number}")
        run.chat(f"m{number}", [message("user", str(number))], said, at=1 + number, policy=f"{policy}@{version}")
    records: list[Record] = list(run.end(TAGS=draw(st.sampled_from([None, ["exam"], ["held-out"]]))))
    if draw(st.integers(0, 4)) == 0:
        records = records[:-1]  # its root never came
    for number, value in enumerate(draw(st.lists(VALUES, max_size=2))):
        source = draw(st.sampled_from(["code", "judge"]))
        agent = draw(st.sampled_from([None, None, "an agent"]))
        judgement = draw(st.sampled_from([None, "one", "two"]))
        records.append(
            Reward(f"{id}-{number}", id, value, source=source, agent_id=agent, time_ns=number, judgement_id=judgement)
        )
    return id, records


def built(found: list[tuple[str, list[Record]]]) -> list[Trajectory]:
    records = [record for _, run in found for record in run]
    rewards = [record for record in records if isinstance(record, Reward)]
    return build_trajectories([one for one in records if not isinstance(one, Reward)], rewards)  # type: ignore[misc]


def assert_same_choice(trajectories: list[Trajectory], step: int, max_staleness: int | None) -> None:
    groups = group_trajectories(trajectories)
    whole = make_batch(groups, policy="policy", step=step, max_staleness=max_staleness)
    choice = choose(map(summarise, trajectories), policy="policy", step=step, max_staleness=max_staleness)
    assert [id for group in choice.groups for id in group.counted] == [one.trajectory_id for one in whole.consumed]
    assert [reward for group in choice.groups for reward in group.rewards] == [*chain.from_iterable(whole.rewards)]
    no_tokens = whole.left_out.pop("no trainable tokens", 0)
    assert choice.left_out == whole.left_out

    taken = {group.key for group in choice.groups}
    only = [group for group in groups if group.key in taken]
    assert [tuple(one.id for one in group.trajectories) for group in only] == [group.ids for group in choice.groups]
    batch = make_batch(only, policy="policy", step=step, max_staleness=max_staleness)
    assert (batch.samples, batch.consumed, batch.rewards) == (whole.samples, whole.consumed, whole.rewards)
    assert (batch.captured_tokens, batch.quarantined) == (whole.captured_tokens, whole.quarantined)
    assert batch.left_out.get("no trainable tokens", 0) == no_tokens


@settings(max_examples=60, deadline=None)
@given(
    found=st.lists(runs(), max_size=8, unique_by=lambda run: run[0]),
    step=st.integers(0, 4),
    max_staleness=st.none() | st.integers(0, 2),
)
def test_a_choice_from_summaries_is_that_from_the_trajectories(
    found: list[tuple[str, list[Record]]], step: int, max_staleness: int | None
) -> None:
    assert_same_choice(built(found), step, max_staleness)


def test_a_choice_from_the_summaries_that_a_store_kept(tmp_path: Path) -> None:
    def run(id: str, scenario: str, version: int, value: float | None) -> list[Record]:
        made = Run(id, scenario=scenario)
        made.chat("m", [message("user", "?")], message("assistant", id), at=1, policy=f"policy@{version}")
        rewards = [] if value is None else [Reward(id=f"r-{id}", trajectory_id=id, value=value)]
        return [*made.end(), *rewards]

    given = [("a", 3, 0.0), ("a", 3, 1.0), ("a", 3, None), ("a", 1, 0.5), ("b", 3, 1.0), ("c", 3, 1.0), ("c", 3, 1.0)]
    with Store.open(DataDir(tmp_path), create=True) as store:
        for number, (scenario, version, value) in enumerate(given):
            store.append(run(f"{scenario}-{number}", scenario, version, value))
        choice = choose(store.summaries(unconsumed_by="policy"), policy="policy", step=3, max_staleness=1)
        assert [(group.key, group.counted) for group in choice.groups] == [("a", ("a-0", "a-1")), ("c", ("c-5", "c-6"))]
        assert choice.left_out == {"no reward": 1, "too stale": 1, "alone in its group": 1}
        assert_same_choice(store.trajectories(), step=3, max_staleness=1)
        store.append([Reward(id="late", trajectory_id="a-2", value=0.2)])
        again = choose(store.summaries(unconsumed_by="policy"), policy="policy", step=3, max_staleness=1)
        assert again.groups[0].counted == ("a-0", "a-1", "a-2")
