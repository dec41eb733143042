"""`/runs/ID/tokens`: the token sequences of a run."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from arttrace.records.sequence import TokenReport, TokenSequence
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import TrajectorySummary
from arttrace.trajectories import sequences
from arttrace.views.web.handlers.answers import integer, reader_of
from arttrace.views.web.handlers.run import head_of, once_read
from arttrace.views.web.models.blocks import blocks
from arttrace.views.web.models.tokens.token_page import LEVELS, advantage, left_out, sequence_rows, tokens, unlikely
from arttrace.views.web.models.tokens.token_pieces import Pieces, pieces_of_run
from arttrace.views.web.rendering import page
from arttrace.views.web.store_reader import StoreReader

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
    first = at - at % TOKENS
    address = f"/runs/{summary.id}/rows/tokens"
    return page(
        "run_tokens.html",
        **head_of(request, "tokens"),
        rows=reader.kept(summary.id, "sequence rows", lambda: sequence_rows(run, made)),
        number=number,
        chosen=chosen,
        report=report,
        blocks=blocks(len(chosen.token_ids), TOKENS, address, first, {"sequence": str(number)}) if chosen else (),
        tokens=tokens(chosen, pieces, first, TOKENS) if chosen else (),
        unlikely=unlikely(chosen, pieces) if chosen else (),
        known=bool(pieces),
        left_out=left_out(run, report),
        advantage=_advantage(reader, summary),
        steps=_steps(reader, summary.id),
        levels=LEVELS,
        at=at,
    )


def rows(request: Request) -> Response:
    """A block of tokens."""
    reader, id = reader_of(request), request.path_params["id"]
    made, _ = _sequences(reader, id)
    number = integer(request, "sequence")
    found = tokens(made[number], _pieces(reader, reader.run(id)), integer(request, "from"), TOKENS)
    return page("_tokens.html", tokens=found)


def _sequences(reader: StoreReader, id: str) -> tuple[tuple[TokenSequence, ...], TokenReport]:
    return reader.kept(id, "sequences", lambda: sequences(reader.trajectory(id)))


def _advantage(reader: StoreReader, summary: TrajectorySummary) -> object:
    group = [one for one in reader.runs() if one.group == summary.group and not one.incomplete]
    rewards = [value for one in group if (value := trajectory_reward(one)) is not None]
    return advantage(trajectory_reward(summary), rewards)


def _steps(reader: StoreReader, id: str) -> Sequence[tuple[str, int, float | None, float | None]]:
    """The steps that trained on the run: policy, step, and how far the learner's log-probabilities were from the
    engine's."""
    quoted = id.replace("'", "''")
    return reader.sql(
        "SELECT c.policy, c.step, (p.metrics->>'logprob_difference_mean')::DOUBLE, "  # noqa: S608
        "(p.metrics->>'logprob_difference_max')::DOUBLE FROM consumption c LEFT JOIN policy_steps p "
        f"ON p.policy = c.policy AND p.step = c.step WHERE c.trajectory_id = '{quoted}' ORDER BY 1, 2 LIMIT 20"
    )


def _pieces(reader: StoreReader, summary: TrajectorySummary) -> Pieces:
    """The pieces of the model that answered, where its directory lies on this machine."""
    return pieces_of_run(summary.policy_versions, reader.base_models(), reader.store.data)
