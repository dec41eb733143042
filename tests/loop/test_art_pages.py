"""The programs of ART's documentation are run as printed: with another import line, and what cannot be had here."""

from __future__ import annotations

from types import ModuleType

import art_programs
import pytest

import arttrace
import arttrace.loop

PROGRAMS = sorted(path.stem for path in art_programs.FOLDER.glob("*.py"))
SITE = {"base_model": "/base", "url": "http://127.0.0.1:1", "file": "/train.jsonl"}


def test_every_program_of_the_page_is_there() -> None:
    titles = [line.removeprefix("## ") for line in (art_programs.FOLDER / "page.md").read_text().splitlines()]
    assert {*PROGRAMS, "server"} <= set(titles)
    assert len([line for line in titles if line.startswith("```") and line != "```"]) == len(PROGRAMS) + 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_not_filled_in_is_as_printed(name: str) -> None:
    assert art_programs.differs(name, art_programs.filled_in(name)) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_run_with_another_import_line_and_what_cannot_be_had(name: str) -> None:
    different = art_programs.differs(name, art_programs.as_run(art_programs.filled_in(name), SITE))
    replaced = (*art_programs.IMPORTS, *art_programs.UNAVAILABLE)
    assert [line for page, line in different if not any(one in page for one in replaced)] == []
    imported = [line for page, line in different if page.startswith(tuple(art_programs.IMPORTS))]
    assert [line for line in imported if not line.startswith(tuple(art_programs.IMPORTS.values()))] == []


def test_whatever_the_tables_name_is_printed() -> None:
    page = (art_programs.FOLDER / "page.md").read_text()
    assert [one for one in (*art_programs.IMPORTS, *art_programs.UNAVAILABLE) if one not in page] == []


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        (arttrace.loop, "dev", "options of `arttrace serve`"),
        (arttrace.loop, "ServerlessBackend", "ServerBackend"),
        (arttrace.loop, "rewards", "from arttrace.rewards import"),
        (arttrace.loop, "utils", "retry, limit_concurrency"),
        (arttrace.loop, "capture_auto_trajectory", "@arttrace.trajectory"),
        (arttrace.loop, "yield_trajectory", "return art.Trajectory"),
        (arttrace.loop, "capture_yielded_trajectory", "@arttrace.trajectory"),
        (arttrace.loop, "SFTConfig", "TrainSFTConfig"),
        (arttrace.loop, "Backend", "LocalBackend"),
        (arttrace.loop, "TrainResult", "TrainedSteps"),
        (arttrace.loop, "LocalTrainResult", "TrainedSteps"),
        (arttrace.loop, "pipeline_trainer", "arttrace train --daemon"),
        (arttrace.loop, "metrics", "model.log(groups, metrics={...})"),
        (arttrace.loop, "costs", "arttrace stats"),
        (arttrace.loop, "types", "Messages, MessagesAndChoices, Tools"),
        (arttrace.loop, "PipelineTrainer", "arttrace train --daemon"),
        (arttrace.loop, "init_chat_model", "ChatOpenAI(base_url=model.inference_base_url"),
        (arttrace.loop, "wrap_rollout", "pass the rollout as it is"),
        (arttrace, "emit_reward", "arttrace.reward(value)"),
        (arttrace, "LitAgent", "@arttrace.trajectory"),
        (arttrace, "Trainer", "arttrace train"),
    ],
)
def test_a_name_that_another_library_has_is_answered_with_ours(module: ModuleType, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as shown:
        getattr(module, name)
    assert remedy in str(shown.value)
    assert not hasattr(module, name)
    with pytest.raises(ImportError, match=f"cannot import name '{name}'") as of_import:
        exec(f"from {module.__name__} import {name}")
    assert remedy in str(of_import.value)


def test_a_name_that_nobody_has_is_an_attribute_error_as_everywhere() -> None:
    for module in (arttrace, arttrace.loop):
        with pytest.raises(AttributeError) as shown:
            module.nothing  # noqa: B018
        with pytest.raises(ImportError, match="cannot import name 'nothing'"):
            exec(f"from {module.__name__} import nothing")
        assert str(shown.value) == f"module {module.__name__!r} has no attribute 'nothing'"
