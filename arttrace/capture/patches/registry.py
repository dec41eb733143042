"""The registry of patched functions, so that `uninstrument` can restore them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

_MISSING: Any = object()


class _Patch(NamedTuple):
    owner: Any
    name: str
    before: Any  # what lay in the owner itself; missing where it only inherited it
    after: Any


_patches: list[_Patch] = []


def patch(owner: Any, name: str, hook: Callable[[Any], Any]) -> None:
    """Put `hook(what is there)` in the place of an attribute of a module or class."""
    before = vars(owner).get(name, _MISSING)
    after = hook(getattr(owner, name))
    setattr(owner, name, after)
    _patches.append(_Patch(owner, name, before, after))


def is_patched(owner: Any, name: str) -> bool:
    """Whether what lies there is ours."""
    there = vars(owner).get(name, _MISSING)
    return any(patch.after is there for patch in _patches if patch.owner is owner and patch.name == name)


def undo() -> None:
    """Put everything back, the latest first.

    What somebody else has wrapped or replaced since is theirs: it stays, and a hook of ours inside passes calls on.
    """
    while _patches:
        owner, name, before, after = _patches.pop()
        if vars(owner).get(name) is not after:
            continue
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
