"""StepTally: the sums that one step gathers over its targets while its micro-batches pass by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from arttrace.records.values.learned_tokens import Columns
from trainer.learner.distributed import gathered, largest, total
from trainer.learner.samples import TokenRow
from trainer.policies.learned_file import Fates, columns_of


@dataclass
class StepTally:
    """Sums over targets and optimizer steps, gathered while the micro-batches of one step pass by."""

    loss: float = 0.0
    grad_norm: float = 0.0
    optimizer_steps: int = 0
    forwarded_tokens: int = 0
    targets: int = 0
    ratio: float = 0.0
    clipped: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    difference: float = 0.0
    difference_max: float = 0.0
    difference_max_current: float = 0.0
    difference_current: float = 0.0
    compared: int = 0
    compared_current: int = 0
    beyond: int = 0
    far: int = 0
    checked: int = 0
    first_pass: bool = True
    _kept: list[tuple[Sequence[TokenRow], torch.Tensor, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def keep(
        self,
        rows: Sequence[TokenRow],
        logps: torch.Tensor,
        ratios: torch.Tensor,
        fates: Fates,
    ) -> None:
        """Keep what the loss used for the targets of the rows, all (M,), in the first pass over them."""
        if self.first_pass:
            ratios = ratios.clamp(max=torch.finfo(torch.float16).max)
            self._kept.append((rows, logps.detach().half(), ratios.half(), fates.flags()))

    def kept(self) -> list[Columns]:
        """What was kept, by sequence, of all ranks."""
        own = [
            one
            for rows, *values in self._kept
            for one in columns_of(((row.key, row.advantages, row.targets) for row in rows), *values)
        ]
        return [one for of_rank in gathered(own) for one in of_rank]

    def compare(
        self,
        logps: torch.Tensor,
        sampled: torch.Tensor,
        current: torch.Tensor,
        temperatures: torch.Tensor,
        bound: float = math.inf,
    ) -> None:
        """Note how far the captured log-probabilities are from the learner's, as at temperature 1, and how many of the
        current version's are beyond `bound`; only before the first optimizer step."""
        if self.optimizer_steps:
            return
        gap = (logps - sampled).abs() * temperatures
        self.compared += gap.numel()
        self.difference += float(gap.sum())
        self.difference_max = max(self.difference_max, float(gap.max()))
        if (own := gap[current]).numel():
            self.difference_max_current = max(self.difference_max_current, float(own.max()))
            self.difference_current += float(own.clamp(max=bound).sum())
            self.compared_current += own.numel()
            self.beyond += int((~(own <= bound)).sum())

    def gather(self) -> None:
        """Add up what the ranks have seen, apart from what is the same on all of them."""
        sums = ["loss", "forwarded_tokens", "beyond", "far", "targets", "ratio", "clipped", "entropy", "kl"]
        sums += ["difference", "compared"]
        added = total(torch.tensor([float(getattr(self, name)) for name in sums], dtype=torch.float64))
        for name, value in zip(sums, added.tolist(), strict=True):
            setattr(self, name, value)
        self.difference_max = float(largest(torch.tensor(self.difference_max)))
