"""Reporters: send every step to trackers, beside the store.

If a tracker fails, that is reported once, and training continues. Every step is reported to each at least once, also
those of a start that was killed before it could report, or before the tracker wrote them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from arttrace.records.policy import PolicyStep
from arttrace.store import AnyStore
from arttrace.system.errors import ArttraceError, TrainingError
from trainer.output.log import Problem
from trainer.policies.checkpoints import Checkpoints
from trainer.step.example import ExampleTable, example_of
from trainer.step.trackers import MLflow, StepIsOver, TensorBoard, Tracker, Trackio, WandB

Note = Callable[[dict[str, int], dict[str, int]], None]
"""Called with the last step that each tracker was told, by name, and the last that it has written for certain."""


class Reporters:
    """Several of them, by name."""

    def __init__(self, reporters: Mapping[str, Tracker], say: Callable[[str], None]) -> None:
        self._reporters = dict(reporters)
        self._say = say
        self._has_examples = True
        self._told: dict[str, int] = {}
        self._held: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self._note: Note = lambda told, written: None

    @classmethod
    def none(cls) -> Reporters:
        """Reports to nobody."""
        return cls({}, lambda line: None)

    @property
    def names(self) -> list[str]:
        """Those that still work."""
        return list(self._reporters)

    def catch_up(
        self,
        steps: Sequence[PolicyStep],
        reported: Mapping[str, int],
        checkpoints: Checkpoints,
        store: AnyStore | None = None,
        note: Note = lambda told, written: None,
    ) -> dict[str, int]:
        """Report to each the steps that it has not had yet; returns by name the last one reported, and calls `note`
        after each, and once they are closed. The `store` has the runs that the steps were trained on."""
        self._told = reported_to = dict(reported)
        self._note = note
        examples: dict[int, ExampleTable | None] = {}
        for name in list(self._reporters):
            for done in steps:
                if done.step <= reported_to.get(name, 0):
                    continue
                path = checkpoints.path(done.step)
                adapter = path if (path / "adapter_model.safetensors").is_file() else None
                if done.step not in examples:
                    examples[done.step] = None if store is None else self._example(store, done)
                if not self._safely(name, "step", done, adapter, examples[done.step]):
                    break
                reported_to[name] = done.step
                self._hold(name, done.step)
                note(reported_to, self._written())
        return reported_to

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Report further numbers of a step to each."""
        for name in list(self._reporters):
            self._safely(name, "log", numbers, step)

    def close(self) -> None:
        """Have each write what it has buffered."""
        for name in list(self._reporters):
            if self._safely(name, "close") and name in self._held:
                del self._held[name]
                self._note(self._told, self._written())

    def _written(self) -> dict[str, int]:
        """By name the last step that a kill does not lose any more."""
        held = {name: steps[0][0] for name, steps in self._held.items()}
        return {name: held[name] - 1 if name in held else step for name, step in self._told.items()}

    def _hold(self, name: str, step: int) -> None:
        """Note that it was told, and forget those that are written by now."""
        if seconds := self._reporters[name].held_s:
            held, now = self._held[name], monotonic()
            held.append((step, now))
            while len(held) > 1 and held[1][1] <= now - seconds:
                del held[0]

    def _example(self, store: AnyStore, done: PolicyStep) -> ExampleTable | None:
        try:
            return example_of(store, done)
        except Exception as error:  # noqa: BLE001 - numbers count without it
            if self._has_examples:
                self._has_examples = False
                self._say(Problem(f"{done.version} is reported without an example: {_first_line(error)}"))
            return None

    def _safely(self, name: str, method: str, *arguments: Any) -> bool:
        try:
            getattr(self._reporters[name], method)(*arguments)
        except StepIsOver as error:
            self._say(Problem(f"{name} does not get these numbers: {error}"))
        except Exception as error:  # noqa: BLE001 - other people's services; training goes on
            self._say(Problem(f"{name} is not reported to any more: {_first_line(error)}"))
            del self._reporters[name]
            return False
        return True


_KINDS: dict[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {
    "wandb": WandB,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "mlflow": MLflow,
}


def require_known(names: Sequence[str]) -> None:
    """Raises TrainingError for a tracker that there is none of."""
    for name in names:
        if name not in _KINDS:
            raise TrainingError(f"Metrics cannot be sent to {name!r}.", f"There are: {', '.join(_KINDS)}.")


def open_reporters(
    names: Sequence[str], folder: Path, policy: str, config: Mapping[str, Any], say: Callable[[str], None]
) -> Reporters:
    """The requested trackers, which write under `folder`. One that cannot be reached is reported and left out.

    Raises TrainingError for an unknown name or a missing package.
    """
    require_known(names)
    opened: dict[str, Tracker] = {}
    for name in names:
        try:
            opened[name] = _KINDS[name](folder, policy, config)
        except ImportError as error:
            raise TrainingError(
                f"Metrics cannot be sent to {name}: {error}.", f"Install it with: pip install {name}"
            ) from error
        except Exception as error:  # noqa: BLE001 - other people's services; training goes on
            say(Problem(f"{name} is not reported to: {_first_line(error)}"))
    return Reporters(opened, say)


def _first_line(error: Exception) -> str:
    """The first line of its text, with its type where it is no error of ours."""
    text, _, _ = str(error).strip().partition("\n")
    return text if isinstance(error, ArttraceError) else f"{type(error).__name__}: {text}"
