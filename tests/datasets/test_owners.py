"""What is written for another library is read by that library, in an environment that has it beside our own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from own_environment import kept_in
from stored_runs import store_runs, write_dataset

from arttrace.system.paths import DataDir

HERE = Path(__file__).parent
NEEDED_BY_VERL = ["omegaconf", "antlr4-python3-runtime==4.9.3", "ray", "msgpack", "tensordict", "pyvers", "orjson"]
PACKAGES = {
    "harbor": ["--ignore-requires-python", "harbor"],  # what it reads trajectories with runs on 3.11 too
    "art": ["openpipe-art", "polars", "polars-runtime-32"],
    "llamafactory": ["llamafactory"],
    "trl": [
        "--ignore-installed",
        "trl",
    ],  # of our own version only where there is Triton
    "verl": ["verl", *NEEDED_BY_VERL, "cloudpickle", "codetiming", "hydra-core"],
}


def environment(name: str, folder: Path) -> Path:
    """The Python of an environment with the packages, over ours; made now where it is not there yet."""
    at = folder / name
    python = at / "bin" / "python"
    if not (at / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(at)], check=True)
        [site] = at.glob("lib/python*/site-packages")
        (site / "ours.pth").write_text(sysconfig.get_path("purelib"))
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, *PACKAGES[name]], check=True, timeout=900)
        (at / "made").touch()
    return python


def seen(owner: str, form: str, tmp_path: Path, *options: str, reader: str | None = None) -> Any:
    """What the owner saw of the runs written as `form`, by the reader of that name."""
    data = DataDir(tmp_path / ".arttrace")
    store_runs(data, groups=3)
    file = tmp_path / f"rows.{'parquet' if form.startswith('verl') else 'jsonl'}"
    write_dataset(data, file, form, *options)
    environments = kept_in(tmp_path / "environments")
    python = environment(owner, environments) if owner in PACKAGES else Path(sys.executable)
    done = subprocess.run(
        [str(python), str(HERE / "owners.py"), reader or form, str(file)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_harbor_takes_every_document(tmp_path: Path) -> None:
    assert seen("harbor", "atif", tmp_path) == [{"valid": True, "errors": []}] * 12


@pytest.mark.full
def test_art_takes_every_group(tmp_path: Path) -> None:
    groups = seen("art", "art", tmp_path)
    assert [[one["reward"] for one in group] for group in groups] == [[1.0, 0.0, 0.5]] * 3
    [first, *_] = groups[0]
    assert first["choices"] == ["dict", "dict", "Choice", "dict", "Choice"]
    assert [one["role"] for one in first["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert first["messages"][-1]["content"] == "Bern."
    assert all(token.startswith("token_id:") for said in first["tokens"] for token in said)
    assert len(first["tokens"]) == 2


@pytest.mark.full
def test_verl_trains_on_the_answers(tmp_path: Path) -> None:
    found = seen("verl", "verl-sft", tmp_path)
    assert len(found["rows"]) == len(found["tools"]) == 12
    assert found["tools"][0][0]["function"]["parameters"] == {"type": "object"}
    shown = found["rows"][0]
    assert shown["text"].replace(" ", "").endswith('<assistant>find({"id":7})<tool>inBern<assistant>Bern.')
    assert shown["trained"].replace(" ", "") == 'find({"id":7})Bern.'


@pytest.mark.full
def test_verl_asks_what_the_runs_were_asked(tmp_path: Path) -> None:
    rows = seen("verl", "verl-rl", tmp_path)
    assert [row["index"] for row in rows] == ["g0", "g1", "g2"]
    assert [(one["role"], one["content"]) for one in rows[1]["raw_prompt"]] == [
        ("system", "Help."),
        ("user", "where in g1?"),
    ]


@pytest.mark.full
def test_llama_factory_skips_no_row(tmp_path: Path) -> None:
    rows = seen("llamafactory", "sharegpt", tmp_path)
    assert len(rows) == 12
    for row in rows:
        assert row["roles"] == ["user", "function", "observation", "assistant"]
        assert row["system"] == "Help."
    assert rows[0]["answer"] == [{"role": "assistant", "content": "Bern."}]
    [[call]] = rows[0]["calls"]
    assert json.loads(call.strip().removeprefix("<tool_call>").removesuffix("</tool_call>")) == {
        "name": "find",
        "arguments": {"id": 7},
    }
    assert '"name": "find"' in rows[0]["tools"][0]


@pytest.mark.full
def test_unsloth_standardises_every_row(tmp_path: Path) -> None:
    rows = seen("unsloth", "sharegpt", tmp_path, reader="unsloth")
    assert len(rows) == 12
    assert [role for role, _ in rows[0]] == ["user", "assistant", "user", "assistant"]
    assert [text for _, text in rows[0]][::3] == ["where in g0?", "Bern."]


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "options", "rows"),
    [
        ("trl-sft", (), 12),
        ("trl-prompt-completion", ("--best",), 6),
        ("trl-preference", (), 3),
        ("trl-unpaired", ("--min-reward", "0.5"), 18),
    ],
)
def test_a_trainer_of_trl_takes_a_step(form: str, options: tuple[str, ...], rows: int, tmp_path: Path) -> None:
    done = seen("trl", form, tmp_path, *options)
    assert (done["rows"], done["steps"], done["changed"]) == (rows, 1, True)
    assert math.isfinite(done["loss"])
