"""The registry of patched functions, so that `uninstrument` can restore them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

_MISSING: Any = object()


class _Patch(NamedTuple):
    owner: Any
    name: str
    before: Any  # what lay in the owner itself; missing where it only inherited it
    inside: Any
    """What the hook calls."""
    after: Any

    def is_of(self, owner: Any, name: str) -> bool:
        return self.owner is owner and self.name == name


_patches: list[_Patch] = []
_held: list[_Patch] = []
"""Those that could not be undone, as somebody else's wrapper lies around them."""


def patch(owner: Any, name: str, hook: Callable[[Any], Any]) -> Any:
    """Put `hook(what is there)` in the place of an attribute of a module or class; returns what the hook calls.

    A hook of ours that another library has kept since the last `undo` does its work again: with another around theirs
    everything would be hooked twice.
    """
    known = _held_around(owner, name)
    if known is None:
        before, inside = vars(owner).get(name, _MISSING), getattr(owner, name)
        known = _Patch(owner, name, before, inside, hook(inside))
        if isinstance(owner, ModuleType) and isinstance(known.after, FunctionType) and known.after is not inside:
            # Pickle looks for it there: `os.system` says that it is of `posix`, another library's goes by any name.
            known.after.__module__, known.after.__qualname__ = owner.__name__, name
        setattr(owner, name, known.after)
    _patches.append(known)
    return known.inside


def _held_around(owner: Any, name: str) -> _Patch | None:
    """The next of the hooks that others have kept there; None where what was there before all of them is back."""
    held = [patch for patch in _held if patch.is_of(owner, name)]
    if not held:
        return None
    if vars(owner).get(name, _MISSING) is held[0].before:
        _held[:] = [patch for patch in _held if not patch.is_of(owner, name)]
        return None
    _held.remove(held[0])
    return held[0]


def is_patched(owner: Any, name: str) -> bool:
    """Whether what lies there is ours."""
    there = vars(owner).get(name, _MISSING)
    return any(patch.after is there for patch in _patches if patch.is_of(owner, name))


def undo() -> None:
    """Put everything back, the latest first.

    What somebody else has wrapped or replaced since is theirs: it stays, and a hook of ours inside passes calls on.
    """
    while _patches:
        latest = _patches.pop()
        owner, name, before = latest.owner, latest.name, latest.before
        if vars(owner).get(name) is not latest.after:
            _held.insert(0, latest)
        elif before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
