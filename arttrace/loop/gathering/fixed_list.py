"""FixedList: a list that is made anew each time it is read. A change in place would be lost, and is refused."""

from __future__ import annotations

from typing import Any, NoReturn

from arttrace.system.errors import ArttraceError


class FixedList(list[Any]):
    """A list to read. Copies, slices and sums are lists of their own; each way to change it raises ArttraceError."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ArttraceError(
            "a group's list of trajectories is not changed in place: it is made anew each time it is read",
            "Assign another one: group.trajectories = [one for one in group.trajectories if ...].",
        )

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (list(self),)
