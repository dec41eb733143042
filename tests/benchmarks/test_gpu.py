"""benchmarks/gpu.py at toy size on the CPU: its structure and its gradients, not its times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from arttrace.system.errors import ServingError
from benchmarks.card import bundle, learner, learner_row, loop_served, publish, sleeping, trl_tree
from benchmarks.card.agreement import Agreement
from benchmarks.card.arithmetic import Task
from benchmarks.card.frame import _GRACE_S, Config, Table, run_here
from benchmarks.card.learner import PROFILE, _apart
from benchmarks.card.learner_row import Row, _absent, measure
from benchmarks.card.loop import Plan
from benchmarks.card.profiled import Operation, report
from benchmarks.card.sections import SECTIONS
from benchmarks.card.shapes import QWEN3_30B_A3B, TOY, TOY_MIXTURE, Shape, drawing_weights, make_model, why_not_fitting
from benchmarks.card.torch_engine import TorchEngine, sampled_runs
from trainer.learner import LearnerConfig, make_learner

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


ON_NO_CARD = ("msgspec", "click", "opentelemetry", "duckdb", "wrapt", "trl", "vllm", "unsloth", "datasets", "pyarrow")
"""What a machine with a GPU may lack beside torch, transformers, peft, accelerate and safetensors."""
IN_NO_CLIENT = tuple(name for name in ON_NO_CARD if bundle.remedy_for(name) != bundle.remedy("client"))
"""What of it the bundle `client` does not bring."""
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def without(names: tuple[str, ...]) -> str:
    return WITHOUT.replace("NAMES", repr(names))


def run(out: Path, *options: str, section: str = "a", **environment: str) -> list[str]:
    """The lines of a section's table."""
    command = [sys.executable, str(GPU), "--cpu", "--section", section, "--out", str(out), *options]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # beside other tests two wait for each other
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**one_thread, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    table = (out / f"{section}.txt").read_text()
    assert table in done.stdout
    return table.splitlines()


def run_in_this_process(out: Path, section: str) -> list[str]:
    """The same of a quick section, which needs no library to be missing and no process to be its own."""
    scratch = out / "scratch"
    scratch.mkdir()
    config = Config("cpu", True, out, scratch, None, ends_at=time.monotonic() + 600)
    run_here(next(one for one in SECTIONS if one.key == section), config)
    return (out / f"{section}.txt").read_text().splitlines()


ONE_AFTER_THE_OTHER = """
import sys, time
from pathlib import Path
from benchmarks.card.frame import Config, run_here
from benchmarks.card.sections import SECTIONS

out = Path(sys.argv[1])
for section in SECTIONS:
    if section.key in sys.argv[2:]:
        (scratch := out / f"scratch-{section.key}").mkdir()
        run_here(section, Config("cpu", True, out, scratch, None, time.monotonic() + section.budget_s))
"""


