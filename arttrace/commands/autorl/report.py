"""The report of an AutoRL run, in Markdown. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from arttrace.commands.autorl.state import HeldOutScores, State
from arttrace.records.values.units import quantity


def summary(comparisons: Sequence[HeldOutScores]) -> str:
    """One line: the scores on held-out scenarios before and after, and how often each was better."""
    both = [(one.before, one.after) for one in comparisons if one.before is not None and one.after is not None]
    if not both:
        return "held out: nothing to compare"
    before, after = (statistics.fmean(scores) for scores in zip(*both, strict=True))
    better, worse = sum(b < a for b, a in both), sum(a < b for b, a in both)
    return (
        f"held out, {quantity(len(both), 'scenario')}: mean score {before:.3f} before, {after:.3f} after; "
        f"{better} better, {worse} worse, {len(both) - better - worse} equal"
    )


def markdown(state: State, note: str = "") -> str:
    """The whole report.

    Args:
        state: The state of the run.
        note: A remark for the reader, such as that the judge was a stand-in.
    """
    plan = state.plan
    lines = [f"# {plan.policy}", "", *([f"**{note}**", ""] if note else [])]
    lines += [
        f"Task: {plan.task}",
        "",
        f"Base model {plan.base_model}; scenarios by {plan.writer}, judged by {plan.judge}.",
    ]
    lines += [f"{quantity(len(state.scenarios), 'scenario')}, {plan.held_out} of them held out from training.", ""]
    lines += [f"**{summary(state.comparisons)}**", "", "| step | version | runs | mean score within groups |"]
    lines += ["|---|---|---|---|"]
    for step in state.steps:
        mean = "-" if step.mean_reward is None else f"{step.mean_reward:.3f}"
        lines.append(f"| {step.number} | {step.version or 'nothing to learn'} | {step.runs or '-'} | {mean} |")
    lines += [
        "",
        "The judge compares the runs of one group with each other: means of different steps are not one scale.",
    ]
    if state.comparisons:
        lines += ["", "| held-out scenario | before | after | the judge on the run after |", "|---|---|---|---|"]
        lines += [
            f"| {_cell(one.task)} | {_score(one.before)} | {_score(one.after)} | {_cell(one.explanation)} |"
            for one in state.comparisons
        ]
    return "\n".join(lines) + "\n"


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cell(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return line if len(line) <= 200 else f"{line[:200]}..."
