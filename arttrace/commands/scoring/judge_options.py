"""The options that say which model judges, at which address, and by which rubric."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from arttrace.commands.shared.options import require_address
from arttrace.commands.shared.typed_text import as_typed
from arttrace.rewards.judge_prompt import DEFAULT_RUBRIC
from arttrace.system.addresses import without_login
from arttrace.system.files import written_text

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def read_rubric(given: str | None, param: click.Parameter | None = None, ctx: click.Context | None = None) -> str:
    """The text of --rubric: a file's, or itself; the default where none is given."""
    if given is None:
        return DEFAULT_RUBRIC
    try:
        words = written_text(Path(given))
    except UnicodeDecodeError:
        raise click.BadParameter(f"{given} is not a text file", param_hint="--rubric") from None
    except (OSError, UnicodeEncodeError):  # no such file, or no name that a file may have: it is the text itself
        words = as_typed(given, param, ctx)
    if not words.strip():
        raise click.BadParameter("the rubric is empty", param_hint="--rubric")
    return words


def judge_params(judge: str, base_url: str | None) -> dict[str, Any]:
    """What litellm receives beside the model. Says when the address comes from the environment instead."""
    elsewhere = os.environ.get("OPENAI_BASE_URL")
    if judge.startswith("openai/") and not base_url and elsewhere:
        # The agent's address, exported in the same shell, would be the judge's as well.
        click.echo(
            f"note: the judge is asked at $OPENAI_BASE_URL, {without_login(elsewhere)}; unset it to ask OpenAI itself",
            err=True,
        )
    return {"api_base": base_url} if base_url else {}


def _address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        require_address(value, "http://127.0.0.1:8000/v1")
    return value


def _read(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    return read_rubric(value, param, ctx)


judge_option: _Decorator = click.option(
    "--judge", required=True, metavar="MODEL", help="Judge model by its litellm name, such as openai/o3."
)
judge_base_url_option: _Decorator = click.option(
    "--judge-base-url",
    metavar="URL",
    callback=_address,
    help="Ask this server (chat completions) instead of the provider's.",
)
rubric_option: _Decorator = click.option(
    "--rubric",
    metavar="FILE|TEXT",
    type=click.UNPROCESSED,
    callback=_read,
    help="What a good run is, in words.  [default: success, then economy]",
)
