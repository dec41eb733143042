"""The time of the gateway's last reward, kept beside the spool: a correction is later than what it corrects, also where
the gateway was started again and the clock set back in between."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from arttrace.records.record import Record
from arttrace.records.reward import Reward, reward_clock

_NAME = "last_reward"


class RewardTimes:
    """Rewards given from now on are later than those noted here, by whichever process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME
        self._last = 0
        with contextlib.suppress(OSError, ValueError):
            self._last = int(self._path.read_text())
            reward_clock.resume(self._last)

    def note(self, records: Iterable[Record]) -> None:
        """Keep the time of the rewards among records that were made here: another machine's clock says nothing of this
        one. A disk that does not take it has refused the records before."""
        last = max((record.time_ns for record in records if isinstance(record, Reward)), default=0)
        if last > self._last:
            self._last = last
            with contextlib.suppress(OSError):
                made = self._path.with_name(f".{_NAME}")
                made.write_text(str(last))
                made.replace(self._path)
