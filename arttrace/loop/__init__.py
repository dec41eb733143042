"""The imperative API, for training loops of one's own: gather rollouts, judge them, train, repeat.

Programs written for ART run with `import arttrace.loop as art`.
"""

from typing import TYPE_CHECKING, Any

from arttrace.capture.api import no_capture
from arttrace.loop.backend import LocalBackend
from arttrace.loop.evaluation.ruler import ruler_score_group
from arttrace.loop.gathering.gather import gather_trajectories, gather_trajectory_groups
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.gathering.limits import limit_concurrency, retry
from arttrace.loop.groups.batches import DatasetBatch, iterate_dataset, trajectory_group_batches
from arttrace.loop.groups.captured import current_trajectory, trajectory, trajectory_group
from arttrace.loop.imitation.files import get_file_row_count, iterate_file, train_sft_from_file
from arttrace.loop.imitation.schedule import SFTChunk, create_lr_schedule, create_sft_dataset_iterator
from arttrace.loop.model import Model, TrainableModel
from arttrace.loop.processes.art_names import TrainConfig, TrainSFTConfig
from arttrace.loop.processes.trainer_process import TrainedStep, TrainedSteps
from arttrace.loop.remote.backend import ServerBackend
from arttrace.loop.remote.clients import AsyncClient, Client
from arttrace.loop.remote.runner import ArtClient
from arttrace.loop.remote.skypilot import SkyPilotBackend
from arttrace.loop.trajectory import History, Messages, MessagesAndChoices, Tools, Trajectory
from arttrace.rewards import ruler
from arttrace.system.errors import no_such_name

__all__ = [
    "ArtClient",
    "AsyncClient",
    "Client",
    "DatasetBatch",
    "History",
    "LocalBackend",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "SFTChunk",
    "ServerBackend",
    "SkyPilotBackend",
    "Tools",
    "TrainConfig",
    "TrainSFTConfig",
    "TrainableModel",
    "TrainedStep",
    "TrainedSteps",
    "Trajectory",
    "TrajectoryGroup",
    "create_lr_schedule",
    "create_sft_dataset_iterator",
    "current_trajectory",
    "gather_trajectories",
    "gather_trajectory_groups",
    "get_file_row_count",
    "iterate_dataset",
    "iterate_file",
    "limit_concurrency",
    "no_capture",
    "retry",
    "ruler",
    "ruler_score_group",
    "train_sft_from_file",
    "trajectory",
    "trajectory_group",
    "trajectory_group_batches",
]

_IN_ART = {
    "Backend": "LocalBackend, ServerBackend or SkyPilotBackend; a class of your own has their methods",
    "LocalTrainResult": "TrainedSteps, what backend.train(...) returns",
    "MegatronBackend": "LocalBackend, from arttrace.loop",
    "PipelineTrainer": "`arttrace train --daemon`, which trains as runs become ready",
    "ServerlessBackend": "ServerBackend(url) or SkyPilotBackend(), on machines of your own",
    "ServerlessTrainResult": "TrainedSteps, what backend.train(...) returns",
    "TinkerBackend": "ServerBackend(url) or SkyPilotBackend(), on machines of your own",
    "TrainResult": "TrainedSteps, what backend.train(...) returns",
    "SFTConfig": "TrainSFTConfig, from arttrace.loop",
    "auto_trajectory": "@arttrace.trajectory on the rollout",
    "backend": "LocalBackend, from arttrace.loop",
    "batches": "trajectory_group_batches, from arttrace.loop",
    "capture_auto_trajectory": "@arttrace.trajectory on the rollout",
    "capture_yielded_trajectory": "@arttrace.trajectory on the rollout",
    "costs": "the tokens of each call, which `arttrace stats` sums up",
    "convert_litellm_choice_to_openai": "nothing: append litellm's choice as it is",
    "dev": "options of `arttrace serve`, and of model.train(groups, learning_rate=...)",
    "generate_scenarios": "generate_scenarios, from arttrace.mcp",
    "get_model_step": "model.get_step()",
    "init_chat_model": "ChatOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key, "
    "model=model.inference_name), whose calls are captured as they are",
    "langgraph": "nothing: a graph's calls are captured as they are",
    "local": "LocalBackend, from arttrace.loop",
    "mcp": "arttrace.mcp",
    "metrics": "model.log(groups, metrics={...}), and metrics of a trajectory or group",
    "pipeline_trainer": "`arttrace train --daemon`, which trains as runs become ready",
    "preprocessing": "nothing: `arttrace show ID --tokens` prints what is trained on",
    "read_trajectory_groups_parquet": "`arttrace import FILE`",
    "rewards": "from arttrace.rewards import ruler, ruler_score_group",
    "serverless": "ServerBackend(url) or SkyPilotBackend(), on machines of your own",
    "skypilot": "SkyPilotBackend, from arttrace.loop",
    "tinker": "ServerBackend(url) or SkyPilotBackend(), on machines of your own",
    "trajectories": "Trajectory and TrajectoryGroup, from arttrace.loop",
    "types": "Messages, MessagesAndChoices, Tools, TrainConfig and TrainSFTConfig, from arttrace.loop",
    "utils": "retry, limit_concurrency, iterate_dataset, train_sft_from_file, create_sft_dataset_iterator, from "
    "arttrace.loop; append litellm's choices as they are",
    "wrap_rollout": "nothing: pass the rollout as it is, a graph's calls are captured",
    "write_trajectory_groups_parquet": "`arttrace dataset --format art`",
    "yield_trajectory": "return art.Trajectory(...) at the end of the rollout",
}
"""What ART's other names are here."""
_ENVIRONMENT = "a rollout of yours, which asks the model, steps what it acts on, and returns a Trajectory with a reward"
_IN_OTHERS = {
    "AgentTrainer": ("rLLM", "gather_trajectory_groups and model.train(groups), or `arttrace train`"),
    "Environment": ("verifiers", _ENVIRONMENT),
    "GRPOConfig": ("TRL", "settings of model.train(groups, learning_rate=...), or options of `arttrace train`"),
    "GRPOTrainer": ("TRL", "gather_trajectory_groups and model.train(groups), or `arttrace train`"),
    "MultiTurnEnv": ("verifiers", _ENVIRONMENT),
    "Rubric": ("verifiers", "the rollout's reward, or a function for `arttrace score --reward`"),
    "ServiceClient": ("Tinker", "TrainableModel, registered with a LocalBackend or ServerBackend(url)"),
    "SingleTurnEnv": ("verifiers", _ENVIRONMENT),
    "ToolEnv": ("verifiers", _ENVIRONMENT),
    "load_environment": ("verifiers", _ENVIRONMENT),
}

if not TYPE_CHECKING:  # to a type checker each name that is not in `__all__` is an error

    def __getattr__(name: str) -> Any:
        library, here = _IN_OTHERS.get(name, ("ART", _IN_ART.get(name)))
        raise no_such_name(__name__, name, {name: here} if here else {}, library)
