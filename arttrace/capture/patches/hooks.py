"""Installs the hooks into other libraries' modules, each once the user's program has imported it and not before."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import wrapt

from arttrace.capture.base.guard import Guard
from arttrace.capture.export import lifecycle
from arttrace.capture.patches import endings, threads
from arttrace.capture.patches import registry as patches
from arttrace.system import native_threads

_HOOKS = (
    ("httpx", "httpx:install"),
    ("httpx2", "httpx:install"),
    ("httpx", "outgoing_headers:install"),  # after the taps, so that these see the headers that go out
    ("httpx2", "outgoing_headers:install"),
    ("httpx", "http_spans:install_httpx"),
    ("httpx2", "http_spans:install_httpx"),
    *(
        (f"{client}._base_client", "model_clients.stainless:install")
        for client in ("openai", "anthropic", "groq", "together", "cerebras.cloud.sdk", "fireworks", "sambanova")
    ),
    ("google.genai._api_client", "model_clients.google:install"),
    ("mistralai.basesdk", "model_clients.mistral:install"),
    ("mistralai.client.basesdk", "model_clients.mistral:install"),
    *(
        (f"{copy}.transports._{kind}", f"model_clients.lm15:install_{kind}")
        for copy in ("lm15", "dspy._vendor.lm15")
        for kind in ("sync", "async")
    ),
    ("requests.sessions", "requests_aiohttp:install_requests"),
    ("requests.sessions", "outgoing_headers:install_requests"),
    ("requests.sessions", "http_spans:install_requests"),
    ("botocore.endpoint", "model_clients.bedrock:install_calls"),
    ("botocore.httpsession", "model_clients.bedrock:install_requests"),
    ("botocore.eventstream", "model_clients.bedrock:install_events"),
    ("websockets.sync.client", "model_clients.websockets:install_sync"),
    ("websockets.asyncio.client", "model_clients.websockets:install_async"),
    ("websocket._core", "model_clients.websockets:install_websocket_client"),
    ("aiohttp", "model_clients.websockets:install_aiohttp"),
    ("aiohttp", "outgoing_headers:install_aiohttp"),
    ("aiohttp", "http_spans:install_aiohttp"),  # before the next, so that a model call is known to be one
    ("aiohttp", "requests_aiohttp:install_aiohttp"),
    ("opentelemetry.trace", "otel_tracers:install_api"),
    ("opentelemetry.sdk.trace", "otel_tracers:install_sdk"),
    ("mcp.client.session", "frameworks.mcp:install"),
    ("langchain_core.tools.base", "frameworks.langchain.tools:install"),
    ("langgraph.pregel.main", "frameworks.langchain.langgraph:install"),
    ("langchain_core.runnables.base", "frameworks.langchain.steps:install_chains"),
    ("langchain_core.runnables.fallbacks", "frameworks.langchain.steps:install_fallbacks"),
    ("langchain_core.language_models.chat_models", "frameworks.langchain.steps:install_models"),
    ("langgraph._internal._runnable", "frameworks.langchain.steps:install_nodes"),
    ("langgraph.pregel._runner", "frameworks.langchain.steps:install_graphs"),
    ("agents.run_internal.tool_execution", "frameworks.openai_agents:install_tools"),
    ("agents.realtime.session", "frameworks.openai_agents:install_tools"),
    ("agents.run_internal.turn_resolution", "frameworks.openai_agents:install_handoffs"),
    ("agents.tracing.spans", "frameworks.openai_agents:install_agents"),
    ("crewai.agent.core", "frameworks.crewai:install_agents"),
    ("crewai.tools.base_tool", "frameworks.crewai:install_tools"),
    ("crewai.tools.structured_tool", "frameworks.crewai:install_structured_tools"),
    ("llama_index.core.agent.workflow.base_agent", "frameworks.llama_index:install_agent"),
    ("llama_index.core.agent.workflow.multi_agent_workflow", "frameworks.llama_index:install_workflow"),
    ("agno.agent.agent", "frameworks.agno:install_agent"),
    ("agno.team.team", "frameworks.agno:install_team"),
    ("agno.tools.function", "frameworks.agno:install_tools"),
    ("autogen_core._single_threaded_agent_runtime", "frameworks.followed.autogen:install"),
    ("google.adk.telemetry.tracing", "frameworks.followed.google_adk:install"),
    ("pydantic_ai.agent", "frameworks.followed.pydantic_ai:install"),
    ("dspy.adapters.types.tool", "frameworks.dspy:install"),
    ("claude_agent_sdk._internal.transport.subprocess_cli", "frameworks.claude_agent.transport:install"),
    ("claude_agent_sdk._internal.query", "frameworks.claude_agent.tools:install"),
    ("smolagents.tools", "frameworks.smolagents:install_tools"),
    ("smolagents.agents", "frameworks.smolagents:install_agents"),
    ("os", "processes.programs:install_os"),
    ("subprocess", "processes.programs:install_subprocess"),
    ("multiprocessing.process", "processes.pools:install_process"),
    ("multiprocessing.pool", "processes.pools:install_pool"),
    ("concurrent.futures.process", "processes.pools:install_executor"),
    ("joblib.parallel", "processes.pools:install_joblib"),
    *(
        (f"{copy}.{module}", "processes.taken_along:install_cloudpickle")
        for copy in ("cloudpickle", "joblib.externals.cloudpickle", "ray.cloudpickle")
        for module in ("cloudpickle", "cloudpickle_fast")
    ),
)
"""Which module's import brings which hook of ours: `file:function`."""

_installing = Guard("installing a hook")
_undoing = Guard("taking the hooks out")
_lock = native_threads.Lock()
_installed = False
_registered = False
_removed = False


def install(*, again: bool = False) -> bool:
    """Install once, and return whether this call did; further ones do nothing. After `uninstall` only with `again`."""
    global _installed, _registered, _removed
    if _installed or (_removed and not again):
        return False
    with _lock:
        first, _installed = not _installed, True
        known, _registered, _removed = _registered, True, False
    if first:
        with _installing:
            threads.install()
            endings.install()
            lifecycle.before_exit.insert(0, _close_open_calls)
            for name, hook in _HOOKS:
                if not known:
                    wrapt.register_post_import_hook(_guarded(_named(hook)), name)
                elif name in sys.modules:  # who waits for the others' import does so still
                    _guarded(_named(hook))(sys.modules[name])
    return first


def uninstall() -> None:
    """End what is open, and make every module what it would be without arttrace."""
    global _installed, _removed
    with _lock:
        was, _installed, _removed = _installed, False, True
    if was:
        with _undoing:
            lifecycle.finish_all(_undoing)
        lifecycle.before_exit.remove(_close_open_calls)
        with _undoing:
            patches.undo()


def _named(hook: str) -> Callable[[ModuleType], None]:
    """A hook that is imported when the module is that it hooks."""
    module_name, _, function = hook.partition(":")

    def install(module: ModuleType) -> None:
        getattr(import_module(f"arttrace.capture.patches.{module_name}"), function)(module)

    return install


def _close_open_calls() -> None:
    if "arttrace.capture.calls.model_call" in sys.modules:
        sys.modules["arttrace.capture.calls.model_call"].close_open_calls()


def _guarded(hook: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def run(module: ModuleType) -> None:
        if _installed:
            with _installing:
                hook(module)

    return run


def _after_fork_in_child() -> None:
    global _lock
    _lock = native_threads.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def hooked_modules() -> set[str]:
    """The modules whose import brings a hook."""
    return {module for module, _ in _HOOKS}
