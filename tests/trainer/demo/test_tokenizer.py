"""The tokenizer: exact round trips, and histories that begin with the ids that were prompted and sampled."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.demo.model.tokenizer import build_tokenizer, call_phrases, words_of

WORDS = ["fresh", " fresh", " fig", "fig", " and", " 7", "ask", "list_price", "item", "system", "user", "assistant"]
TOKENIZER = build_tokenizer({*WORDS, *call_phrases("item")})
TEXT = st.lists(st.sampled_from([*WORDS, "\n", "<tool_call>", '"}}']) | st.text(string.printable[:95], max_size=5)).map(
    "".join
)


def ids(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@given(TEXT)
def test_text_survives(text):
    assert TOKENIZER.decode(ids(text)) == text


@given(st.lists(st.sampled_from(WORDS), min_size=1).map("".join))
def test_words_are_one_token_each_and_never_part_of_a_longer_word(text):
    for piece in TOKENIZER.convert_ids_to_tokens(ids(text)):
        assert piece in WORDS or len(piece) == 1
    assert len(ids("fig")) == 1
    assert len(ids("figure")) == 6


def test_a_call_is_few_tokens_and_parses_back():
    text = '{"name": "list_price", "arguments": {"item": "fresh fig"}}'
    assert len(ids(text)) == 6
    assert json.loads(TOKENIZER.decode(ids(text))) == json.loads(text)


@pytest.mark.parametrize("as_text", [True, False])
def test_what_follows_a_reply_begins_with_its_prompt_and_its_ids(as_text):
    tools = [{"type": "function", "function": {"name": "list_price", "parameters": {"properties": {"item": {}}}}}]
    arguments = {"item": "fresh fig"}
    call = {"name": "list_price", "arguments": json.dumps(arguments) if as_text else arguments}
    messages = [{"role": "system", "content": "ask"}, {"role": "user", "content": "fresh fig"}]
    prompt = TOKENIZER.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    sampled = ids('<tool_call>\n{"name": "list_price", "arguments": {"item": "fresh fig"}}\n</tool_call><|im_end|>')
    later = [
        *messages,
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": "7"},
        {"role": "tool", "content": "8"},
    ]
    text = TOKENIZER.apply_chat_template(later, tools=tools, add_generation_prompt=True, tokenize=False)
    assert ids(text)[: len(ids(prompt)) + len(sampled)] == ids(prompt) + sampled
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert "<tools>\nlist_price(item)\n</tools>" in text


def test_words_are_taken_from_text_and_not_from_markup():
    assert words_of(["<|im_start|>user\nfresh fig 12.<tool_call>"]) == {"user", "fresh", " fig", " 12"}
