"""What training leaves out, and what to do about it, in lines: the same for every method, before a step and in a plan.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from arttrace.records.sequence import NotTrained
from arttrace.records.values.units import quantity

REMEDIES = {
    NotTrained.NO_REWARD: "Score them with `arttrace score`, or reward them in code with arttrace.reward(value). "
    "What a function returns is no reward.",
    NotTrained.REWARD_TOO_LARGE: "Give rewards of ordinary size, such as 0 to 1, and run the agent again.",
    NotTrained.ALONE: "Run each scenario several times: GRPO compares runs of the same task.",
    NotTrained.OTHER_WEIGHTS: "Restart `arttrace serve`, and run the agent again. What was beyond "
    "--max-logprob-difference is looked at again once that is larger.",
    NotTrained.NOT_MADE_HERE: "Train with the --dir in which that version was made, or run the agent again under a "
    "version of this one.",
    NotTrained.TOO_STALE: "Run the agent again under the newest version, or raise --max-staleness.",
    NotTrained.HELD_OUT: "Held-out runs only measure the policy: run the agent without the tag `held-out`.",
    NotTrained.NOT_TRAINABLE: "Run the agent that is to learn without the tag `not-trainable`.",
    NotTrained.INCOMPLETE: "`arttrace ls` names incomplete runs: killed or still going. Run the agent again.",
}
"""What to do about trajectories that were left out, by the reason; what comes first is shown first."""
_NO_TOKENS = """The sampled token ids and log-probabilities are needed: let the agent call the gateway of \
`arttrace serve`, which asks the engine for them, and have them captured (ARTTRACE_CAPTURE_CONTENT=full)."""
_SAMPLED_OTHERWISE = """What is trained on is sampled as the policy gives it, at a temperature of 0.1 to 2: leave \
top_p, top_k, penalties, JSON formats and forced tools out of the agent's requests, or have `arttrace serve --sampling \
policy` leave them out."""
_OF_TOKENS: Mapping[str, str] = {
    NotTrained.OTHER_POLICY: "What is trained on was sampled by the policy itself: train the policy that `arttrace ls` "
    "names, or serve this one (`arttrace serve --policy NAME`) and run the agent again.",
    NotTrained.NOT_AT_TEMPERATURE_1: _SAMPLED_OTHERWISE,
    NotTrained.ALTERED_SAMPLING: _SAMPLED_OTHERWISE,
    NotTrained.MASKED: "What was redacted or masked is not what the model saw: capture with "
    "ARTTRACE_CAPTURE_CONTENT=full, and a mask that leaves the policy's own calls as they are.",
    NotTrained.MEDIA: "The learner is given text alone: leave images, sound and video out of the agent's prompts.",
    NotTrained.ERROR: "Calls of these runs failed: `arttrace show ID` says with what.",
}
"""What to do about calls of which no token is trained, by the reason."""
_LASTING = (NotTrained.OTHER_WEIGHTS, NotTrained.NOT_MADE_HERE)
"""Reasons that no more runs and no reward ends, and that are no agent's fault: the remedy is said with them."""

Reasons = Mapping[str, int] | Mapping[NotTrained, int]
"""The number left out, by reason."""


def left_out_lines(
    trajectories: Reasons,
    *,
    conversations: Reasons | None = None,
    calls: Reasons | None = None,
    reasoning_dropped: int = 0,
) -> Iterator[str]:
    """A line for each reason, by what it counts: trajectories and conversations that are left out, answers that are
    learned without their reasoning, and calls whose tokens are not trained."""
    for count, reason in _counted(trajectories):
        remedy = f": {REMEDIES[NotTrained(reason)]}" if reason in _LASTING else ""
        yield f"left out: {quantity(count, 'trajectory')} ({reason}){remedy}"
    for count, reason in _counted(conversations or {}):
        yield f"left out: {quantity(count, 'conversation')} ({reason})"
    if reasoning_dropped:
        yield f"left out: {NotTrained.REASONING_DROPPED}, of {quantity(reasoning_dropped, 'answer')}"
    for count, reason in _counted(calls or {}):
        yield f"quarantined: {quantity(count, 'call')} ({reason})"


def in_words(trajectories: Mapping[NotTrained, int]) -> tuple[str, str]:
    """All that was left out, by reason, and what to do about it; those first for which there is a remedy."""
    known = [reason for reason in REMEDIES if reason in trajectories]
    others = sorted(reason for reason in trajectories if reason not in REMEDIES)
    counts = ", ".join(f"{trajectories[reason]} {reason}" for reason in (*known, *others))
    return counts, " ".join(REMEDIES[reason] for reason in known)


def calls_in_words(calls: Reasons) -> tuple[str, str]:
    """The calls of which no token is trained, by reason, and what to do about it; of none, what all of them need."""
    counts = ", ".join(f"{quantity(count, 'call')}: {why}" for why, count in sorted(calls.items())) or "no call"
    return counts, " ".join(dict.fromkeys(_OF_TOKENS.get(why, _NO_TOKENS) for why in sorted(calls))) or _NO_TOKENS


def lasting_lines(trajectories: Reasons, told: set[str]) -> Iterator[str]:
    """A line for each reason that lasts and is not among `told`, which takes it."""
    new = {reason: count for reason, count in trajectories.items() if reason in _LASTING and reason not in told}
    told.update(new)
    return left_out_lines(new)


def _counted(reasons: Reasons) -> Iterator[tuple[int, str]]:
    for reason, count in sorted(reasons.items()):
        yield count, str(reason)
