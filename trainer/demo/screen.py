"""What the demo prints while it runs: one line per finished task, and the running phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from arttrace.records.policy import PolicyStep
from arttrace.views.labels import one_line
from trainer.demo.report import curve, success_rows
from trainer.demo.state import Success

_SPINNER_WIDTH = 2


class Screen:
    """Prints to the terminal; without one (a pipe, a log file) the same lines, and no spinner."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = 110
        self._status = self.console.status("")

    def title(self, text: str, notes: Sequence[str]) -> None:
        """The opening: what this is, and what is a stand-in in it."""
        self.console.rule(Text(text, style="bold"))
        for note in notes:
            self.console.print(note)
        self.console.print()

    @contextmanager
    def phase(self, name: str) -> Iterator[ScreenPhase]:
        """A phase: its name while it runs, then a line with what came of it and the seconds it took."""
        phase = ScreenPhase(self, name)
        phase.update("")
        with self._status:
            began = time.perf_counter()
            yield phase
            seconds = time.perf_counter() - began
        self.line(name, phase.result, seconds)

    @contextmanager
    def status(self, name: str) -> Iterator[Callable[[str], None]]:
        """A spinner with `name` while something runs whose line is printed by somebody else."""
        self.show(name)
        with self._status:
            yield lambda text: self.show(name, text)

    def line(self, name: str, result: str, seconds: float | None = None) -> None:
        """One line: what was done, what came of it, how long it took."""
        took = f"{seconds:6.1f} s" if seconds is not None else " " * 8
        self.console.print(Text.assemble((f"{name:<18}", "bold"), (took, "dim"), "  ", result), soft_wrap=True)

    def show(self, name: str, text: str = "") -> None:
        """What is going on right now, beside the spinner: on one line, as it is drawn over and over."""
        shown = Text.assemble(name, " ", (one_line(text), "dim"))
        shown.truncate(self.console.width - _SPINNER_WIDTH, overflow="ellipsis")
        self._status.update(shown)

    def steps_head(self) -> None:
        """The head of the table of steps."""
        self.console.print(
            Text(
                f"\n{'step':>5}  {'reward':>6} {'':8} {'spread':>6}  {'tokens':>7}  "
                f"{'rollout':>8} {'score':>6} {'train':>6} {'publish':>8}  seconds",
                style="bold",
            )
        )

    def step(self, done: PolicyStep) -> None:
        """One row of the table of steps: reward mean and spread, tokens trained, seconds per phase."""
        m = done.metrics
        bar = _bar(m["reward_mean"], 8)
        train = m.get("batch_s", 0.0) + m.get("step_s", 0.0)
        publish = m.get("checkpoint_s", 0.0) + m.get("publish_s", 0.0) + m.get("record_s", 0.0)
        self.console.print(
            f"{done.step:5d}  {m['reward_mean']:6.3f} {bar} {m['reward_spread']:6.3f}  {m['tokens_trained']:7.0f}  "
            f"{m.get('rollout_s', 0.0):8.1f} {m.get('score_s', 0.0):6.1f} {train:6.1f} {publish:8.1f}"
        )

    def closing(
        self,
        held_out: dict[str, Success],
        steps: Sequence[PolicyStep],
        facts: Sequence[tuple[str, str]],
        next_commands: Sequence[tuple[str, str]],
    ) -> None:
        """The end: success before and after, the reward curve, where things lie, what to try next."""
        self.console.print()
        table = Table(title="Held-out success, by ground truth, with the served model", title_justify="left")
        table.add_column("policy", style="bold")
        table.add_column("sampled at temperature 1", justify="right")
        table.add_column("greedy", justify="right")
        table.add_column("asking took", justify="right", style="dim")
        for row in success_rows(held_out):
            table.add_row(*row)
        self.console.print(table)
        if steps:
            self.console.print("\n[bold]Mean reward by step[/]")
            self.console.print(curve([step.metrics["reward_mean"] for step in steps]), markup=False)
        self.console.print()
        for name, value in facts:
            self.console.print(Text.assemble((f"{name:<18}", "bold"), value), soft_wrap=True)
        self.console.print("\n[bold]Try next[/]")
        for text, why in next_commands:
            self.console.print(Text.assemble("  ", (text, "cyan"), ("   # " + why, "dim")), soft_wrap=True)


class ScreenPhase:
    """A running phase: `update` says how it goes, `result` what came of it."""

    def __init__(self, screen: Screen, name: str) -> None:
        self._screen, self._name = screen, name
        self.result = ""

    def update(self, text: str) -> None:
        """Replace what stands beside the phase's name."""
        self._screen.show(self._name, text)


def _bar(share: float, width: int) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")).ljust(width)
