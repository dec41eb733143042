"""When the recorder's worker gathers, writes and gives up the interpreter. A function of the times it is
called with: no clock.

Two threads that take turns at the interpreter cost each other more than decoding does. So what ends within a tenth of a
second (half of what a call may need to survive a kill) is worked off together, in turns too short to be felt. In a
crowd it is the other way round: where many threads want the interpreter, whoever gives it up waits behind all of them,
each for its 5 ms. There the wait for the interpreter has gathered enough already, and a turn lasts as long as the
interpreter lets a thread alone and ends with its one write.
"""

from __future__ import annotations

import math

GATHER_S = 0.1
PAUSE_S = 0.0001
"""After a turn outside a crowd: who waits for the interpreter gets it now, and not after its 5 ms."""
_TURN_S = 0.001
_CROWDED_TURN_S = 0.004
# One thread that is busy lets another one wait for its 5 ms.
_CROWDED_S = 0.01
_REMEMBERED_S = 1.0
_LATE_S = 0.12


class Turns:
    """Of one worker. `now` is the time in seconds by any one clock."""

    def __init__(self) -> None:
        self._ends = 0.0
        self._oldest = math.inf
        self._crowded_until = -math.inf

    def woke(self, asked: float, now: float) -> None:
        """The worker goes on at `now`, and would have at `asked` if the interpreter had been free."""
        if now - asked > _CROWDED_S:
            self._crowded_until = now + _REMEMBERED_S

    def is_crowded(self, now: float) -> bool:
        """Whether whoever gives up the interpreter waits for it for long."""
        return now < self._crowded_until

    def begin(self, now: float) -> None:
        """The worker has the interpreter, and nothing to write."""
        self._oldest = math.inf
        self._ends = now + (_CROWDED_TURN_S if self.is_crowded(now) else _TURN_S)

    def took(self, submitted: float) -> None:
        """A job of this turn was submitted at that time."""
        self._oldest = min(self._oldest, submitted)

    def is_over(self, now: float) -> bool:
        """Whether what the jobs of this turn made is to be written now."""
        return now >= self._ends + (_CROWDED_TURN_S if now - self._oldest > _LATE_S else 0.0)

    def gives_way(self, now: float) -> bool:
        """Whether a pause after the turn costs the jobs that wait little, and lets others go on at once."""
        return not self.is_crowded(now) and now - self._oldest <= _LATE_S
