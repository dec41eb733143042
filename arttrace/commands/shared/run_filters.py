"""The options by which commands choose runs, as one argument `wanted`: the same in `ls` and all others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from arttrace.views.run_filter import STATUSES, RunFilter, comparison, moment, policy_or_version


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


_ERRORS = ("failed", "incomplete")
_OPTIONS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "entry": click.option("--entry", metavar="NAME", help="Only runs of this entry point."),
    "group": click.option("--group", metavar="KEY", help="Only runs of this group: its key, or what `ls` shows of it."),
    "tags": click.option(
        "--tag", "tags", multiple=True, metavar="TAG", help="Only runs with this tag; several: with all of them."
    ),
    "policy": click.option(
        "--policy",
        metavar="NAME[@N]",
        callback=checked(policy_or_version),
        help="Only runs that this policy, or version of it, answered in.",
    ),
    "status": click.option("--status", type=click.Choice(STATUSES[::-1]), help="Only runs of this status."),
    "errors": click.option("--errors", is_flag=True, help="Only runs that failed or are incomplete."),
    "reward": click.option(
        "--reward",
        metavar="'<0.5'|none",
        callback=checked(comparison),
        help="Only runs with such a reward; 'none': without a reward.",
    ),
    "since": click.option(
        "--since", metavar="2h|DATE", callback=checked(moment), help="Only runs that started since then."
    ),
    "search": click.option(
        "--search", metavar="TEXT", help="Only runs with this text in their messages, tool calls or arguments."
    ),
}


def run_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command gets a RunFilter as `wanted`."""
    return _adding(command, tuple(_OPTIONS))


def run_filters_of_complete_runs(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same without those of a run's status and reward: for commands that take complete runs and reward them."""
    return _adding(command, ("entry", "group", "tags", "policy", "since", "search"))


def _adding(command: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    @functools.wraps(command)
    def with_filter(**given: Any) -> Any:
        asked = {name: given.pop(name) for name in names}
        status, errors, since = asked.pop("status", None), asked.pop("errors", False), asked.pop("since")
        if errors and status is not None and status not in _ERRORS:
            raise click.UsageError(f"--errors chooses runs that failed or are incomplete, --status {status} others")
        wanted = RunFilter(
            **asked,
            status=(status,) if status else _ERRORS if errors else (),
            since_ns=None if since is None else moment(since),
        )
        return command(wanted=wanted, **given)

    result: Callable[..., Any] = with_filter
    for name in reversed(names):
        result = _OPTIONS[name](result)
    return result
