"""Files that a person writes for a command, as PowerShell and Windows' editors write text: with a mark before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arttrace.commands.scoring.judge_options import read_rubric
from arttrace.commands.shared.options import _read_key
from arttrace.views.costs import prices
from trainer.daemon.config import _of_file
from trainer.rollouts.input_file import read_inputs

READERS: dict[str, tuple[Callable[[Path], Any], str, Any]] = {
    "a key": (lambda file: _read_key(None, None, file), "k1\r\n", "k1"),  # type: ignore[arg-type]
    "a rubric": (lambda file: read_rubric(str(file)), "Be kind é.\r\nAlways.", "Be kind é.\nAlways."),
    "inputs": (read_inputs, json.dumps({"q": "é\u2028"}, ensure_ascii=False) + "\r\n{}\r\n", [{"q": "é\u2028"}, {}]),
    "prices": (lambda file: [*prices._own(str(file))], '{"é": {"input": 1, "output": 2}}', ["é"]),
    "a configuration": (_of_file, 'policy = "é"\r\n', {"policy": "é"}),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("what", READERS)
def test_it_is_read(what: str, encoding: str, tmp_path: Path) -> None:
    read, text, expected = READERS[what]
    file = tmp_path / "file"
    file.write_bytes(text.encode(encoding))
    assert read(file) == expected


@pytest.mark.parametrize("what", READERS)
def test_what_is_no_text_is_refused_by_name(what: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    for content in (b'{"a": "\xff"}', b"\xff\xfea\x00\x00\xd8"):
        file.write_bytes(content)
        with pytest.raises(Exception, match=r"file") as refused:
            READERS[what][0](file)
        assert not isinstance(refused.value, ValueError), "a traceback"
