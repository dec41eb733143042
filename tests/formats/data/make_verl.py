"""Made verl_rollouts.jsonl, verl_validation.jsonl and verl_older.jsonl: what verl 0.9.1 dumps of rollouts, written by
its own `_write_generations` of both trainers, and decoded as they do, with the chat templates of Qwen, Gemma and Llama.

    pip download verl==0.9.1 --no-deps && unzip -d verl verl-0.9.1-py3-none-any.whl
    python tests/formats/data/make_verl.py verl
"""

import ast
import json
import os
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
)  # fmt: skip
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TIMES = {
    "type": "function",
    "function": {
        "name": "times",
        "description": "Multiplies, where a < b.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
ASKED = [{"role": "system", "content": "Be brief.\n\nUse tools."}, {"role": "user", "content": "6 x 7?\nExactly."}]
TRUTH = [{"ground_truth": "42"}]


def tokenizer() -> PreTrainedTokenizerFast:
    """One of bytes, with the tokens of the models: those that are special are not decoded, the markup is."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = Tokenizer(models.BPE(vocab={one: at for at, one in enumerate(alphabet)}, merges=[]))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    own.decoder = decoders.ByteLevel()
    own.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in SPECIAL])
    own.add_tokens([AddedToken(one, special=False, normalized=False) for one in MARKUP])
    return PreTrainedTokenizerFast(
        tokenizer_object=own, pad_token="<|endoftext|>", bos_token="<bos>", clean_up_tokenization_spaces=False
    )


TOKENIZER = tokenizer()


def decoded(text: str) -> str:
    """As the trainers decode a prompt and a response, a prompt with its padding."""
    ids = TOKENIZER.encode(f"<|endoftext|>{text}", add_special_tokens=False)
    return str(TOKENIZER.decode(ids, skip_special_tokens=True))


def printed(template: str, messages: list[Any], tools: list[Any] | None = None, *, asks: bool = True) -> str:
    found = files("trl").joinpath("chat_templates", f"{template}.jinja").read_text()
    return str(
        TOKENIZER.apply_chat_template(messages, tools, chat_template=found, add_generation_prompt=asks, tokenize=False)
    )


def called(*arguments: Any, said: str = "") -> str:
    calls = [f'<tool_call>\n{{"name": "times", "arguments": {json.dumps(one)}}}\n</tool_call>' for one in arguments]
    return "\n".join([*([said] if said else []), *calls]) + "<|im_end|>"


def told(*results: str, behind: str = "\n") -> str:
    """What the loop appends to an answer: the results as the template prints them, and what asks for the next one."""
    given = "\n".join(f"<tool_response>\n{one}\n</tool_response>" for one in results)
    return f"{behind}<|im_start|>user\n{given}<|im_end|>\n<|im_start|>assistant\n"


def writer(verl: Path, module: str) -> Any:
    """The `_write_generations` of a trainer, without what its module imports."""
    tree = ast.parse((verl / "verl" / "trainer" / "ppo" / module).read_text())
    found = next(one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == "_write_generations")
    found.decorator_list = []
    names: dict[str, Any] = {"os": os, "json": json, "np": np}
    exec(compile(ast.Module([found], []), module, "exec"), names)
    return names["_write_generations"]


def dump(write: Any, to: str, step: int, rows: list[tuple[str, str, Any, float]], **more: list[Any]) -> None:
    inputs, outputs, truths, scores = zip(*rows, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        write(
            [decoded(one) for one in inputs], [decoded(one) for one in outputs], list(truths), list(scores), more,
            folder, step,
        )  # fmt: skip
        (HERE / to).write_text((Path(folder) / f"{step}.jsonl").read_text())


if __name__ == "__main__":
    verl = Path(sys.argv[1])
    newest, older = writer(verl, "v1/trainer_base.py"), writer(verl, "ray_trainer.py")
    with_tools, plain = printed("qwen3", ASKED, [TIMES]), printed("qwen3", ASKED)
    looked = called({"a": 6, "b": 7}, said="<think>\nI look.\n</think>\n") + told("42")
    twice = called({"a": 6, "b": 7}, {"a": 1, "b": 2}) + told("42", "2")
    shortened = printed("qwen3", [*ASKED, {"role": "user", "content": "So far: 42."}])
    dump(
        newest, "verl_rollouts.jsonl", 3,
        [
            (with_tools, f"{looked}42<|im_end|>", "42", 1.0),
            (with_tools, f"{twice}It is 42.<|im_end|>", "42", 0.0),
            (with_tools, "I go on.<|im_end|>", "42", 0.5),
            (printed("qwen3", [ASKED[1]]), "42<|im_end|>", "42", 0.5),
            (shortened, "42<|im_end|>", None, 1.0),
        ],
        uid=["5d1b-a_0_0", "5d1b-a_1_0", "5d1b-a_2_0", "5d1b-a_2_1", "77c0-b_0_0"],
    )  # fmt: skip
    dump(
        newest, "verl_validation.jsonl", 3,
        [(plain, "42<|im_end|>", "42", 1.0), (plain, "41<|im_end|>", "42", 0.0)],
        reward=[1.0, 0.0], acc=[np.bool_(True), np.bool_(False)], uid=["90aa_0_0", "90aa_1_0"],
    )  # fmt: skip
    turns = "41<|im_end|>\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n42<|im_end|>"
    dump(
        older, "verl_older.jsonl", 7,
        [
            (printed("qwen2_5", ASKED), "42<|im_end|>", "42", 1.0),
            (printed("qwen2_5", ASKED), "42<|im_end|>", "42", 1.0),
            (printed("qwen2_5", ASKED), turns, "42", 0.25),
            (printed("qwen2_5", ASKED, [TIMES]), called({"a": 6}) + told("42", behind="") + "42<|im_end|>", "42", 1.0),
            (printed("gemma3", [ASKED[1]]), "42<end_of_turn>", "42", 1.0),
            (printed("llama3", ASKED), "42<|eot_id|>", "42", 1.0),
            ("6 x 7 =", " 42", "42", 1.0),
        ],
        acc=[1, 1, 0, 1, 1, 1, 1],
    )  # fmt: skip