@pytest.fixture(scope="module")
def with_what_a_card_has(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tables of the quick sections c and d, run by one process that finds none of `ON_NO_CARD`."""
    site, out = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("out")
    (site / "sitecustomize.py").write_text(without(ON_NO_CARD))
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, str(out), "c", "d"],
        capture_output=True, text=True, timeout=600, check=False, cwd=GPU.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(site)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def gradients(lines: list[str], shape: str = "toy") -> dict[str, float]:
    """How far each layout's are from the reference's."""
    title = next(number for number, line in enumerate(lines) if line.startswith(f"{shape}, "))
    rows = {line[:26].rstrip(): line for line in takewhile(lambda line: "a group of" not in line, lines[title + 1 :])}
    return {layout: float(line.split()[-1]) for layout, line in rows.items() if "e-" in line.split()[-1]}


def test_section_a_needs_what_a_card_has_and_the_gradients_of_its_layouts_agree(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(without(ON_NO_CARD))
    out = tmp_path / "out"
    out.mkdir()
    (out / PROFILE).write_text("of another run")
    lines = run(out, "--quick", PYTHONPATH=str(tmp_path))
    apart = gradients(lines)
    assert apart.keys() == {"tree", "packed", "tree, PEFT's LoRA", "tree, plain norms", "tree, block by block"}, (
        "a row per call is the reference itself"
    )
    mixture = gradients(lines, "toy mixture")
    assert mixture.keys() == {"tree", "packed"}
    assert all(one < 1e-5 for one in (*apart.values(), *mixture.values()))
    profile = (out / PROFILE).read_text()
    assert profile.startswith("tree, toy: ")
    assert re.search(r"^[1-9]\d* waits of the program", profile, re.MULTILINE), profile
    assert re.search(r"^ +\d+\.\d+ +\d+\.\d +\d+ +\d+\.\d  aten::mm$", profile, re.MULTILINE), profile


def test_section_a_runs_the_layouts_that_are_named_and_knows_no_others(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    config = Config("cpu", True, tmp_path, scratch, None, ends_at=time.monotonic() + 600, layouts=("packed",))
    assert [name for name, *_ in learner.run(config).rows] == ["packed"] * 2, "of the dense toy and of the mixture"
    assert (tmp_path / PROFILE).read_text().startswith("packed, toy: ")
    with pytest.raises(ValueError, match="no such layout: forest; there are: tree; tree, varlen; "):
        learner.run(replace(config, layouts=("packed", "forest")))


@pytest.mark.parametrize("shape", [TOY, TOY_MIXTURE], ids=lambda shape: shape.name)
def test_a_shape_counts_what_its_model_has(shape: Shape, tmp_path: Path) -> None:
    make_model(shape, tmp_path, "cpu")
    with drawing_weights(shape, "cpu"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert shape.numbers() == sum(one.numel() for one in model.parameters() if one.ndim > 1)
    assert {one.dtype for one in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("gib", "said"), [(140, ""), (64, "Qwen3-30B-A3B has 57 GiB of weights, the card 64 GiB")])
def test_a_mixture_too_large_for_the_card_is_said(gib: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=gib << 30))
    assert said in (why := why_not_fitting(QWEN3_30B_A3B, "cuda"))
    assert bool(why) == bool(said)
    assert why_not_fitting(QWEN3_30B_A3B, "cpu") == ""


def test_a_profile_counts_what_runs_at_once_once_and_the_gaps_between() -> None:
    ran = [
        Operation("kernel", 0, 100),
        Operation("kernel", 110, 160),
        Operation("copy", 50, 130),  # beside both
        Operation("last", 460, 500),
    ]
    first, gaps, _waits, _kinds, _, *rows = report(ran, seconds=0.001).splitlines()
    assert first == "1.0 ms under the profiler, 4 operations, busy 0.2 ms (20 %)"
    assert gaps == "1 gaps of 0.3 ms in all, 1 of 20 us and more: 0.3 ms"
    assert [row.split() for row in rows] == [
        ["0.15", "55.6", "2", "75.0", "kernel"],
        ["0.08", "29.6", "1", "80.0", "copy"],
        ["0.04", "14.8", "1", "40.0", "last"],
    ]


def test_a_profile_says_how_often_the_program_waited_and_what_kinds_of_operations_ran() -> None:
    names = (
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
        "triton_tem_fused_flex_attention_backward_0",
        "void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>",
        "Memcpy DtoH (Device -> Pageable)",
        "void at::native::vectorized_elementwise_kernel<4>",
    )
    ran = [Operation(name, 1000 * at, 1000 * (at + 1)) for at, name in enumerate(names)]
    waits = [Operation("cudaStreamSynchronize", 0, 500), Operation("cudaDeviceSynchronize", 4000, 6000)]
    _, _, waited, kinds, *_ = report(ran, 0.006, waits).splitlines()
    assert waited.startswith("2 waits of the program for the device, 2.5 ms")
    assert kinds == "attention 2.0 ms, products 2.0 ms, copies 1.0 ms, other passes 1.0 ms"


def test_a_steps_time_is_without_what_the_comparison_of_gradients_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying them off a card stood in every row's time."""
    copied = []
    monkeypatch.setattr(learner_row, "_gradients", lambda model: copied.append(model) or {})
    base = make_model(TOY, tmp_path / "toy", "cpu")
    case, file = ("synthetic", 64, 2, 3), str(tmp_path / "gradients.pt")
    found = measure(Row("tree", "toy", str(base), case, "cpu", "float32", 2048, file, None, 3, False))
    assert len(copied) == 1
    assert (found["kept"], found["compiled"]) == (TOY.layers, 0), "none is computed again without checkpointing"
    row = Row("tree, layers again", "toy", str(base), case, "cpu", "float32", 2048, file, None, 1)
    assert measure(row)["kept"] == 0


@pytest.mark.parametrize(("compiles", "steps"), [((3, 0, 0), 2), ((0, 0, 0), 1), ((3, 2, 0), 3)])
def test_a_step_that_compiled_does_not_stand_for_those_that_do_not(
    compiles: tuple[int, ...], steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long first step was measured alone: with the compilation that made it long."""
    made = iter(compiles)
    monkeypatch.setattr(learner_row, "_WARM_S", 0.0)
    monkeypatch.setattr(learner_row, "compiled_since", lambda before=None: 0 if before is None else next(made))
    base = make_model(TOY, tmp_path / "toy", "cpu")
    case, file = ("synthetic", 64, 2, 3), str(tmp_path / "gradients.pt")
    found = measure(Row("tree", "toy", str(base), case, "cpu", "float32", 2048, file, None, 3, False))
    assert (found["measured"], found["compiled"]) == (steps, 0)


def test_a_profile_of_nothing_is_still_a_report() -> None:
    assert report([], seconds=0.5).startswith("500.0 ms under the profiler, 0 operations, busy 0.0 ms (0 %)\n0 gaps")


def test_what_the_client_bundle_is_for_needs_nothing_that_it_does_not_bring() -> None:
    imports = "\n".join(f"import {name}" for name in bundle.BUNDLES["client"].imports)
    done = subprocess.run(
        [sys.executable, "-c", without(IN_NO_CLIENT) + imports],
        capture_output=True, text=True, timeout=120, check=False, cwd=GPU.parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]


def test_section_b_measures_what_stands_in_front_of_a_new_version_and_what_behind_it(tmp_path: Path) -> None:
    name, *numbers = run_in_this_process(tmp_path, "b")[-1].rsplit(maxsplit=8)
    assert name == "toy, rank 8"
    mib, bare, write, identify, load, _first, in_front, behind = numbers
    assert load == "-", "no vLLM at toy size"
    assert float(mib) > 0
    assert float(bare.split("/")[0]) >= 0
    medians, least = zip(*(map(float, cell.split("/")) for cell in (write, identify, behind, in_front)), strict=True)
    assert all(0 < one <= median for one, median in zip(least, medians, strict=True))
    assert medians[3] > medians[2]


def test_section_e_catches_every_version_that_was_left_behind_and_refuses_no_other(tmp_path: Path) -> None:
    rows = [line.split() for line in run_in_this_process(tmp_path, "e")[-2:]]
    for (_toy, dtype, steps, mean, high, most, fresh, stale, caught, _of, tried, alarms), (
        expected,
        least,
        bound,
    ) in zip(rows, [("float32", 0, 1e-4), ("bfloat16", 1e-4, 1e-2)], strict=True):
        assert (dtype, steps, caught, tried, alarms) == (expected, "4", "2", "2", "0")
        assert least < float(mean) <= float(high) <= float(most) < bound
        assert float(fresh.split("..")[1]) < 0.5 < float(stale.split("..")[0])


def test_section_d_makes_a_model_that_gets_better_with_what_a_card_has(with_what_a_card_has: Path) -> None:
    lines = (with_what_a_card_has / "d.txt").read_text().splitlines()
    row = next(line for line in lines if line.startswith("plain torch sampler")).removeprefix("plain torch sampler")
    rewards, _before, _after, steps, rollout, step, _publish, engine, learner = row.split()
    first, last = map(float, rewards.split(">"))
    assert last > first + 0.1
    assert steps == "10"
    assert min(float(rollout), float(step)) > 0
    assert all(0 <= int(share.removesuffix("%")) <= 100 for share in (engine, learner))
    for name in ("client", "vllm"):
        assert f"with vLLM: needs bundle {name}, made by `python benchmarks/card/bundle.py {name}`" in lines


def test_section_c_scores_as_before_once_the_engine_woke(with_what_a_card_has: Path) -> None:
    lines = (with_what_a_card_has / "c.txt").read_text().splitlines()
    name, *numbers = next(line for line in lines if line.startswith("plain torch sampler")).rsplit(maxsplit=6)
    assert name == "plain torch sampler"
    assert numbers[:2] == ["-", "-"], "there is no card whose memory could come back"
    assert float(numbers[-1]) < 1e-6
    assert "vLLM: needs bundle vllm, made by `python benchmarks/card/bundle.py vllm`" in lines


def test_a_step_too_small_to_tell_versions_apart_by_counts_as_none_that_was_looked_at(tmp_path: Path) -> None:
    learner = make_learner(make_model(TOY, tmp_path / "toy", "cpu"), LearnerConfig(lora_rank=8, learning_rate=1e-3))
    engine, seen = TorchEngine(learner.base_model, learner), Agreement(learner)

    def runs(version: str, *, different: int) -> list[Any]:
        rows = [[*range(8), *range(100 * (number % different), 100 * (number % different) + 8)] for number in range(8)]
        return sampled_runs(rows, 8, engine.score(rows, 8), version)

    learner.step(runs("policy@0", different=8))
    seen.look_at_stale(runs("policy@1", different=2), "policy@1")
    assert seen.tried == 0
    seen.look_at_stale(runs("policy@1", different=8), "policy@1")
    assert (seen.tried, seen.caught) == (1, 1), "the engine was given no new version"


def test_a_row_that_fails_is_said_and_ends_no_other(tmp_path: Path) -> None:
    table = Table("title", ("name", "number"), tmp_path / "x.txt")
    with table.attempt("one"):
        raise ModuleNotFoundError("No module named 'duckdb'", name="duckdb")
    with table.attempt("two"):
        raise RuntimeError("CUDA error: out of everything")
    with table.attempt("three"):
        table.add("three", 3)
    lines = (tmp_path / "x.txt").read_text().splitlines()[2:]
    assert lines[0] == "one: needs bundle client, made by `python benchmarks/card/bundle.py client`"
    assert lines[1] == "two: failed: RuntimeError: CUDA error: out of everything"
    assert lines[2].split() == ["three", "3"]
    assert table.failures == 1


def test_sections_fit_into_calls_of_ten_minutes_and_half_an_hour_together() -> None:
    assert all(section.budget_s + _GRACE_S <= 560 for section in SECTIONS)
    assert sum(section.budget_s for section in SECTIONS) <= 28 * 60


@pytest.mark.parametrize("section", ["b", "c", "d"])
def test_a_vllm_that_starts_slowly_is_said_before_its_section_is_stopped(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def start(*_: Any, timeout_s: float = 600.0, **__: Any) -> Any:
        waits.append(timeout_s)
        raise ServingError("`arttrace serve` was not ready")

    nothing: Any = lambda *_, **__: None  # noqa: E731
    for name in ("trainer.serving.start_serving", "trainer.learner.make_learner"):
        monkeypatch.setattr(name, start if name.endswith("serving") else nothing)
    for module in (publish, sleeping):
        monkeypatch.setattr(module, "make_model", lambda *_: tmp_path)
        monkeypatch.setattr(module, "add_tokenizer", nothing)
    monkeypatch.setattr(sleeping, "_held", lambda _: 0.0)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    config = Config("cuda", False, tmp_path, tmp_path, None, time.monotonic() + 75.0)
    table = Table("title", ("one",), tmp_path / "table.txt")
    parts: dict[str, Any] = {
        "b": lambda: publish._engine(config, table, TOY, 8).__enter__(),
        "c": lambda: sleeping._vllm_row(config, table, TOY, tmp_path, None, []),
        "d": lambda: loop_served.with_vllm(config, table, tmp_path, Task(5, 0, None), Plan(1, 1, 1, 1, 1e-4)),
    }
    with pytest.raises(ServingError):
        parts[section]()
    (waited,) = waits
    assert 0 < waited <= 75.0


def test_trls_tree_names_its_bundle_where_no_trl_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "trl", raising=False)
    assert _absent("TRL's tree") == ["trl-tree"]
    (tmp_path / trl_tree.FILE.parent).mkdir(parents=True)
    (tmp_path / trl_tree.FILE).touch()
    assert _absent("TRL's tree") == []
    assert _absent("stock TRL")[0] == "trl", "a folder with that one file is no TRL"


@pytest.mark.full
def test_trls_tree_has_the_gradients_of_a_row_per_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.make("trl-tree", tmp_path / "bundles", tmp_path / "wheels", 90)
    monkeypatch.setattr(sys, "path", [*sys.path, *map(str, bundle.unpack(tmp_path / "bundles", tmp_path / "unpacked"))])
    base = make_model(TOY, tmp_path / "toy", "cpu")
    case, files = ("synthetic", 64, 2, 3), [str(tmp_path / name) for name in ("reference.pt", "gradients.pt")]
    row = Row("row per call", "toy", str(base), case, "cpu", "float32", 2048, files[0], None, 1, False)
    wanted = measure(row)
    found = measure(replace(row, layout="TRL's tree", gradients=files[1]))
    assert found["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
    assert found["tokens"] < wanted["tokens"] / 2
    assert (_apart(*map(Path, files)) or 1.0) < 1e-5


@pytest.mark.full
def test_section_a_names_the_rivals_that_are_missing_and_measures_those_that_are_there(tmp_path: Path) -> None:
    lines = run(tmp_path)
    for layout in ("stock TRL", "TRL's tree", "Unsloth", "tree, compiled", "tree, Liger"):
        assert sum(line.startswith(layout) for line in lines) == 1, lines
    assert not any("failed" in line for line in lines), lines


@pytest.mark.full
def test_section_b_measures_the_way_to_vllms_first_token(tmp_path: Path) -> None:
    toy = next(line for line in run(tmp_path, section="b") if line.startswith("toy, rank 8"))
    load, first = (float(cell.split("/")[0]) for cell in toy.split()[-4:-2])
    assert 0 < load < first


@pytest.mark.full
def test_section_d_serves_by_vllm_and_compares_what_it_sampled(tmp_path: Path) -> None:
    lines = run(tmp_path, section="d")
    for name, steps in (("vLLM, recorded runs", "30"), ("vLLM, bfloat16", "10")):
        at = next(number for number, line in enumerate(lines) if line.startswith(name))
        assert lines[at].removeprefix(name).split()[3] == steps
        caught, tried = re.findall(r"stale caught: (\d+) of (\d+)$", lines[at + 1])[0]
        assert int(caught) == int(tried) > 0
        fresh, stale = re.findall(r"fresh \S+\.\.(\S+), stale (\S+)\.\.", lines[at + 2])[0]
        assert float(fresh) < 0.5 < float(stale)
