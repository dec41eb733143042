"""Settings of capture: what `init` was given, else the environment, else defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from arttrace.capture.guard import logger
from arttrace.paths import DataDir

MAX_CONTENT_BYTES = 8 << 20
"""One attribute of content (messages, arguments, a result) is cut to this many bytes of JSON, and marked."""

MAX_BODY_BYTES = 64 << 20
"""Of one response no more than this many bytes are kept for decoding."""

MAX_WAITING_BYTES = 512 << 20
"""No more than this many bytes of calls wait in memory to be decoded and written."""

MAX_SPOOL_BYTES = 4 << 30
"""The spool never holds more than this; beyond it records are refused and counted."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How this process captures. `content` False keeps names, times, usage and counts, and drops what was said.

    With an `endpoint` (the base URL of a collector) records are shipped there, with `api_key` as bearer token.
    """

    data: DataDir
    project: str = "default"
    content: bool = True
    disabled: bool = False
    endpoint: str | None = None
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def resolve(
        cls,
        *,
        project: str | None = None,
        dir: str | Path | None = None,
        endpoint: str | None = None,
        api_key: str | None = None,
    ) -> Settings:
        """What was given, else ARTTRACE_PROJECT, ARTTRACE_DIR, ARTTRACE_ENDPOINT, ARTTRACE_API_KEY,
        ARTTRACE_CAPTURE_CONTENT and ARTTRACE_DISABLED."""
        content = os.environ.get("ARTTRACE_CAPTURE_CONTENT", "full").strip().lower()
        if content not in ("full", "off"):
            logger.warning("arttrace: ARTTRACE_CAPTURE_CONTENT=%s is neither full nor off; content is off", content)
        return cls(
            data=DataDir.resolve(dir),
            project=project or os.environ.get("ARTTRACE_PROJECT") or "default",
            content=content == "full",
            disabled=os.environ.get("ARTTRACE_DISABLED", "").strip().lower() in ("1", "true", "yes"),
            endpoint=endpoint or os.environ.get("ARTTRACE_ENDPOINT") or None,
            api_key=api_key or os.environ.get("ARTTRACE_API_KEY") or None,
        )
