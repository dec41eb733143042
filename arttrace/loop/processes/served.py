"""What a gateway says that it serves: the one of a data directory, and the step of the version at a URL."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.users_text import first_line
from arttrace.system.addresses import verified, why_never_asked
from arttrace.system.errors import ServingError
from arttrace.system.paths import DataDir
from arttrace.system.processes import is_alive

_ANSWERS_WITHIN_S = 5.0
_STEP_WITHIN_S = 30.0


class Served(msgspec.Struct, frozen=True):
    """What `serving.json` and the first line of `arttrace serve --json` say."""

    url: str
    policy: str
    base_model: str
    pid: int

    def is_of(self, policy: str, base_model: str | Path) -> bool:
        """Whether it serves the policy on the base model, which may be given by its name on the hub: then it lies in
        the hub's cache.

        Args:
            policy: The policy's name.
            base_model: The base model's directory or name.
        """
        named = Path(base_model)
        cached = f"models--{str(base_model).replace('/', '--')}"
        is_served = Path(self.base_model).absolute() == named.absolute()
        return self.policy == policy and (is_served or (not named.exists() and cached in Path(self.base_model).parts))


class ServedStep(int):
    """A step's number. Awaiting it gives it: ART's programs do, `range(await model.get_step(), 10)`."""

    def __await__(self) -> Generator[Any, None, int]:
        yield from ()
        return int(self)


async def running_gateway(data: DataDir, key: str) -> Served | None:
    """The gateway that runs on a data directory; None where none does.

    Args:
        data: The data directory.
        key: The gateway's key.

    Raises:
        ServingError: It runs and does not answer, or asks for another key.
    """
    try:
        served = msgspec.json.decode(data.serving.read_bytes(), type=Served)
    except (FileNotFoundError, *UNREADABLE):
        return None
    async with httpx.AsyncClient(
        timeout=_ANSWERS_WITHIN_S,
        headers={"authorization": f"Bearer {key}"},
        trust_env=False,
        verify=verified(served.url),
    ) as client:
        try:
            answer = await client.get(f"{served.url}/arttrace/status")
        except httpx.HTTPError as error:
            if isinstance(error, httpx.ConnectError) or not is_alive(served.pid):
                return None  # it died without removing its file
            said = f"the gateway at {served.url} does not answer: {first_line(error)}"
            raise ServingError(said, f"Wait until it has less to do, or stop it: kill {served.pid}") from error
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise ServingError(f"the gateway at {served.url} asks for a key", "Set ARTTRACE_API_KEY to its key.")
    return served if answer.status_code == httpx.codes.OK else None


def served_step(policy: str, url: str, key: str) -> ServedStep:
    """The step that made the version which a gateway serves now; 0 is the base model.

    Args:
        policy: The policy's name, for the error.
        url: The gateway's address.
        key: Its key.

    Raises:
        ServingError: It does not answer.
    """
    url = f"{url}/arttrace/status"
    refused = f"the gateway of {policy} does not report its step"
    if why := why_never_asked(url, key):
        raise ServingError(f"{refused}: {why}")
    try:
        headers = {"authorization": f"Bearer {key}"}
        answer = httpx.get(url, headers=headers, timeout=_STEP_WITHIN_S, trust_env=False, verify=verified(url))
        if answer.status_code != httpx.codes.OK:
            raise ServingError(f"{refused}: it answers {answer.status_code}")
        return ServedStep(answer.json()["step"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise ServingError(f"{refused}: {error}") from error
