"""What the gateway reports to other processes: serving.json, its status, and the report of a publication."""

from __future__ import annotations

import msgspec


class PublishReport(msgspec.Struct, frozen=True):
    """What a publication did.

    `max_logprob_change` is the largest absolute difference between the log-probabilities (natural logarithms) that
    the new and the previous version gave on the probe prompt. `unchanged_weights` says that the adapter's weights
    equal the previous version's, so that 0 was expected. `seconds` is the time until the aliases meant the new
    version, `load_seconds` the part of it that loading took.
    """

    version: str
    previous: str
    max_logprob_change: float
    seconds: float
    load_seconds: float = 0.0
    unchanged_weights: bool = False
    already_served: bool = False


class ServingFile(msgspec.Struct, frozen=True):
    """The contents of serving.json: where the gateway of a data directory listens, while it runs. `version` is what
    the aliases mean now, "" of a gateway that does not say so; `dtype` the precision that its engines were told, ""
    where they were told none."""

    url: str
    base_model: str
    policy: str
    pid: int
    log: str
    version: str = ""
    dtype: str = ""


class EngineStatus(msgspec.Struct, frozen=True):
    """An engine behind the gateway: "starting", "ready", "restarting", "lost" (it does not answer), "failed" (it died
    too often), "asleep", "waking" or "broken" (it did not wake as it was); `url` is None while there is none.
    `requests` is how many it is answering now."""

    state: str
    url: str | None
    restarts: int
    requests: int = 0


class GateStatus(msgspec.Struct, frozen=True):
    """Whether the gateway is paused, how many requests wait before it, and how many are being answered."""

    paused: bool = False
    waiting: int = 0
    answering: int = 0


class RecordingStatus(msgspec.Struct, frozen=True):
    """Records that the gateway wrote, those it could not write, and trajectories that are open."""

    recorded: int
    refused: int
    open_trajectories: int


class GatewayStatus(msgspec.Struct, frozen=True):
    """`current` is the version that the aliases mean, `step` its number (0: the base model itself).

    `requests` maps every loaded version to the number of requests it is answering now. `engine` speaks for all
    `replicas`: the first one that is ready, and the sums of their counts. `sleeps` says that they can sleep on order.
    `busy_s` is for how many seconds there was a request with an engine, since the gateway's start.
    `passed_over` is the newest version there was when `--version` asked for an older one: only a newer one takes its
    place by itself; 0 without. `max_lora_rank` is the largest rank of an adapter that the engines load; 0 where that is
    not known.
    """

    policy: str
    current: str
    step: int
    base_model: str
    requests: dict[str, int]
    engine: EngineStatus
    replicas: list[EngineStatus] = []
    gate: GateStatus = GateStatus()
    recording: RecordingStatus | None = None
    sleeps: bool = False
    busy_s: float = 0.0
    passed_over: int = 0
    max_lora_rank: int = 0

    @property
    def loaded_steps(self) -> set[int]:
        """The steps of the versions that answer, or are loaded."""
        names = (name.rpartition("@") for name in (self.current, *self.requests))
        return {int(number) for _, at, number in names if at and number.isdecimal()}
