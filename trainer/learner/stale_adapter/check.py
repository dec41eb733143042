"""Whether what a step is to be trained on was sampled by the version that it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from trainer.learner.interface import OtherWeights
from trainer.learner.samples import TokenRow
from trainer.learner.stale_adapter.share import FIRST, Share, share_gone, way_to
from trainer.learner.state import Weights

_RESTART = "The engine serves other weights than it says: restart `arttrace serve`, and train on what is sampled then."
_RESTART_PART = (
    "One of several engines serves other weights than it says: restart `arttrace serve`, or what else answers for it, "
    "and train on what is sampled then. Others of the version's runs may be from that engine."
)
_WHOLE = 0.9
"""Of a larger share it is not said which runs are left: a few may look so by chance."""


class Compared(NamedTuple):
    """Of the tokens that the current version sampled: the log-probabilities by the model as it is now, the captured
    ones, and the entropies by the model, times their temperature (nats); the run that each is of, and the answer."""

    logps: list[float]
    captured: list[float]
    entropies: list[float]
    answers: list[tuple[int, int]]


def answers_of(rows: Sequence[TokenRow], current_version: str) -> Iterator[tuple[int, int]]:
    """For each token of the rows that the current version sampled, the trajectory it is of, and which answer of the
    rows: sampled tokens without others between them."""
    answer = 0
    for row in rows:
        for is_target, version in zip(row.targets, row.versions, strict=True):
            answer += not is_target
            if version == current_version:
                yield row.trajectory, answer


class Ways:
    """Measures the ways to other versions, and remembers at which lengths it did: the next step begins there."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}  # by a version's name

    def shares_gone(
        self, compare: Callable[[], Compared], now: Weights, others: Mapping[str, Weights], *, rounded: bool
    ) -> dict[str, Share]:
        """How much of the way to each other version what was captured has gone, by their names; `compare` looks at the
        model, which has the weights `now` before and behind this."""

        def logps_at(other: Weights, times: float) -> list[float]:
            now.go_towards(other, times)
            try:
                return compare().logps
            finally:
                now.restore()

        own, captured, entropies, answers = compare()
        gone = [its - mine for its, mine in zip(captured, own, strict=True)]
        shares = {}
        for name, other in others.items():
            times = self._times.get(name, FIRST)
            way, self._times[name] = way_to(partial(logps_at, other), own, rounded=rounded, times=times)
            shares[name] = share_gone(gone, way, own, entropies, answers)
        return shares


def check_nearest(shares: Mapping[str, Share], current: str, run: Callable[[int], str] = str) -> None:
    """Raises OtherWeights when what was captured is another version's, or a part of it: `shares` are, by a version's
    name, how much of the way to it what was captured has gone; `run` gives the id of a trajectory."""
    in_part = [name for name, share in shares.items() if share.part.is_sure]
    sure = [name for name, share in shares.items() if share.is_sure]
    if in_part:
        nearest = max(in_part, key=lambda name: shares[name].part.evidence)
        part = shares[nearest].part
        if not (nearest in sure and part.share > _WHOLE):
            raise OtherWeights(
                f"The log-probabilities captured from {current} are those of {nearest} in {len(part.runs)} of "
                f"{part.looked_at} runs looked at, such as {run(part.runs[0])}: {part.share:.0%} of their tokens.",
                _RESTART_PART,
            )
    if sure:
        nearest = min(sure, key=lambda name: shares[name].left)
        raise OtherWeights(
            f"The log-probabilities captured from {current} are those of {nearest}: of the way to it they have gone "
            f"{shares[nearest].gone:.2f} (standard error {shares[nearest].error:.2g}).",
            _RESTART,
        )
