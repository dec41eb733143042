"""Tokenizers and chat templates that cannot be used: each is named with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_model import make_base_model
from transformers import ByT5Tokenizer

from arttrace.records.message import Message, TextPart
from arttrace.system.errors import TrainingError
from arttrace.trajectories.conversations import Conversation
from trainer.offline.render import Unprovable, render
from trainer.offline.step import load_tokenizer


def test_a_tokenizer_that_does_not_say_where_its_tokens_stand_is_refused(tmp_path: Path) -> None:
    slow = ByT5Tokenizer()
    slow.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    slow.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(TrainingError, match="does not say where in a text its tokens stand") as refused:
        load_tokenizer(tmp_path)
    assert "tokenizer.json" in str(refused.value.hint)


def test_a_template_may_refuse_without_a_word(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_base_model(tmp_path / "base"))
    tokenizer.chat_template = "{{ raise_exception('') }}"
    asked, answered = (Message(role, (TextPart("3"),)) for role in ("user", "assistant"))
    with pytest.raises(Unprovable, match="the chat template refuses it: TemplateError"):
        render(Conversation("t", "root", (asked, answered), (1,)), tokenizer)
