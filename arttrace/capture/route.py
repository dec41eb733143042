"""`arttrace.route`: sends chosen model calls of an unmodified program to the policy being trained."""

from __future__ import annotations

import os
from types import TracebackType

from msgspec.structs import replace

from arttrace.capture.base.routes import Route, SamplingFields, sampling_fields
from arttrace.capture.calls import routing
from arttrace.capture.context.flow import Blocks, OpenRoute, current_flow, set_flow
from arttrace.capture.patches import hooks
from arttrace.system.addresses import is_http, without_login
from arttrace.system.errors import ArttraceError


class Routing:
    """What `arttrace.route` returns: the route holds until `remove()`, or for the length of a `with` block.

    In a `with` block it holds for what the block calls, its tasks and threads included, and for nothing beside it.
    """

    def __init__(self, route: Route) -> None:
        self.route = route
        self._blocks: Blocks[OpenRoute] = Blocks()
        routing.add(route)

    def remove(self) -> None:
        """Send calls to their own server again. A second call does nothing."""
        routing.remove(self.route)

    def __enter__(self) -> Routing:
        self.remove()
        flow = current_flow()
        block = OpenRoute(self, self.route)
        set_flow(replace(flow, routes=(*(each for each in flow.routes if not each.is_over), block)))
        self._blocks.enter(block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        flow = current_flow()
        here = next((each for each in reversed(flow.routes) if each.opened_by is self and not each.is_left), None)
        self._blocks.leave(here)
        if here is not None:
            set_flow(replace(flow, routes=tuple(each for each in flow.routes if each is not here)))


def route(
    model: str,
    *,
    to: str,
    base_url: str | None = None,
    api_key: str | None = None,
    agent: str | None = None,
    sampling: SamplingFields | None = None,
) -> Routing:
    """Send the calls of `model` to the model `to` of the OpenAI-compatible server at `base_url`.

    Args:
        model: The model's name as the program asks for it, or "*" for every model.
        to: The name it is asked for instead: "policy:latest" at arttrace's gateway.
        base_url: The server, "/v1" included; ARTTRACE_POLICY_URL by default.
        api_key: Its key; ARTTRACE_POLICY_API_KEY by default. The program's own key is never sent to it.
        agent: Only the calls that the agent of this name makes itself.
        sampling: "policy" leaves out what changes the policy's own sampling (temperature, top_p, penalties, forced tool
            calls, forced JSON), so that the calls can be trained on; "request" sends it on. ARTTRACE_POLICY_SAMPLING by
            default, else "request".

    Of several routes for one call the latest counts. Raises ArttraceError where the server is not named.
    """
    address = base_url or os.environ.get("ARTTRACE_POLICY_URL", "")
    if not is_http(address):
        raise ArttraceError(
            f"the route of {model!r} names no server: {without_login(address)!r}",
            'Give it: arttrace.route(model, to="policy:latest", base_url="http://127.0.0.1:8000/v1")',
        )
    hooks.install()
    key = api_key or os.environ.get("ARTTRACE_POLICY_API_KEY") or None
    return Routing(Route(model, to, address.rstrip("/"), key, agent, sampling_fields(sampling)))
