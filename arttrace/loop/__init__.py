"""The imperative API, for those who write a training loop: gather rollouts, judge them, train, go on."""

from arttrace.loop.backend import LocalBackend
from arttrace.loop.gather import TrajectoryGroup, gather_trajectories, gather_trajectory_groups
from arttrace.loop.model import TrainableModel
from arttrace.loop.trainer_process import TrainedStep

__all__ = [
    "LocalBackend",
    "TrainableModel",
    "TrainedStep",
    "TrajectoryGroup",
    "gather_trajectories",
    "gather_trajectory_groups",
]
