"""Reads what `arttrace dataset` wrote with the library that owns the format, in an environment that has it.

python owners.py NAME FILE: prints, as one JSON document, what the library saw.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments }}){% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer() -> Any:
    """One token per character; the mark of a turn is one too."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    marks = ["<system>", "<user>", "<assistant>", "<tool>"]
    words = {word: at for at, word in enumerate(["?", *marks, *map(chr, range(32, 127))])}
    made = Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("<[a-z]+>|."), "isolated")
    found = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?", pad_token="?")
    found.chat_template = TEMPLATE
    return found


def atif(file: str) -> Any:
    from harbor.utils.trajectory_validator import TrajectoryValidator

    seen = []
    for line in Path(file).read_text().splitlines():
        validator = TrajectoryValidator()
        seen.append({"valid": validator.validate(json.loads(line)), "errors": validator.get_errors()})
    return seen


def art(file: str) -> Any:
    """As ART reads its own JSON lines, then written by ART as Parquet and read again."""
    from art.trajectories import Trajectory
    from art.utils.trajectory_logging import read_trajectory_groups_parquet, write_trajectory_groups_parquet
    from art.utils.trajectory_migration import deserialize_trajectory_groups

    lines = Path(file).read_text()
    groups = deserialize_trajectory_groups(lines)
    whole = [
        [Trajectory.model_validate(one) for one in json.loads(line)["trajectories"]] for line in lines.splitlines()
    ]
    again = file + ".parquet"
    write_trajectory_groups_parquet(groups, again)
    assert [len(one) for one in read_trajectory_groups_parquet(again)] == [len(one) for one in groups]
    return [
        [
            {
                "reward": one.reward,
                "messages": one.messages(),
                "choices": [type(said).__name__ for said in one.messages_and_choices],
                "tokens": [
                    [item.token for item in said.logprobs.content]
                    for said in one.messages_and_choices
                    if not isinstance(said, dict) and said.logprobs is not None
                ],
                "tools": as_validated.tools,
                "histories": len(as_validated.additional_histories),
            }
            for one, as_validated in zip(group, members, strict=True)
        ]
        for group, members in zip(groups, whole, strict=True)
    ]


def verl_sft(file: str) -> Any:
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    config = OmegaConf.create({"pad_mode": "no_padding", "max_length": 4096})
    tokens = tokenizer()
    rows = MultiTurnSFTDataset(file, tokens, config)
    seen = []
    for row in (rows[at] for at in range(len(rows))):
        trained = row["input_ids"][row["loss_mask"].bool()]
        seen.append({"text": tokens.decode(row["input_ids"]), "trained": tokens.decode(trained)})
    return {"rows": seen, "tools": rows.tools}


def verl_rl(file: str) -> Any:
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = OmegaConf.create({"filter_overlong_prompts": True, "filter_overlong_prompts_workers": None})
    rows = RLHFDataset(file, tokenizer(), config)
    names = ("raw_prompt", "data_source", "reward_model", "index")
    return [{name: row[name] for name in names} for row in (rows[at] for at in range(len(rows)))]


def sharegpt(file: str) -> Any:
    """Each row as LLaMA-Factory aligns it, and what its template for Qwen says of the calls and the tools."""
    import importlib.machinery
    import os
    import types

    # It imports a reader of sound files, which nothing here needs.
    sound = types.ModuleType("torchaudio")
    sound.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    sys.modules["torchaudio"] = sound
    os.environ["DISABLE_VERSION_CHECK"] = "1"  # of libraries that train, which it is not asked to do
    from datasets import load_dataset
    from llamafactory.data.converter import SharegptDatasetConverter
    from llamafactory.data.formatter import FunctionFormatter, ToolFormatter
    from llamafactory.data.parser import DatasetAttr

    attributes = DatasetAttr("file", "rows", formatting="sharegpt")
    attributes.join({"columns": {"messages": "conversations", "system": "system", "tools": "tools"}})
    convert = SharegptDatasetConverter(attributes, None)
    calls = FunctionFormatter(slots=["{{content}}"], tool_format="qwen")
    offered = ToolFormatter(tool_format="qwen")
    seen = []
    for row in load_dataset("json", data_files=file)["train"]:
        shown = convert(row)
        said = [*shown["_prompt"], *shown["_response"]]
        seen.append(
            {
                "roles": [one["role"] for one in said],
                "answer": shown["_response"],
                "system": shown["_system"],
                "calls": [calls.apply(content=one["content"]) for one in said if one["role"] == "function"],
                "tools": offered.apply(content=shown["_tools"]) if shown["_tools"] else [],
            }
        )
    return seen


def unsloth(file: str) -> Any:
    """The conversations as Unsloth standardises them."""
    # It loads vLLM's code for AVX-512 to see whether vLLM works, and ends on a processor without.
    sys.modules["vllm"] = None  # type: ignore[assignment]
    import unsloth as _  # noqa: F401  # its readers are there after it
    from datasets import load_dataset
    from unsloth_zoo.dataset_utils import standardize_data_formats

    rows = load_dataset("json", data_files=file)["train"]
    asked, answered = ["human", "observation"], ["gpt", "function_call"]
    shown = standardize_data_formats(rows, aliases_for_user=asked, aliases_for_assistant=answered, num_proc=1)
    return [[[one["role"], one["content"]] for one in row["conversations"]] for row in shown]


def trl(file: str, kind: str) -> Any:
    """A step of a trainer of TRL's on a tiny model: how many it took, its loss, and whether the model changed."""
    sys.path.append(str(Path(__file__).parents[1] / "support"))
    import torch
    import trl
    from datasets import load_dataset
    from tiny_model import make_base_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = load_dataset("json", data_files=file)["train"]
    base = str(make_base_model(Path(file).parent / "base"))
    model = AutoModelForCausalLM.from_pretrained(base)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    settings = {
        "output_dir": str(Path(file).parent / "out"),
        "max_steps": 1,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
    }
    config, trainer = (getattr(trl, f"{kind}{ending}") for ending in ("Config", "Trainer"))
    tokens = AutoTokenizer.from_pretrained(base)
    done = trainer(model=model, args=config(**settings), train_dataset=rows, processing_class=tokens)
    result = done.train()
    changed = any(not torch.equal(weight, before[name]) for name, weight in done.model.named_parameters())
    return {"rows": len(rows), "steps": result.global_step, "loss": result.training_loss, "changed": changed}


READERS = {
    "atif": atif,
    "art": art,
    "verl-sft": verl_sft,
    "verl-rl": verl_rl,
    "sharegpt": sharegpt,
    "unsloth": unsloth,
    "trl-sft": lambda file: trl(file, "SFT"),
    "trl-prompt-completion": lambda file: trl(file, "SFT"),
    "trl-preference": lambda file: trl(file, "DPO"),
    "trl-unpaired": lambda file: trl(file, "KTO"),
}

if __name__ == "__main__":
    name, file = sys.argv[1:]
    print(json.dumps(READERS[name](file)))
