"""`/runs/ID/tokens`: the token sequences of a run."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from arttrace.records.sequence import TokenReport, TokenSequence
from arttrace.rewards.combine import rewards_on_one_scale
from arttrace.store import TrajectorySummary
from arttrace.store.sql_text import quoted
from arttrace.trajectories import sequences
from arttrace.views.web.addresses import escaped
from arttrace.views.web.handlers.request_fields import integer, reader_of
from arttrace.views.web.handlers.run import head, once_read
from arttrace.views.web.models.blocks import blocks
from arttrace.views.web.models.tokens.learned import (
    METHODS,
    NO_ROOM,
    STEPS_OF_RUN,
    Learned,
    farthest,
    is_kept,
    learned,
    steps_of,
    why_no_numbers,
)
from arttrace.views.web.models.tokens.token_page import (
    LEVELS,
    advantages,
    left_out,
    sequence_rows,
    text_of,
    tokens,
    unlikely,
)
from arttrace.views.web.models.tokens.token_pieces import Pieces, pieces_of_run
from arttrace.views.web.rendering import page
from arttrace.views.web.store_reader import NotHere, StoreReader

TOKENS = 600
"""How many a block has."""


@once_read
def show(request: Request) -> Response:
    """The page."""
    reader = reader_of(request)
    summary = reader.run(request.path_params["id"])
    made, report = _sequences(reader, summary.id)
    run = reader.trajectory(summary.id)
    number = min(integer(request, "sequence"), max(len(made) - 1, 0))
    at = min(integer(request, "at"), len(made[number].token_ids) - 1) if made else 0
    pieces = _pieces(reader, summary)
    chosen = made[number] if made else None
    computed = _learned(reader, summary.id, chosen, number) if chosen else None
    far = farthest(chosen, computed.tokens) if chosen and computed else ()
    steps = _steps(reader, summary.id)
    first = at - at % TOKENS
    address = f"/rows/tokens/{escaped(summary.id)}"
    return page(
        "run_tokens.html",
        **head(reader, summary, "tokens"),
        rows=reader.kept(summary.id, "sequence rows", lambda: sequence_rows(run, made)),
        number=number,
        chosen=chosen,
        report=report,
        blocks=blocks(len(chosen.token_ids), TOKENS, address, (first,), {"sequence": str(number)}) if chosen else (),
        tokens=tokens(chosen, pieces, first, TOKENS, computed.tokens if computed else {}) if chosen else (),
        computed=computed,
        no_room=NO_ROOM,
        farthest=[(one, text_of(chosen.token_ids[one.place : one.place + 1], pieces)) for one in far] if chosen else (),
        unlikely=unlikely(chosen, pieces) if chosen else (),
        known=bool(pieces),
        left_out=left_out(run, report),
        advantage=_advantage(reader, summary),
        steps=steps,
        methods=METHODS,
        by_text=[METHODS[method] for *_, method in steps if method in ("sft", "dpo")],
        no_numbers=why_no_numbers(steps),
        levels=LEVELS,
        at=at,
    )


def rows(request: Request) -> Response:
    """A block of tokens."""
    reader, id = reader_of(request), request.path_params["id"]
    made, _ = _sequences(reader, id)
    number = integer(request, "sequence")
    if number >= len(made):
        raise NotHere("sequence", f"There is no sequence {number} in this run.")
    computed = _learned(reader, id, made[number], number)
    pieces = _pieces(reader, reader.run(id))
    found = tokens(made[number], pieces, integer(request, "from"), TOKENS, computed.tokens if computed else {})
    return page("_tokens.html", tokens=found)


def _sequences(reader: StoreReader, id: str) -> tuple[tuple[TokenSequence, ...], TokenReport]:
    return reader.kept(id, "sequences", lambda: sequences(reader.trajectory(id)))


def _advantage(reader: StoreReader, summary: TrajectorySummary) -> object:
    group = (one for one in reader.runs() if one.group == summary.group and not one.incomplete)
    parts = ({one.id: reward for one, reward in part} for part in rewards_on_one_scale(group)[0])
    return advantages(parts).get(summary.id)


def _steps(reader: StoreReader, id: str) -> Sequence[tuple[str, int, float | None, float | None, str, str]]:
    """The steps that trained on the run: policy, step, how far the learner's log-probabilities were from the engine's,
    the directory of what came out, and the method."""
    return reader.sql(STEPS_OF_RUN.format(quoted(id)))


def _learned(reader: StoreReader, id: str, chosen: TokenSequence, number: int) -> Learned | None:
    """What a step computed for the tokens of the sequence. A version never changes, so its file is read once."""
    steps = steps_of(_steps(reader, id))
    if not any(is_kept(directory) for _, directory in steps):
        return None
    return reader.kept(id, f"learned {number} {steps}", lambda: learned(steps, [chosen])[0])


def _pieces(reader: StoreReader, summary: TrajectorySummary) -> Pieces:
    """The pieces of the model that answered, where its directory lies on this machine."""
    return pieces_of_run(summary.policy_versions, reader.base_models(), reader.store.data)
