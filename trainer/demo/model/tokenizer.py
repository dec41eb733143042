"""The tiny base model's tokenizer: known words and phrases are one token each, any other character is one as well.

Tokens are verbatim pieces of text and decoding puts them together again, so text -> ids -> text is exact, and rendering
a conversation gives back the very ids that were sampled in it. The chat template has Qwen's shape (im_start, tool_call,
tool_response); tools are rendered as signatures, which keeps prompts short.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|im_end|>"
_PAD = "<|endoftext|>"
_START = "<|im_start|>"
_UNKNOWN = "<|unknown|>"
_SPECIAL = (_PAD, END, _START, _UNKNOWN)
_MARKUP = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_CHARACTERS = "\n " + string.ascii_letters + string.digits + string.punctuation
_WORD = re.compile(r" ?(?:[A-Za-z_]+|[0-9]+)")
_MARKUP_ELEMENT = re.compile(r"<[^<>]*>")

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- if loop.first and tools -%}
{{ '\\n<tools>' }}
{%- for tool in tools -%}
{{ '\\n' + tool.function.name + '(' + (tool.function.parameters.properties | list | join(', ')) + ')' }}
{%- endfor -%}
{{ '\\n</tools>' }}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- if not loop.first or message.content -%}{{ '\\n' }}{%- endif -%}
{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def build_tokenizer(phrases: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per phrase (the longest that fits is taken), markup element and ASCII character."""
    known = sorted({*phrases, *_MARKUP}, key=lambda phrase: (-len(phrase), phrase))
    vocabulary = [*_SPECIAL, *_CHARACTERS, *(phrase for phrase in known if len(phrase) > 1)]
    # "fig" must not be taken out of "figure".
    pieces = [re.escape(phrase) + (r"(?!\w)" if phrase[-1].isalnum() else "") for phrase in known]
    tokenizer = Tokenizer(models.WordLevel({token: id for id, token in enumerate(vocabulary)}, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*pieces, r"[\s\S]"])), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=_PAD,
        unk_token=_UNKNOWN,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def words_of(texts: Iterable[str]) -> set[str]:
    """The words and numbers of rendered conversations, each with the space before it, for `build_tokenizer`."""
    return {word for text in set(texts) for word in _WORD.findall(_MARKUP_ELEMENT.sub("", text))}


def call_phrases(parameter: str) -> set[str]:
    """The fixed text around the name and the argument of a call to a tool that takes one string."""
    return {'{"name": "', f'", "arguments": {{"{parameter}": "', '"}}'}
