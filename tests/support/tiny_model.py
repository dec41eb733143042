"""A random tiny model with tokenizer and chat template, and random LoRA adapters for it, made on the spot."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 320
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


_WINDOWED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
_MORE = {
    "gemma2": {"query_pre_attn_scalar": 32, "attn_logit_softcapping": 2.0, **_WINDOWED},
    "gemma3_text": {"query_pre_attn_scalar": 32, **_WINDOWED},
    "granite": {"logits_scaling": 4.0},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, **_WINDOWED},
    "qwen3_moe": {"num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": [], **_EXPERTS},
}
"""What a family's config needs besides what all have."""


def make_base_model(directory: Path, seed: int = 0, family: str = "qwen3") -> Path:
    """Two layers, hidden size 64, one token per byte; `family` is a model type of transformers."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    letters = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={letter: id for id, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=_SPECIAL,
    )
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(directory)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
        **_MORE.get(family, {}),
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def make_adapter(base_model: Path, directory: Path, seed: int) -> Path:
    """A LoRA of rank 8 whose second factor is random instead of zero, so that it changes the model."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(seed)
    base = Qwen3ForCausalLM.from_pretrained(base_model)
    tuned = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.3)
    tuned.save_pretrained(directory)
    return directory


def reference_logprobs(
    base_model: Path, adapter: Path | None, prompt: list[int], sampled: list[int], temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of `sampled` after `prompt` at a temperature, by transformers and PEFT in float32."""
    import torch
    from peft import PeftModel
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(base_model, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    picked = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(sampled)[:, None])
    return [float(value) for value in picked[:, 0]]


def make_merged(base_model: Path, directory: Path, seed: int) -> Path:
    """The model with such an adapter within its weights: another one that a LoRA can come near to."""
    import shutil

    from peft import PeftModel
    from transformers import Qwen3ForCausalLM

    adapter = make_adapter(base_model, directory.with_name(f"{directory.name}-adapter"), seed)
    shutil.copytree(base_model, directory)
    PeftModel.from_pretrained(Qwen3ForCausalLM.from_pretrained(base_model), adapter).merge_and_unload().save_pretrained(
        directory
    )
    return directory
