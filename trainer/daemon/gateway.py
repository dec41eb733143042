"""FoundGateway: the gateway of a data directory, looked for at every call, since it may be restarted elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arttrace.system.paths import DataDir
from trainer.serving import GatewayClient, GatewayStatus, PublishReport, find_serving
from trainer.serving.base_models import require_served
from trainer.serving.client import GatewayGone, NotDrained

FIRST_DRAIN_S, LONGEST_DRAIN_S = 30.0, 600.0


class FoundGateway:
    """Publishes where `arttrace serve` runs for the policy. While it never did, there is nobody to publish to; once it
    did, its absence is a failure that may pass: GatewayGone. Where it runs on another model than `base_model`, every
    method raises TrainingError.

    Requests get `first_drain_s` to end before a sleep, longer each time they do not: while they end no others pass.
    """

    def __init__(
        self, data: DataDir, policy: str, base_model: Path | None = None, *, first_drain_s: float | None = None
    ) -> None:
        self._data = data
        self._policy = policy
        self._base_model = base_model
        self._seen = False
        self._first_drain_s = self._drain_s = FIRST_DRAIN_S if first_drain_s is None else first_drain_s

    def publish(self, step: int, path: Path) -> PublishReport | None:
        """As GatewayClient.publish; None when nobody serves."""
        client = self._client()
        if client is None:
            return None
        try:
            return client.publish(step, path)
        finally:
            client.close()

    def status(self) -> GatewayStatus | None:
        """As GatewayClient.status; None when nobody serves."""
        client = self._client()
        if client is None:
            return None
        try:
            return client.status()
        finally:
            client.close()

    def fall_asleep(self) -> Callable[[], None]:
        """As GatewayClient.fall_asleep; nothing happens when nobody serves."""
        client = self._client()
        if client is None:
            return lambda: None
        try:
            wake = client.fall_asleep(timeout_s=self._drain_s)
        except BaseException as error:
            if isinstance(error, NotDrained):
                self._drain_s = min(2 * self._drain_s, LONGEST_DRAIN_S)
            client.close()
            raise
        self._drain_s = self._first_drain_s

        def wake_and_close() -> None:
            wake()
            client.close()

        return wake_and_close

    def _client(self) -> GatewayClient | None:
        serving = find_serving(self._data)
        if serving is not None and serving.policy == self._policy:
            require_served(serving, self._policy, self._base_model)
            self._seen = True
            return GatewayClient(serving.url)
        if self._seen:
            raise GatewayGone(
                f"`arttrace serve` does not run for {self._policy!r} any more",
                "Start it again on the same directory: it serves the newest version again.",
            )
        return None
