"""The imperative API, for training loops of one's own: gather rollouts, judge them, train, repeat.

Programs written for ART run with `import arttrace.loop as art`.
"""

from arttrace.loop.backend import LocalBackend
from arttrace.loop.evaluation.ruler import ruler_score_group
from arttrace.loop.gather import TrajectoryGroup, gather_trajectories, gather_trajectory_groups
from arttrace.loop.limits import limit_concurrency, retry
from arttrace.loop.model import Model, TrainableModel, TrainConfig
from arttrace.loop.remote.backend import ServerBackend
from arttrace.loop.remote.clients import AsyncClient, Client
from arttrace.loop.remote.runner import ArtClient
from arttrace.loop.remote.skypilot import SkyPilotBackend
from arttrace.loop.trainer_process import TrainedStep
from arttrace.loop.trajectory import History, Messages, MessagesAndChoices, Tools, Trajectory
from arttrace.rewards import ruler

__all__ = [
    "ArtClient",
    "AsyncClient",
    "Client",
    "History",
    "LocalBackend",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "ServerBackend",
    "SkyPilotBackend",
    "Tools",
    "TrainConfig",
    "TrainableModel",
    "TrainedStep",
    "Trajectory",
    "TrajectoryGroup",
    "gather_trajectories",
    "gather_trajectory_groups",
    "limit_concurrency",
    "retry",
    "ruler",
    "ruler_score_group",
]
