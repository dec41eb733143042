"""What the demo must remember across a kill, beyond what the store and the checkpoints hold: one small JSON file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from arttrace.system.errors import ArttraceError
from arttrace.system.files import replace_file
from arttrace.system.private_files import make_directory


class Success(msgspec.Struct, frozen=True):
    """Held-out success by ground truth: `right` of `asked` scenarios, and the seconds it took to ask them."""

    right: int
    asked: int
    seconds: float

    @property
    def rate(self) -> float:
        """Share of right answers, 0..1."""
        return self.right / self.asked if self.asked else 0.0


class DemoState(msgspec.Struct):
    """Settings that a resumed run must share, and the evaluations done so far.

    `held_out` maps an evaluation ("policy@0 sampled", "policy@40 greedy", ...) to its result. `skipped` counts rounds
    of rollouts that taught nothing, since all rewards within each group were equal.
    """

    seed: int
    base_model: str
    judge: str
    held_out: dict[str, Success] = {}
    skipped: int = 0

    def save(self, path: Path) -> None:
        """Replace the file as a whole: it is never half-written."""
        make_directory(path.parent)
        replace_file(path, msgspec.json.format(msgspec.json.encode(self)))


def load_state(path: Path, wanted: DemoState) -> tuple[DemoState, bool]:
    """The state to go on with and whether it was there before.

    Raises ArttraceError when the directory belongs to a demo with other settings.
    """
    if not path.exists():
        return wanted, False
    found = msgspec.json.decode(path.read_bytes(), type=DemoState)
    for setting in ("seed", "base_model", "judge"):
        if getattr(found, setting) != getattr(wanted, setting):
            raise ArttraceError(
                f"{path.parent} holds a demo with {setting} {getattr(found, setting)!r}, "
                f"not {getattr(wanted, setting)!r}.",
                "Pass another --dir, or the same options to resume it.",
            )
    return found, True
