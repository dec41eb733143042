"""Tools and agents as other libraries run them, recorded as `@tool` and `@agent` would: one small file per library.

Each file hooks the place where its library executes a tool; `runs.py` is what they share. A tool that passes through
several of them, or is decorated with `@tool` as well, is one execution and one span: the outermost's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType

from arttrace.capture.tool_hooks import langchain, langgraph, mcp, openai_agents

HOOKS: Iterable[tuple[str, Callable[[ModuleType], None]]] = (
    ("mcp.client.session", mcp.install),
    ("langchain_core.tools.base", langchain.install),
    ("langgraph.pregel.main", langgraph.install),
    ("agents.run_internal.tool_execution", openai_agents.install_tools),
    ("agents.realtime.session", openai_agents.install_tools),
    ("agents.tracing.spans", openai_agents.install_agents),
)
"""Post-import hooks by module name."""
