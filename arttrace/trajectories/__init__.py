"""Pure: spans become the agent tree, the message graph, the trajectory and its token sequences."""

from arttrace.trajectories.build import build_trajectories
from arttrace.trajectories.sequences import sequences

__all__ = ["build_trajectories", "sequences"]
