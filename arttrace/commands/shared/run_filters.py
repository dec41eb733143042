"""The options by which commands choose runs, as one argument `wanted`: what `ls` shows is what others take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from arttrace.views.run_filter import RunFilter, comparison, moment


def checked(check: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A callback that refuses what `check` raises ValueError for."""

    def callback(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
        if value is not None:
            try:
                check(value)
            except ValueError as error:
                raise click.BadParameter(str(error)) from error
        return value

    return callback


_OPTIONS = (
    click.option("--entry", metavar="NAME", help="Only runs of this entry point."),
    click.option("--group", metavar="KEY", help="Only runs of this group: its key, or what `ls` shows of it."),
    click.option(
        "--tag", "tags", multiple=True, metavar="TAG", help="Only runs with this tag; several: with all of them."
    ),
    click.option("--policy", metavar="NAME[@N]", help="Only runs that this policy, or version of it, answered in."),
    click.option(
        "--status", type=click.Choice(["complete", "unread", "incomplete", "failed"]), help="Only runs of this status."
    ),
    click.option("--errors", is_flag=True, help="Only runs that failed or are incomplete."),
    click.option(
        "--reward",
        metavar="'<0.5'|none",
        callback=checked(comparison),
        help="Only runs with such a reward; 'none': without.",
    ),
    click.option("--since", metavar="2h|DATE", callback=checked(moment), help="Only runs that started since."),
)


def run_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command gets a RunFilter as `wanted`."""

    @functools.wraps(command)
    def with_filter(
        *,
        entry: str | None,
        group: str | None,
        tags: tuple[str, ...],
        policy: str | None,
        status: str | None,
        errors: bool,
        reward: str | None,
        since: str | None,
        **given: Any,
    ) -> Any:
        wanted = RunFilter(
            entry=entry,
            group=group,
            tags=tags,
            policy=policy,
            status=("failed", "incomplete") if errors else (status,) if status else (),
            reward=reward,
            since_ns=None if since is None else moment(since),
        )
        return command(wanted=wanted, **given)

    result: Callable[..., Any] = with_filter
    for option in reversed(_OPTIONS):
        result = option(result)
    return result
