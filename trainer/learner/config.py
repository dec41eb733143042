"""LearnerConfig: every number that decides what one optimisation step does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from arttrace.system.errors import TrainingError

Engine = Literal["packed", "trl"]
Loader = Literal["transformers", "unsloth"]
Loss = Literal["dapo", "grpo", "dr_grpo", "cispo", "gspo"]
Importance = Literal["clip", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
ImportanceLevel = Literal["token", "sequence"]
KlEstimator = Literal["k1", "k3"]
Dtype = Literal["float32", "bfloat16", "float64"]
Device = Literal["cpu", "cuda"]

# The ranks that a serving engine can be configured to accept without wasting memory on a larger one.
RANKS = (8, 16, 32, 64)
_RANK, _ALPHA = 16, 32

_CLIP = (0.2, 0.28)
_CLIP_GSPO = (3e-4, 4e-4)
_NO_BOUND = 1000.0
_LARGEST_SEED = 2**32 - 1  # of NumPy's generator, which TRL seeds too


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How to train.

    - `engine`: "packed" computes every distinct token of a batch once; "trl" feeds TRL's GRPOTrainer with padded rows.
      Both compute the same losses and gradients.
    - `loader`: who loads the base model and puts the LoRA on it: transformers and PEFT, or Unsloth with its kernels.
    - `loss`: "cispo" is the mean over all sampled tokens of the batch of clipped, detached ratio times advantage times
      log-probability (MiniMax 2025, arXiv:2506.13585), the default because it learned fastest wherever the losses
      differ (benchmarks/RESULTS.md); "dapo" is the token mean of GRPO's clipped ratio times advantage (Yu et al. 2025,
      arXiv:2503.14476), over the batch, not over each group as in the paper; "grpo" the mean over trajectories of the
      mean over each trajectory's tokens (Shao et al. 2024, arXiv:2402.03300); "dr_grpo" the sum over tokens by the
      number of trajectories times `dr_grpo_length` (Liu et al. 2025, arXiv:2503.20783); "gspo" that of grpo with one
      ratio per trajectory, the geometric mean of its tokens' (Zheng et al. 2025, arXiv:2507.18071).
    - `dr_grpo_length`: TRL's `max_completion_length`, the constant by which Dr. GRPO divides: the most tokens that a
      run of yours may sample. Another constant scales the loss, and nothing else.
    - `epsilon_low`, `epsilon_high`: the importance ratio is clipped to [1 - low, 1 + high]; None means 0.2 and 0.28,
      where the ratio is a trajectory's 3e-4 and 4e-4, as gspo's paper has them. cispo has neither: `cispo_max_ratio` is
      the bound of its ratio, TRL's `epsilon_high` there. `delta`: dual clip, the bound of the ratio where the advantage
      is negative, which nothing else bounds there (Ye et al. 2020, arXiv:1912.09729); above 1 + epsilon_high. None: no
      bound.
    - `importance_sampling_level`: "token", or "sequence" for one ratio per trajectory as gspo has it, with any loss.
    - `importance`: where the ratio starts from. "clip" takes the captured log-probabilities, whoever sampled; the
      others take those of the policy before the step, and correct for how far it has moved since sampling, by w =
      exp(before - captured), of each token, or of each trajectory ("sequence_...": the product over its tokens). With
      the bounds `importance_clip_min` (None: none) and `importance_clip_max`, "..._truncate" weighs by w brought
      between them (Espeholt et al. 2018, arXiv:1802.01561), "..._mask" by w, and by 0 outside them. TRL's
      `vllm_importance_sampling_mode`, `..._clip_min` and `..._clip_max`; its sequence is a row, ours a trajectory. None
      means "clip", but "token_truncate" for one ratio per trajectory in bfloat16 (packed engine): by rounding alone
      engine and learner differ there by more than such a ratio is clipped at.
    - `kl_weight`: TRL's `beta`, weight of the estimate of KL(policy || reference); the reference is the base model, or
      the adapter in the directory `kl_reference`. `kl_estimator` (Schulman 2020, "Approximating KL divergence"), with d
      = log reference - log policy: "k3", exp(d) - d - 1, or "k1", -d. `use_bias_correction_kl` multiplies it by the
      token's importance ratio, so that its gradient is that of the KL divergence whoever sampled (DeepSeek-V3.2,
      arXiv:2512.02556), and of a token sampled just now that of its log-probability times -d; by the ratio to the
      policy before the step where `importance` is not "clip". Without the ratio it is that times 1 - exp(d) for k3: one
      token that the reference finds thousands of times as likely can outweigh all others of a step. Of k1 it is then
      0 in the mean on fresh samples, hence no restraint (Tang and Munos 2025, arXiv:2506.09477).
      `max_kl`: refuse the step when the estimate's mean over the targets is above (nats per token).
    - `warmup_steps`: the learning rate rises linearly over so many steps. `decay`: (first, last) steps between which
      it falls linearly to a tenth; None keeps it constant. A step is one that makes a version: a training by SFT or DPO
      has one rate for all its optimizer steps.
    - `epochs`: passes over one batch; `minibatches`: optimizer steps per pass, each over its share of the trajectories.
    - `micro_batch_tokens`: at most this many tokens (distinct ones in the packed engine, padding included in the
      other) go through the model at once; one longer row goes alone. None: as many as the memory has room for. Where
      a micro-batch turns out to need more, they are halved and the step begins again. `gradient_checkpointing` computes
      each layer again in the backward pass instead of keeping what it computed; None: on CUDA, where the packed engine
      keeps as many layers of each micro-batch as the free memory has room for, and none any more once it ran out.
    - `torch_compile`: norms, rotary positions and feed-forward parts of the layers are compiled by PyTorch, each kind
      once for all layers, in the first step. `use_liger_kernel`: they are Liger's kernels (`pip install liger-kernel`,
      CUDA only). The numbers are the same within the precision.
    - `full_determinism`: a step repeats itself bit for bit on the same machine, by PyTorch's deterministic kernels,
      which may take longer; where it has none, the step is refused. What an engine samples is not repeated by that.
    - `lora_rank`: of the adapter, whose product of matrices is scaled by `lora_alpha` / `lora_rank`. None: those of the
      policy's newest version, where it has none 16 and 32.
    - `lora_targets`: names of linear modules, or "all-linear" for all but the output head; None: all-linear, and the
      attention alone in a mixture of experts, whose experts and router stay as they are.
    - `load_in_4bit`: the base model's weights in 4 bits (bitsandbytes, CUDA only).
    - `device`: where to train; None: on a CUDA card where torch finds one, on which vLLM serves too, else on the CPU.
    - `dtype`: of the base model; None: what the running `arttrace serve` was told by --vllm-arg=--dtype, else bfloat16
      on CUDA, as vLLM serves it, float32 on a CPU; beside an engine in float16 too, whose rounding is allowed for as
      that of bfloat16. The LoRA's weights and their optimizer are float32 either way;
      beside a base model in bfloat16 they are multiplied, and handed over to the engine, in bfloat16.
    - `max_logprob_difference`: a token sampled by the current version whose captured log-probability differs by more
      (nats) is left out and counted; the step is refused when that is more than one in a
      thousand (and more than one), when the mean difference is above a tenth of it, or when what was captured, or some
      runs of it, is nearer to another version than to the current one (see stale_adapter/). None means 0.01 in float32
      and 1.0 in bfloat16, where engines differ by up to 0.7; 1000 and more switches the whole check off.
    """

    engine: Engine = "packed"
    loader: Loader = "transformers"
    learning_rate: float = 5e-5
    warmup_steps: int = 0
    decay: tuple[int, int] | None = None
    lora_rank: int | None = None
    lora_alpha: int | None = None
    lora_targets: str | tuple[str, ...] | None = None
    loss: Loss = "cispo"
    epsilon_low: float | None = None
    epsilon_high: float | None = None
    cispo_max_ratio: float = 5.0
    dr_grpo_length: int = 1024
    delta: float | None = None
    importance_sampling_level: ImportanceLevel = "token"
    importance: Importance | None = None
    importance_clip_min: float | None = None
    importance_clip_max: float = 3.0
    kl_weight: float = 0.0
    kl_estimator: KlEstimator = "k3"
    use_bias_correction_kl: bool = True
    kl_reference: str | None = None
    max_kl: float | None = None
    epochs: int = 1
    minibatches: int = 1
    max_grad_norm: float = 1.0
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    micro_batch_tokens: int | None = None
    gradient_checkpointing: bool | None = None
    torch_compile: bool = False
    use_liger_kernel: bool = False
    full_determinism: bool = False
    load_in_4bit: bool = False
    max_logprob_difference: float | None = None
    seed: int = 0
    device: Device | None = None
    dtype: Dtype | None = None

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of the step that follows `step` earlier ones."""
        rate = self.learning_rate
        if step < self.warmup_steps:
            rate *= (step + 1) / (self.warmup_steps + 1)
        if self.decay is not None:
            first, last = self.decay
            done = min(max((step - first) / (last - first), 0.0), 1.0)
            rate *= 1 - 0.9 * done
        return rate

    def checked(self) -> LearnerConfig:
        """The same config. Raises TrainingError when a value makes no sense."""
        if self.rank not in RANKS:
            raise TrainingError(f"LoRA rank {self.rank} is not supported.", f"Use one of {RANKS}.")
        for name in (
            "learning_rate",
            "adam_epsilon",
            "lora_alpha",
            "epochs",
            "minibatches",
            "max_grad_norm",
            "micro_batch_tokens",
            "cispo_max_ratio",
            "dr_grpo_length",
            "importance_clip_min",
            "importance_clip_max",
            "max_kl",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise TrainingError(f"{name} must be above 0, not {value}.")
        if self.decay is not None and not 0 <= self.decay[0] < self.decay[1]:
            raise TrainingError(f"decay must name a first and a later last step, not {self.decay}.")
        for name in (
            "epsilon_low",
            "epsilon_high",
            "kl_weight",
            "weight_decay",
            "warmup_steps",
            "max_logprob_difference",
        ):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise TrainingError(f"{name} must not be negative, not {value}.")
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise TrainingError(
                    f"{name} must be finite, not {value}.", "A bound that never holds is a large number."
                )
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise TrainingError(f"seed must be a number of 0 to {_LARGEST_SEED}, not {self.seed}.")
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            raise TrainingError(f"adam_betas must be at least 0 and below 1, not {self.adam_betas}.")
        for name in ("kl_reference", "max_kl"):
            value = getattr(self, name)
            if value is not None and not self.kl_weight:
                raise TrainingError(f"{name} {value} has no effect while kl_weight is 0.", "Set a --kl-weight.")
        if not (self.importance_clip_min or 0) <= 1 <= self.importance_clip_max:
            raise TrainingError(
                f"importance_clip_min {self.importance_clip_min} and importance_clip_max {self.importance_clip_max} "
                "must be on both sides of 1, the weight of a token that the policy sampled as it is now."
            )
        for name in ("epsilon_low", "epsilon_high") if self.loss == "cispo" else ():
            if (value := getattr(self, name)) is not None:
                raise TrainingError(
                    f"{name} {value} has no effect: cispo bounds its ratio from above alone, by cispo_max_ratio.",
                    "Set --cispo-max-ratio, or a --loss that clips its ratio, such as dapo.",
                )
        if self.delta is not None and (self.loss == "cispo" or not self.delta > self.clip_range[1]):
            raise TrainingError(
                f"delta {self.delta} has no effect: "
                + (
                    "cispo bounds every ratio." if self.loss == "cispo" else f"it must be above {self.clip_range[1]:g}."
                ),
                "It bounds the ratio of a negative advantage, beyond 1 + epsilon_high; 3 is usual.",
            )
        if self.use_liger_kernel and (self.device == "cpu" or self.torch_compile):
            raise TrainingError(
                "Liger's kernels need a CUDA device."
                if self.device == "cpu"
                else "torch_compile and use_liger_kernel replace the same parts of the model.",
                "Use --torch-compile alone, or neither.",
            )
        if self.loader == "unsloth" and (self.use_liger_kernel or self.torch_compile):
            raise TrainingError(
                "Unsloth puts kernels of its own into the model: torch_compile and use_liger_kernel have no effect.",
                "Use --loader transformers, or neither.",
            )
        if self.full_determinism and (self.use_liger_kernel or self.loader == "unsloth"):
            raise TrainingError(
                f"{'Liger' if self.use_liger_kernel else 'Unsloth'} does not say that its kernels repeat themselves "
                "exactly, as full_determinism asks.",
                "Use --loader transformers without --use-liger-kernel, or leave --full-determinism out.",
            )
        if self.load_in_4bit and self.device == "cpu":
            raise TrainingError("A base model in 4 bits needs a CUDA device.", "Use --device cuda, or 16 or 32 bits.")
        return self

    @property
    def ratio_of_trajectory(self) -> bool:
        """Whether the loss has one importance ratio per trajectory."""
        return self.loss == "gspo" or self.importance_sampling_level == "sequence"

    @property
    def weight_of_trajectory(self) -> bool:
        """Whether staleness is corrected by one weight per trajectory."""
        return self.correction.startswith("sequence")

    @property
    def correction(self) -> Importance:
        """The `importance` in force."""
        if self.importance is not None:
            return self.importance
        rounded = self.ratio_of_trajectory and self.computes_in == "bfloat16" and self.engine == "packed"
        return "token_truncate" if rounded else "clip"

    @property
    def clip_range(self) -> tuple[float, float]:
        """The least and the largest importance ratio that still has a gradient."""
        low, high = _CLIP_GSPO if self.ratio_of_trajectory else _CLIP
        return (
            1 - (low if self.epsilon_low is None else self.epsilon_low),
            1 + (high if self.epsilon_high is None else self.epsilon_high),
        )

    @property
    def rank(self) -> int:
        """The `lora_rank` in force, where no policy's version has one."""
        return _RANK if self.lora_rank is None else self.lora_rank

    @property
    def alpha(self) -> int:
        """The `lora_alpha` in force, where no policy's version has one."""
        return _ALPHA if self.lora_alpha is None else self.lora_alpha

    @property
    def logprob_bound(self) -> float:
        """The bound in force on the difference of log-probabilities, in nats."""
        if self.max_logprob_difference is not None:
            return self.max_logprob_difference
        return 1.0 if self.computes_in == "bfloat16" else 0.01

    @property
    def checks_logprobs(self) -> bool:
        """Whether captured log-probabilities are compared with the learner's at all."""
        return self.logprob_bound < _NO_BOUND

    @property
    def computes_in(self) -> Dtype:
        """The precision of the base model: the one chosen, or the device's usual one."""
        return self.dtype or ("bfloat16" if self.runs_on == "cuda" else "float32")

    @property
    def runs_on(self) -> Device:
        """The device of a config that was fitted to a machine; "cpu" while it is left open."""
        return self.device or "cpu"
