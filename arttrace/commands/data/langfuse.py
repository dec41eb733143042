"""`arttrace langfuse`: stored runs and rewards sent to a Langfuse project, and a project's traces and scores
imported."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import click
import msgspec

from arttrace.capture.base.langfuse_project import Connection
from arttrace.commands.shared.json_output import print_json
from arttrace.commands.shared.options import SharedOptionsGroup, json_option, store_option
from arttrace.commands.shared.progress import EVERY_S, CountedProgress, ShownWork, say
from arttrace.commands.shared.run_filters import checked, run_filters
from arttrace.records.values.units import duration_text, quantity
from arttrace.store import open_store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.pull import Pulled, TraceQuery, pull, total
from arttrace.views.langfuse.push import Pushed, push
from arttrace.views.langfuse.state import Cursor, Project, PullCursor, SentRuns, links
from arttrace.views.run_filter import RunFilter, moment


@click.group(cls=SharedOptionsGroup)
def command() -> None:
    """Send stored runs to Langfuse, or import traces from there.

    The project is that of LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY on LANGFUSE_BASE_URL (or LANGFUSE_HOST), its
    cloud in the EU by default; Langfuse 4 or newer is needed.
    """


@command.command("push")
@run_filters
@click.option(
    "--scores/--no-scores", default=True, show_default=True, help="Send rewards and advantages too, as scores."
)
@click.option("--rate", metavar="N", type=click.FloatRange(min=1), help="At most N requests a minute.")
@json_option
@store_option
def push_command(
    scores: bool,
    rate: float | None,
    as_json: bool,
    data: DataDir,
    wanted: RunFilter,
) -> None:
    """Send stored runs, oldest first.

    Agents, model calls and tools become observations of these types. Rewards, judge scores with the judge's
    explanation, and advantages become scores. What was sent before and has not changed is left out, so an interrupted
    push continues where it stopped; what is sent again replaces the earlier version.
    """
    connection = Connection.resolve()
    with open_store(data) as store, LangfuseClient(connection, requests_per_minute=rate, say=say) as client:
        bar = CountedProgress(0, "runs")

        def progress(done: int, total: int) -> None:
            if total > 1:
                bar.of(done, total)

        sent = SentRuns(data, connection)
        pushed = push(store, client, connection, sent, wanted, with_scores=scores, progress=progress)
        project_id = client.project()
    if project_id is not None:
        project = Project(connection.shown, project_id)
        project.save(data, connection)
        pages = links(data, pushed.run) if pushed.run else []
        pushed.url = pages[0] if len(pages) == 1 else project.traces
    if as_json:
        print_json(pushed)
    else:
        _show_pushed(pushed, connection)
    if pushed.refused_spans or pushed.refused_scores:
        raise ArttraceError(
            f"Langfuse refused {quantity(pushed.refused_spans, 'span')} and {quantity(pushed.refused_scores, 'score')}"
            + "".join(f"\n  {reason}" for reason in pushed.reasons),
            "All others were sent. The refused ones stay in the store.",
        )


def _show_pushed(pushed: Pushed, connection: Connection) -> None:
    taken = pushed.runs + pushed.scores + pushed.known + pushed.refused_spans + pushed.refused_scores
    if not taken:
        click.echo("nothing was sent: no run matches")
        return
    click.echo(
        f"{quantity(pushed.runs, 'run')} ({quantity(pushed.spans, 'span')}) and {quantity(pushed.scores, 'score')} "
        f"sent to {connection.shown}" + (f"; {pushed.known} of the runs were there" if pushed.known else "")
    )
    if pushed.unreadable:
        lines = quantity(pushed.unreadable, "line")
        click.secho(f"  {lines} of what was sent before cannot be read: its runs are sent again", fg="yellow", err=True)
    if pushed.url:
        click.echo(pushed.url)


def _iso(words: str | None) -> str | None:
    """An age or a date in Langfuse's form."""
    if words is None:
        return None
    at = datetime.datetime.fromtimestamp(moment(words) // 1_000_000 / 1000, tz=datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@command.command("pull")
@click.option("--from", "since", metavar="7d|DATE", callback=checked(moment), help="Only what began since then.")
@click.option("--to", "until", metavar="1d|DATE", callback=checked(moment), help="Only what began before then.")
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="Only traces with this tag; several: with all of them."
)
@click.option("--name", metavar="NAME", help="Only traces of this name.")
@click.option("--session", metavar="ID", help="Only traces of this session.")
@click.option("--environment", metavar="NAME", help="Only traces of this environment.")
@click.option("--user", metavar="ID", help="Only traces of this user.")
@click.option("--scores/--no-scores", default=True, show_default=True, help="Import scores too, as rewards.")
@click.option("--rate", metavar="N", type=click.FloatRange(min=1), help="At most N requests a minute.")
@json_option
@store_option
def pull_command(
    since: str | None,
    until: str | None,
    tags: tuple[str, ...],
    name: str | None,
    session: str | None,
    environment: str | None,
    user: str | None,
    scores: bool,
    rate: float | None,
    as_json: bool,
    data: DataDir,
) -> None:
    """Import a project's traces, and their scores as rewards of the same names.

    A trace is imported as a whole if one of its observations matches all conditions. What is stored already is not
    stored twice. An interrupted pull continues where it stopped if it is started again with the same options.
    """
    connection = Connection.resolve()
    asked = TraceQuery(
        since=since, until=until, tags=tags, name=name, session=session, environment=environment, user=user
    )
    query = msgspec.structs.replace(asked, since=_iso(since), until=_iso(until))
    kept = PullCursor(data, connection, asked.id)
    before = kept.load()
    with (
        open_store(data, create=True) as store,
        LangfuseClient(connection, requests_per_minute=rate, say=say) as client,
    ):
        progress = _PullProgress(before, lambda: total(client, query, kept))
        pulled = pull(store, client, query, kept, with_scores=scores, progress=progress)
        progress.end()
    if as_json:
        print_json(pulled)
    else:
        _show_pulled(pulled)
    if pulled.refused:
        raise ArttraceError(
            f"{quantity(pulled.refused, 'item')} of Langfuse's answer cannot be read: {'; '.join(pulled.reasons)}",
            "All else is in the store.",
        )


