"""Of the rewards that were given, those that count: the last under an id, and of judges' scores the last of a name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from arttrace.records.record import encode_record
from arttrace.records.reward import JUDGE, Reward


def latest(rewards: Iterable[Reward]) -> tuple[Reward, ...]:
    """One reward per id, the later one, in order of time."""
    found: dict[str, Reward] = {}
    for reward in rewards:
        newest = found.get(reward.id)
        if newest is None or _age(reward) > _age(newest):
            found[reward.id] = reward
    return tuple(sorted(found.values(), key=lambda reward: (reward.time_ns, reward.id)))


def counting(given: Sequence[Reward]) -> tuple[Reward, ...]:
    """Without notes and what was taken back; of the scores of one name that judges gave the whole run the latest."""
    those = [one for one in given if one.counts]
    judged = {one.name: one.id for one in those if _judged(one)}
    return tuple(one for one in those if not _judged(one) or judged[one.name] == one.id)


def _judged(reward: Reward) -> bool:
    return reward.source == JUDGE and reward.agent_id is None


def _age(reward: Reward) -> tuple[Any, ...]:
    return (reward.time_ns, reward.value, reward.name, reward.explanation, encode_record(reward))
