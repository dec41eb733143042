"""The environment variables that arttrace reads, so that one which is misspelt is noticed."""

from __future__ import annotations

from collections.abc import Iterable

PREFIX = "ARTTRACE_"
NAMES = frozenset(
    {
        *("API_KEY", "CAPTURE_CONTENT", "CAPTURE_HTTP", "CONTEXT", "DIR", "DISABLED", "ENDPOINT", "HTTP_SPANS"),
        *("LANGFUSE", "ORPHANS", "OTLP", "POLICY_API_KEY", "POLICY_SAMPLING", "POLICY_URL", "PRICES", "PROJECT"),
        *("PROPAGATE", "RAISE", "RETAIN", "RETAIN_SIZE", "ROLLOUT", "ROUTE", "SAMPLE", "TALLY", "TALLY_OWNER"),
        "TRAINABLE",
    }
)
"""Their names without the prefix."""


_OF_DAEMON = "ARTTRACE_TRAIN_"  # the training daemon refuses a name that is no setting of its own


def unknown(environment: Iterable[str]) -> list[str]:
    """The variables among these with arttrace's prefix that nothing reads."""
    return sorted(
        name
        for name in environment
        if name.startswith(PREFIX) and not name.startswith(_OF_DAEMON) and name.removeprefix(PREFIX) not in NAMES
    )
