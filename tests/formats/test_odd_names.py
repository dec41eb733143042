"""Files whose names are no UTF-8."""

from __future__ import annotations

import json
import os
from pathlib import Path

from click.testing import CliRunner

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.system.paths import DataDir

CHAT = {"messages": [{"role": "user", "content": "add 1 and 2"}, {"role": "assistant", "content": "3"}]}


def test_a_file_whose_name_is_no_utf8_is_imported(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"chats\xff.jsonl")
    file.write_text(json.dumps(CHAT))
    done = CliRunner().invoke(cli, ["import", str(file), "--json", "--dir", str(tmp_path / "data")])
    [said] = json.loads(done.output)
    assert (said["traces"], said["refused"]) == (1, 0)
    assert said["file"] == str(tmp_path / "chats\ufffd.jsonl")
    with Store.open(DataDir(tmp_path / "data")) as store:
        assert store.sql("SELECT project FROM trajectories")[1] == [("chats\ufffd",)]
