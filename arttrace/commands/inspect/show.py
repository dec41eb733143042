"""`arttrace show`: one trajectory as a tree of its agents, with policy, tokens and rewards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec
from rich.console import RenderableType

from arttrace.commands.shared.following import print_events, watched_store
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import json_option, store_option
from arttrace.records.sequence import TokenSequence
from arttrace.records.trajectory import Agent, Trajectory
from arttrace.records.values.tokens import plain
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import AnyStore, open_store
from arttrace.store.access.late_spans import late
from arttrace.store.access.run_spans import spans_in_parts, traces_of_run
from arttrace.store.rows.left_out import is_mark
from arttrace.store.sql_text import quoted
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from arttrace.trajectories.usage import used
from arttrace.views import labels, terminal
from arttrace.views.agent_tree import agent_tree
from arttrace.views.console.agents import agents_named, part_below
from arttrace.views.console.events import Events
from arttrace.views.console.running import has_not_ended
from arttrace.views.console.tokens import token_view
from arttrace.views.costs.prices import load_prices
from arttrace.views.costs.usage import cost_of_run, cost_words
from arttrace.views.langfuse.state import links
from arttrace.views.web.models.tokens.learned import STEPS_OF_RUN, Learned, in_columns, learned, steps_of
from arttrace.views.web.models.tokens.token_pieces import pieces_of_run


@click.command("show")
@click.argument("id")
@click.option("--agent", metavar="NAME", help="Only what this agent (its name or id) and those below it did.")
@click.option("--tokens", is_flag=True, help="Show the token sequences as the learner sees them.")
@click.option("--wide", is_flag=True, help="With --tokens, do not shorten the context.")
@click.option("--raw", is_flag=True, help="Print its spans as received, one JSON object per line.")
@click.option("--follow", is_flag=True, help="Keep printing what the run does until it ends.")
@json_option
@store_option
def command(
    id: str, agent: str | None, tokens: bool, wide: bool, raw: bool, follow: bool, as_json: bool, data: DataDir
) -> None:
    """Show the trajectory ID; a prefix that only one id has is enough.

    Its agents are shown as a tree, each with its messages and tool calls in short; sub-agents are below the tool call
    that started them. --json prints everything that was captured and reconstructed.
    """
    if follow and (raw or as_json or tokens):
        raise click.UsageError(
            "--follow cannot be combined with --raw, --tokens or --json; `arttrace tail --json` follows and prints JSON"
        )
    if wide and not tokens:
        raise click.UsageError("--wide is about the context that --tokens shows: add --tokens, or see all with --json")
    if raw and (agent is not None or tokens):
        raise click.UsageError("--raw prints every span: leave out --agent and --tokens")
    if not follow:
        with open_store(data) as store:
            _show(store, id, agent, tokens, wide, raw, as_json)
        return
    with watched_store(data) as store:
        events = Events(store, None, run=store.trajectory(id).id)  # before it is shown: later events count
        if has_not_ended(_show(store, id, agent, False, False, False, False)):
            print_events(events, False, ends=lambda one: one.kind == "run" and one.ended)


def _show(
    store: AnyStore, id: str, agent: str | None, tokens: bool, wide: bool, raw: bool, as_json: bool
) -> Trajectory:
    whole = store.trajectory(id)
    if raw:
        for part in spans_in_parts(store, traces_of_run(store, whole.id)):
            for span in part:
                if not is_mark(span):
                    print_json(span, enc_hook=plain)
        return whole
    parts = [whole] if agent is None else [part_below(whole, one) for one in _named(whole, agent)]
    run = parts[0]
    late_in = late(store, [whole]).get(whole.id, ())
    found = [sequences(part) for part in parts]
    pages = links(store.data, whole.id)
    if as_json:
        made, report = found[0]
        beside = {
            "tokens": report,
            "sequences": made,
            "learned": [one and in_columns(one) for one in _learned(store, whole.id, made)],
            "late": late_in,
            "links": pages,
            "used": used(run)._asdict(),
            "cost": cost_of_run(store, whole.id, load_prices(), calls=None if agent is None else run.calls),
        }
        if agent is not None and len(parts) > 1:
            raise ArttraceError(f"{len(parts)} agents are called {agent!r}", f"Name one by its id: {_ids(parts)}")
        for piece in json_pieces(run, beside):
            click.echo(piece, nl=False)
        click.echo()
        return whole
    below: list[RenderableType] = []
    if tokens:
        models = store.sql("SELECT DISTINCT policy, base_model FROM policy_steps")[1]
        pieces = pieces_of_run(whole.policy_versions, [(policy, model) for policy, model in models], store.data)
        below = [
            token_view(part, made, report, pieces, _learned(store, whole.id, made), whole=wide)
            for part, (made, report) in zip(parts, found, strict=True)
        ]
    elif agent is not None:
        below = [agent_tree(part) for part in parts]
    made, report = sequences(whole)
    prices = load_prices()
    words = cost_words(cost_of_run(store, whole.id, prices), prices)
    terminal.console().print(
        terminal.trajectory_view(whole, made, report, trajectory_reward(whole), late_in, pages, below, words)
    )
    return whole


def json_pieces(run: Trajectory, beside: Mapping[str, Any]) -> Iterator[bytes]:
    """One JSON object: the run as `trajectory`, then what is beside it. A call comes after the other, since each of a
    long run has its whole prompt in it."""
    encode = msgspec.json.Encoder(enc_hook=plain).encode
    before = b'{"trajectory":{'
    for name in run.__struct_fields__:
        yield before + encode(name) + b":"
        if name == "calls":
            yield b"["
            for number, one in enumerate(run.calls):
                yield (b"," if number else b"") + encode(one)
            yield b"]"
        else:
            yield encode(getattr(run, name))
        before = b","
    yield b"}"
    for name, value in beside.items():
        yield b"," + encode(name) + b":" + encode(value)
    yield b"}"


def _learned(store: AnyStore, id: str, made: Sequence[TokenSequence]) -> list[Learned | None]:
    steps = steps_of(store.sql(STEPS_OF_RUN.format(quoted(id)))[1])
    return learned(steps, made)


def _named(run: Trajectory, name: str) -> Sequence[Agent]:
    if found := agents_named(run, name):
        return found
    names = ", ".join(sorted({labels.one_line(one.name, 80) for one in run.agents})[:20])
    raise ArttraceError(f"no agent {name!r} in {run.id}", f"There are: {names}")


def _ids(parts: Sequence[Trajectory]) -> str:
    return ", ".join(part.agents[0].id for part in parts[:5])
