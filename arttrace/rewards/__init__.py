"""Rewards: numbers from the user's code, and scores that a judge model gives (RULER)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from arttrace.rewards.combine import trajectory_reward

if TYPE_CHECKING:
    from arttrace.rewards.judge import ruler, ruler_score_group, score_groups
    from arttrace.rewards.judge_answer import TrajectoryScore
    from arttrace.rewards.judge_prompt import DEFAULT_RUBRIC
    from arttrace.rewards.judgements import judgement_key, rewards_from, to_store

__all__ = [
    "DEFAULT_RUBRIC",
    "TrajectoryScore",
    "judgement_key",
    "rewards_from",
    "ruler",
    "ruler_score_group",
    "score_groups",
    "to_store",
    "trajectory_reward",
]

_OF_THE_JUDGE = {
    "DEFAULT_RUBRIC": "judge_prompt",
    "TrajectoryScore": "judge_answer",
    "judgement_key": "judgements",
    "rewards_from": "judgements",
    "ruler": "judge",
    "ruler_score_group": "judge",
    "score_groups": "judge",
    "to_store": "judgements",
}
"""The module of each name that is loaded on first use: whoever reads rewards does not pay for what asks a judge."""

if not TYPE_CHECKING:  # to a type checker each name that is not imported above is an error

    def __getattr__(name: str) -> Any:
        if name not in _OF_THE_JUDGE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_OF_THE_JUDGE[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