def _show_pulled(pulled: Pulled) -> None:
    already = pulled.already_stored
    new = pulled.observations + pulled.scores - already
    known = f": {new} new, {already} already stored" if already else ""
    click.echo(f"{quantity(pulled.observations, 'observation')} and {quantity(pulled.scores, 'score')} taken in{known}")
    if pulled.not_numeric:
        click.secho(f"  {quantity(pulled.not_numeric, 'score')} left out: not numbers", fg="yellow", err=True)


class _PullProgress(ShownWork):
    """Pages come without their number: what was read by now, at what rate, and what is left where `count` knows how
    many there are, which is asked when there is something to show. What an interrupted pull had read is in no rate."""

    def __init__(self, before: Cursor | None, count: Callable[[], int | None]) -> None:
        super().__init__(every_s=EVERY_S, tells_short=False)
        self._before = (before.observations, before.scores) if before else (0, 0)
        self._count = count
        self._of: int | None = None
        self._is_asked = False

    def __call__(self, pulled: Pulled) -> None:
        """So much is read."""
        self.show(lambda seconds: self._text(pulled, seconds), pulled.observations + pulled.refused, self._of)

    def _text(self, pulled: Pulled, seconds: float) -> str:
        if not self._is_asked:
            self._of, self._is_asked = self._count(), True
        of, (observations, scores) = self._of, self._before
        read = pulled.observations - observations
        rate = (read + pulled.scores - scores) / seconds
        of_all = "" if of is None else f"{pulled.observations} of "
        observed = of_all + quantity(pulled.observations if of is None else max(of, pulled.observations), "observation")
        line = f"{observed} and {quantity(pulled.scores, 'score')}, {rate:.0f} per second"
        left = 0 if of is None else of - pulled.observations - pulled.refused
        if read > 0 and left > 0 and pulled.scores == scores:  # scores come when all observations have
            line += f", {duration_text(left * seconds / read)} left"
        return line
