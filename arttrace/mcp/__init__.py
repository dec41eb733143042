"""MCP-RL: an agent learns to use any server of the Model Context Protocol (MCP).

Scenarios come from the server's tools and resources, rollouts call them, a judge compares the rollouts.
"""

from arttrace.loop.scenarios import Scenario
from arttrace.mcp.connection import Offer, Server, connect, read_offer
from arttrace.mcp.rollout import rollout
from arttrace.mcp.server_scenarios import generate_scenarios

__all__ = ["Offer", "Scenario", "Server", "connect", "generate_scenarios", "read_offer", "rollout"]
