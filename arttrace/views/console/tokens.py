"""Token sequences for the terminal: context and trained tokens, how likely each was, and why tokens are left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text

from arttrace.records.sequence import TokenReport, TokenSequence
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.views.labels import one_line
from arttrace.views.web.models.tokens.learned import NO_ROOM, Learned, farthest
from arttrace.views.web.models.tokens.token_page import (
    SequenceRow,
    left_out,
    sequence_rows,
    text_of,
    tokens,
    unlikely,
)
from arttrace.views.web.models.tokens.token_pieces import Pieces

_CONTEXT_ENDS = 160
"""Characters of a stretch of context that are shown at either end of it, but for the whole with `whole`."""
_MOST_UNLIKELY = 5
_BOUNDS = ((0.9, "≥ 0.9"), (0.5, "≥ 0.5"), (0.1, "≥ 0.1"), (0.01, "≥ 0.01"), (0.0, "< 0.01"))
_COLOURS = ("green", "cyan", "yellow", "magenta", "red")


def token_view(
    run: Trajectory,
    made: Sequence[TokenSequence],
    report: TokenReport,
    pieces: Pieces,
    computed: Sequence[Learned | None] = (),
    *,
    whole: bool = False,
) -> RenderableType:
    """Every sequence of a run as the learner sees it, what a step computed for it, and what is left out and why."""
    lines: list[RenderableType] = [Text.assemble("probability: ", *_legend(), "  ", ("context", "dim"))]
    if not pieces and made:
        lines.append(Text("no tokenizer of the model is on this machine: tokens stand as numbers", style="dim"))
    of_steps = computed or [None] * len(made)
    for row, one, step in zip(sequence_rows(run, made), made, of_steps, strict=True):
        lines += [Text(), _head(row, len(made)), Text().join(_spans(one, pieces, whole))]
        if rare := unlikely(one, pieces)[:_MOST_UNLIKELY]:
            said = ", ".join(f"{one.text!r} {one.probability:.4f} at {one.place}" for one in rare)
            lines.append(Text(f"least likely: {one_line(said)}", style="dim"))
        if step is not None:
            lines.append(Text(one_line(_learner(one, step, pieces), 2000), style="dim"))
    if not made:
        lines.append(Text("no sequence: no sampled token of this run can be trained on", style="yellow"))
    for reason in left_out(run, report):
        said = f"left out: {quantity(reason.calls, 'call')}, {reason.reason}. {reason.words} {reason.hint}"
        lines.append(Text(said, "yellow"))
    return Group(*lines)


def _learner(one: TokenSequence, step: Learned, pieces: Pieces) -> str:
    """What a step computed, in words: advantage, what was clipped, and where learner and engine differ the most."""
    if not step.tokens:
        return f"learner, step {step.version}: {NO_ROOM.format(step.without_room)}"
    advantages = [token.advantage for token in step.tokens.values()]
    least, most = min(advantages), max(advantages)
    advantage = f"advantage {most:+.3f}" if least == most else f"advantages {least:+.3f} to {most:+.3f}"
    far = ", ".join(
        f"{text_of(one.token_ids[at.place : at.place + 1], pieces)!r} {at.learner:.3f} (engine {at.engine:.3f}) "
        f"at {at.place}"
        for at in farthest(one, step.tokens)[:_MOST_UNLIKELY]
    )
    return (
        f"learner, step {step.version}: {advantage}, of {len(step.tokens):,} tokens {step.fates}; "
        f"log-probabilities farthest from the engine's: {far}"
    )


def _legend() -> Iterator[tuple[str, str]]:
    for (_, label), colour in zip(_BOUNDS, _COLOURS, strict=True):
        yield f"{label} ", colour


def _head(row: SequenceRow, of: int) -> Text:
    text = Text.assemble((f"sequence {row.number + 1} of {of}", "bold"), f"  agent {one_line(row.agent, 80)}")
    text.append(f", {row.trained} of {quantity(row.tokens, 'token')} trained, {quantity(row.calls, 'call')}")
    text.append(f", {', '.join(row.versions) or 'no policy version'}")
    return text.append(f"  ({one_line(row.why)})", style="dim")


def _spans(one: TokenSequence, pieces: Pieces, whole: bool) -> Iterator[Text]:
    """The text of a sequence; where an answer of another version begins, its name."""
    version = one.policy_versions[0] if len(one.policy_versions) == 1 else ""
    for token in tokens(one, pieces, 0, len(one.token_ids)):
        if not token.trained:
            yield Text(_shown(token.text, whole), style="dim")
            continue
        if token.begins and token.version != version:
            version = token.version
            yield Text(f"[{version}]", style="bold")
        yield Text(_shown(token.text, True), style=Style(color=_colour(token.logprob), underline=token.logprob is None))


def _colour(logprob: float | None) -> str | None:
    if logprob is None:
        return None
    probability = math.exp(min(logprob, 0.0))
    return next(colour for (bound, _), colour in zip(_BOUNDS, _COLOURS, strict=True) if probability >= bound)


def _shown(text: str, whole: bool) -> str:
    """Without control characters: a captured text must not steer the terminal."""
    if not whole and len(text) > 2 * _CONTEXT_ENDS:
        beyond = len(text) - 2 * _CONTEXT_ENDS
        text = f"{text[:_CONTEXT_ENDS]} … {quantity(beyond, 'character')} … {text[-_CONTEXT_ENDS:]}"
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in text)
