"""Templates: the environment that escapes whatever it is given, what templates may call, and the addresses of static
files, which change with their content."""

from __future__ import annotations

import functools
import hashlib
import math
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from arttrace.records.values.units import quantity
from arttrace.views.labels import json_text
from arttrace.views.web.addresses import escaped

HERE = Path(__file__).parent
STATIC = HERE / "static"


@functools.cache
def static_url(name: str) -> str:
    """The address of a static file; another content has another one, so that browsers may keep it."""
    return f"/static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def number(value: float) -> str:
    """A count with separators between thousands."""
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}") if abs(value) >= 10_000 else f"{value}"


def things(count: int, noun: str) -> str:
    """So many of what `noun` names in the singular, with separators between thousands."""
    return number(count) + quantity(count, noun).removeprefix(str(count))


def duration(nanoseconds: int) -> str:
    """How long something took: 840 µs, 12 ms, 3.42 s, 5 min 3 s."""
    seconds = max(nanoseconds, 0) / 1e9
    if round(seconds * 1e6) < 1000:
        return f"{seconds * 1e6:.0f} µs"
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 2) < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(int(seconds + 0.005), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def clock(time_ns: int) -> str:
    """Date and time in the local zone."""
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def reward(value: float | None) -> str:
    """A reward as it is shown, a dash where there is none."""
    return "\N{EN DASH}" if value is None else f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def visible(text: str) -> str:
    """White space as a person can see it; line ends stay line ends."""
    return (
        text.replace(" ", "\N{MIDDLE DOT}").replace("\t", "\N{RIGHTWARDS ARROW}").replace("\n", "\u23ce\n") or "\u2205"
    )


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["static"] = static_url
    made.filters.update(
        exp=math.exp,
        visible=visible,
        number=number,
        things=things,
        duration=duration,
        clock=clock,
        reward=reward,
        json=json_text,
        shell=shlex.quote,
        path=escaped,
    )
    return made


_templates = _environment()


def html(template: str, **model: Any) -> str:
    """A template with what it shows."""
    return _templates.get_template(template).render(**model)


def page(template: str, status: int = 200, **model: Any) -> HTMLResponse:
    """A template as a response."""
    return HTMLResponse(html(template, **model), status)
