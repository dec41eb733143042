"""Where a Langfuse project is, and its keys: from options, else the environment that Langfuse's own SDK reads."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from arttrace.capture.base.receiver import Receiver, parts_of
from arttrace.system.addresses import basic_authorization, why_never_asked, without_login
from arttrace.system.errors import ArttraceError
from arttrace.wire.content import secrets

CLOUD = "https://cloud.langfuse.com"
_ENVIRONMENT = re.compile(r"(?!langfuse)[a-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class Connection:
    """One project of one Langfuse server. The keys never show in a repr."""

    url: str
    public_key: str
    secret_key: str = field(repr=False)
    environment: str | None = None
    release: str | None = None

    @classmethod
    def resolve(cls, environ: Mapping[str, str] = os.environ) -> Connection:
        """From `LANGFUSE_PUBLIC_KEY`, `LANGFUSE_SECRET_KEY`, `LANGFUSE_BASE_URL` (or `LANGFUSE_HOST`),
        `LANGFUSE_TRACING_ENVIRONMENT` and `LANGFUSE_RELEASE`. Raises ArttraceError when a key is missing, or something
        is not what Langfuse takes."""
        public, secret = environ.get("LANGFUSE_PUBLIC_KEY"), environ.get("LANGFUSE_SECRET_KEY")
        if not public or not secret:
            missing = "LANGFUSE_PUBLIC_KEY" if not public else "LANGFUSE_SECRET_KEY"
            raise ArttraceError(
                f"{missing} is not set", "Set it and its other half to the API keys of the project (its settings)."
            )
        secrets.remember(secret)
        url = (environ.get("LANGFUSE_BASE_URL") or environ.get("LANGFUSE_HOST") or CLOUD).strip().rstrip("/")
        parts = parts_of(url)
        if parts.scheme not in ("http", "https") or why_never_asked(url, None):
            raise ArttraceError(
                f"{without_login(url)!r} is not the address of a Langfuse server",
                "Set LANGFUSE_BASE_URL to one, such as " + CLOUD + ".",
            )
        environment = environ.get("LANGFUSE_TRACING_ENVIRONMENT") or None
        if environment is not None and _ENVIRONMENT.fullmatch(environment) is None:
            raise ArttraceError(
                f"{environment!r} is not an environment name that Langfuse accepts",
                "LANGFUSE_TRACING_ENVIRONMENT is at most 40 of a-z, 0-9, - and _, and does not begin with langfuse.",
            )
        return cls(url, public, secret, environment, environ.get("LANGFUSE_RELEASE") or None)

    @property
    def shown(self) -> str:
        """The server's address for people: without a login."""
        return without_login(self.url)

    @property
    def receiver(self) -> Receiver:
        """Where capture sends spans as they end."""
        return Receiver(
            f"{self.url}/api/public/otel",
            {"authorization": self.authorization, "x-langfuse-ingestion-version": "4"},
            name="langfuse",
            spans="langfuse",
        )

    @property
    def id(self) -> str:
        """16 hex digits that name the project, for file names; the keys cannot be read from them."""
        return hashlib.blake2b(f"{self.url}\0{self.public_key}".encode(), digest_size=8).hexdigest()

    @property
    def authorization(self) -> str:
        """The value of the header: basic, public key and secret key."""
        return basic_authorization(self.public_key, self.secret_key)
