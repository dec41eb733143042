"""The environment variables that arttrace reads, so that one which is misspelt is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

PREFIX = "ARTTRACE_"
NAMES = frozenset(
    {
        *("API_KEY", "CAPTURE_CONTENT", "CAPTURE_HTTP", "CONTEXT", "DIR", "DISABLED", "ENDPOINT", "HTTP_SPANS"),
        *("LANGFUSE", "ORPHANS", "OTLP", "POLICY_API_KEY", "POLICY_SAMPLING", "POLICY_URL", "PRICES", "PROJECT"),
        *("PROPAGATE", "RAISE", "RETAIN", "RETAIN_SIZE", "ROLLOUT", "ROUTE", "SAMPLE", "TALLY", "TALLY_OWNER"),
        *("TEACHER_API_KEY", "TRAINABLE"),
    }
)
"""Their names without the prefix."""


_OF_DAEMON = "ARTTRACE_TRAIN_"  # the training daemon refuses a name that is no setting of its own


_named: set[str] = set()


def unread(environment: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The variables among these with arttrace's prefix that nothing reads, each with what to do about it."""
    for name in sorted(environment):
        own = name.removeprefix(PREFIX)
        if own != name and not name.startswith(_OF_DAEMON) and own not in NAMES:
            from difflib import get_close_matches

            meant = get_close_matches(own, NAMES, 1)
            unset = "Unset it, or look for its name in docs/reference/settings.md."
            yield name, f"{PREFIX}{meant[0]} may be meant." if meant else unset


def unread_for_the_first_time(environment: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The same, each once in a process."""
    for name, remedy in unread(environment):
        if name not in _named:
            named_already(name)
            yield name, remedy


def named_already(name: str) -> None:
    """This one was shown in another way: `unread_for_the_first_time` leaves it out."""
    _named.add(name)
