"""Folders beside those of policies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner

from arttrace.records.policy import PolicyStep
from arttrace.system.paths import DataDir
from trainer.commands.policies import command
from trainer.policies.checkpoints import Checkpoints


def test_a_folder_that_cannot_be_a_policy_is_not_listed_and_ends_no_list(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    Checkpoints(data.policies, "policy").write(1, lambda _: None, PolicyStep("policy", 1, ""))
    shutil.copytree(data.policies / "policy", data.policies / "policy (copy)")
    listed = CliRunner().invoke(command, ["--dir", str(data.root), "--json"])
    assert [line["version"] for line in json.loads(listed.stdout)] == ["policy@1"]
