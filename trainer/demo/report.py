"""Pure: what the demo prints at its end: the closing tables and the reward curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

from arttrace.records.policy import PolicyStep
from trainer.demo.state import Success
from trainer.step.phases import Phase

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # Braille dots by (row, column), Unicode U+2800


def curve(values: Sequence[float], *, width: int = 60, height: int = 8) -> str:
    """Values (oldest first, at least one) as a line of Braille dots on `width` x `height` characters, with its scale.

    The scale ends at tenths around the values.
    """
    low, high = math.floor(10 * min(values)) / 10, math.ceil(10 * max(values)) / 10
    high = max(high, low + 0.1)
    columns, rows = 2 * width, 4 * height
    cells = [[0] * width for _ in range(height)]
    previous: int | None = None
    for x in range(columns):
        position = x * (len(values) - 1) / (columns - 1) if len(values) > 1 else 0.0
        left = int(position)
        right = min(left + 1, len(values) - 1)
        value = values[left] + (values[right] - values[left]) * (position - left)
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        y = round((1.0 - share) * (rows - 1))
        for dot in range(min(y, y if previous is None else previous), max(y, y if previous is None else previous) + 1):
            cells[dot // 4][x // 2] |= _DOTS[dot % 4][x % 2]
        previous = y
    lines = []
    for row, cell_row in enumerate(cells):
        label = f"{high:4.1f}" if row == 0 else f"{low:4.1f}" if row == height - 1 else "    "
        lines.append(f"{label} ┤" + "".join(chr(0x2800 + cell) for cell in cell_row).rstrip("\u2800"))
    last = len(values)
    lines.append(" " * 5 + "└" + "─" * width)
    lines.append(" " * 6 + "step 1" + f"step {last}".rjust(width - 6))
    return "\n".join(lines)


def success_rows(held_out: dict[str, Success]) -> list[tuple[str, str, str, str]]:
    """(policy version, sampled at temperature 1, greedy, seconds), in the order of evaluation."""
    rows = []
    for version in dict.fromkeys(label.rpartition(" ")[0] for label in held_out):
        sampled, greedy = held_out.get(f"{version} sampled"), held_out.get(f"{version} greedy")
        if sampled and greedy:
            name = f"{version} (the base model)" if version.endswith("@0") else version
            rows.append((name, percent(sampled), percent(greedy), f"{sampled.seconds + greedy.seconds:.0f} s"))
    return rows


def percent(success: Success) -> str:
    """`93.8 % (120 of 128)`."""
    return f"{100 * success.rate:.1f} % ({success.right} of {success.asked})"


def markdown(
    steps: Sequence[PolicyStep],
    held_out: dict[str, Success],
    facts: Sequence[tuple[str, str]],
) -> str:
    """The report as a Markdown page."""
    lines = ["# arttrace demo", "", *(f"- {name}: {value}" for name, value in facts), ""]
    lines += ["| policy | held-out success, sampled at T=1 | greedy | asking took |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in success_rows(held_out)]
    if steps:
        lines += ["", "Mean reward by step:", "", "```", curve([s.metrics["reward_mean"] for s in steps]), "```", ""]
        lines += ["| step | reward mean | spread | tokens trained | loss | seconds |", "|---|---|---|---|---|---|"]
        for step in steps:
            m = step.metrics
            spent = sum(m.get(f"{phase}_s", 0.0) for phase in Phase)
            lines.append(
                f"| {step.step} | {m['reward_mean']:.3f} | {m['reward_spread']:.3f} | {m['tokens_trained']:.0f} "
                f"| {m['loss']:.4f} | {spent:.1f} |"
            )
    return "\n".join(lines) + "\n"
