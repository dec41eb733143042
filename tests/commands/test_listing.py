from __future__ import annotations

import json
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from simulated_agent import T0, Run, message, research_run

from arttrace.commands import cli
from arttrace.commands.shared.progress import Progress
from arttrace.formats.otlp.decode_json import parse_json
from arttrace.records import semconv
from arttrace.records.policy import Consumed, PolicyStep
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.store.access.late_spans import late
from arttrace.system.errors import ArttraceError, StoreError
from arttrace.system.paths import DataDir
from arttrace.views.labels import entry_name
from arttrace.views.terminal import LIST_COLUMNS


@pytest.fixture(scope="module")
def root_to_read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    with Store.open(DataDir(root), create=True) as store:
        store.append(research_run("first-run", "s1") + research_run("other-run", "s2")[:-1])
        why = "Both questions were answered. [bold]No markup[/bold]. \x1b[31m" + "Long. " * 40
        store.append(
            [Reward(id="r", trajectory_id="first-run", value=0.75, name="ruler", source="judge", explanation=why)]
        )
    return root


@pytest.fixture
def root(root_to_read: Path, tmp_path: Path) -> Path:
    """The same, to write into."""
    return copied(root_to_read, tmp_path)


def copied(root: Path, to: Path) -> Path:
    return shutil.copytree(root, to / "copy")


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--dir", str(root)], catch_exceptions=False)


def test_ls_fits_a_page_and_says_what_matters(root_to_read: Path) -> None:
    lines = run(root_to_read, "ls").output.splitlines()
    assert max(map(len, lines)) <= 100
    [whole] = [line for line in lines if line.startswith("first-ru")]
    [broken] = [line for line in lines if line.startswith("other-ru")]
    assert whole.split()[-3:] == ["policy@1", "0.750", "complete"]
    assert broken.split()[-3:] == ["policy@1", "-", "incomplete"]
    assert "s1" in whole
    assert "agent:run" in whole


def test_span_ids_that_stand_for_several_spans_are_reported_with_their_cause(tmp_path: Path) -> None:
    spans = research_run("run")
    again = [msgspec.structs.replace(span, start_ns=span.start_ns + 1) for span in spans]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*spans, *again])
    listed = run(tmp_path, "ls").output
    assert "incomplete" in listed
    assert "a program that seeds `random`" in listed
    shown = " ".join(run(tmp_path, "show", "run").output.split())
    assert "incomplete: ids of 8 spans stand for several spans Span ids that repeat come from" in shown


def test_spans_that_came_after_a_policy_was_trained_on_the_run_are_reported(tmp_path: Path) -> None:
    """In the list and of the run; a run that stayed as it was is none of them."""
    spans = [*research_run("late's-run"), *research_run("same-run")]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(spans[1:])
        consumed = tuple(Consumed(one.id, one.revision) for one in store.summaries())
        store.append([PolicyStep("policy", 3, "adapter", consumed=consumed)])
        assert late(store, store.summaries()) == {}
        store.append(spans[:1])
        assert late(store, store.summaries(), "policy") == {"late's-run": ("policy@3",)}
        assert late(store, store.summaries(), "other") == {}
    heard = "spans came after policy@3 took it; they are not trained on"
    assert [line for line in run(tmp_path, "ls").output.splitlines() if "spans came" in line] == [f"late's-r: {heard}"]
    assert [one["late"] for one in json.loads(run(tmp_path, "ls", "--json").output) if one["late"]] == [["policy@3"]]
    assert f"late        {heard}" in run(tmp_path, "show", "late's-run").output
    assert heard not in run(tmp_path, "show", "same-run").output


def test_ls_json_and_filters(root_to_read: Path) -> None:
    listed = json.loads(run(root_to_read, "ls", "--json").output)
    assert {item["id"]: item["reward"] for item in listed} == {"first-run": 0.75, "other-run": None}
    assert {item["incomplete"] for item in listed} == {"", "root missing"}
    assert [item["id"] for item in json.loads(run(root_to_read, "ls", "--json", "--group", "s1").output)] == [
        "first-run"
    ]
    assert len(json.loads(run(root_to_read, "ls", "--json", "--limit", "1").output)) == 1
    assert "no trajectories in group 'nope'" in run(root_to_read, "ls", "--group", "nope").output


@pytest.fixture(scope="module")
def several_to_read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("several")
    store_several(root)
    return root


@pytest.fixture
def several(several_to_read: Path, tmp_path: Path) -> Path:
    """The same, to write into."""
    return copied(several_to_read, tmp_path)


def store_several(root: Path) -> None:
    def run(id: str, question: str, hours_ago: float, policy: str, **root: Any) -> list[SpanRow]:
        at = int((time.time_ns() - T0) / 1e3 - hours_ago * 3.6e9)
        made = Run(id)
        made.entry = "/A/shop/agent.py:answer"
        asked = [message("user", question)]
        made.chat("m", asked, message("assistant", f"answer to {question}"), at=at + 1, policy=policy)
        arguments = json.dumps({"question": question})
        [*calls, root_span] = made.end(
            at=at + 10, ENTRY_NAME="shop.agent:answer", ENTRY_ARGUMENTS=arguments, **{"SCENARIO": None, **root}
        )
        return [*calls, replace(root_span, start_ns=T0 + at * 1000, status_code=2 * ("ERROR_TYPE" in root))]

    with Store.open(DataDir(root), create=True) as store:
        store.append(run("aa", "why?", 2, "policy@1", TAGS=["vip", "eu"], METADATA='{"task": 7}'))
        store.append(run("bb", "how?", 0, "policy@2", TAGS=["eu"]))
        store.append(run("cc", 'say "ä"', 0, "other@2", ERROR_TYPE="ValueError"))
        store.append(research_run("dd", "s2")[:-1])
        store.append([Reward(id="r", trajectory_id="aa", value=0.25), Reward(id="q", trajectory_id="bb", value=1)])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--entry", "agent:answer"], "aabbcc"),
        (["--entry", "shop.agent:answer", "--tag", "eu"], "aabb"),
        (["--tag", "eu", "--tag", "vip"], "aa"),
        (["--group", "why?"], "aa"),
        (["--group", 'shop.agent:answer {"question":"why?"}'], "aa"),
        (["--group", "wh…"], "aa"),
        (["--policy", "policy"], "aabbdd"),
        (["--policy", "policy@2"], "bb"),
        (["--status", "incomplete"], "dd"),
        (["--errors"], "ccdd"),
        (["--reward", "<0.5"], "aa"),
        (["--reward", ">= 0.25"], "aabb"),
        (["--reward", "1"], "bb"),
        (["--reward", "none"], "ccdd"),
        (["--reward", "None", "--errors"], "ccdd"),
        (["--reward", "none", "--policy", "policy"], "dd"),
        (["--since", "1h"], "bbcc"),
        (["--since", "2000-01-01", "--tag", "vip"], "aa"),
        (["--search", "ANSWER TO WHY"], "aa"),
        (["--search", 'say "Ä"'], "cc"),
        (["--search", "it's 100%"], ""),
    ],
)
def test_ls_shows_what_was_asked_for(several_to_read: Path, options: list[str], found: str) -> None:
    listed = json.loads(run(several_to_read, "ls", "--json", *options).output)
    assert "".join(sorted(one["id"] for one in listed)) == found


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--entry", "agent:answer"], ["aa", "bb", "cc"]),
        (["--group", "how?"], ["bb"]),
        (["--since", "1h", "--tag", "eu"], ["bb"]),
        (["--search", "answer to", "--since", "1h"], ["bb", "cc"]),
    ],
)
def test_other_commands_choose_the_runs_that_ls_shows(several: Path, options: list[str], ids: list[str]) -> None:
    assert sorted(one["id"] for one in json.loads(run(several, "ls", "--json", *options).output)) == ids
    rewarder = several / "worth.py"
    rewarder.write_text("def worth(run):\n    return 1.0\n")
    planned = json.loads(run(several, "score", "--reward", f"{rewarder}:worth", "--json", *options).stdout)
    assert planned["rewarded_now"] == len(ids)
    with Store.open(DataDir(several)) as store:
        worth = [one.id for one in store.summaries() if any(r.name == "worth.py:worth" for r in one.rewards)]
    assert sorted(worth) == ids
    grouped = json.loads(run(several, "group", "--by", "entry", "--dry-run", "--json", *options).output)
    assert grouped["runs"] == len(ids)
    lines = run(several, "export", *options).stdout_bytes.splitlines()
    exported = {span.attributes.get(semconv.TRAJECTORY_ID) for line in lines for span in parse_json(line).spans}
    assert exported == set(ids)


def test_a_judge_compares_the_runs_that_were_chosen(several: Path) -> None:
    with Store.open(DataDir(several)) as store:
        for id, tags in (("x1", ["eu"]), ("x2", ["eu"]), ("x3", [])):
            made = Run(id, scenario="x")
            made.chat("m", [message("user", "?")], message("assistant", id), at=1)
            store.append(made.end(TAGS=tags))
    judge = ("score", "--judge", "openai/any", "--dry-run", "--json")
    assert json.loads(run(several, *judge).output)["due"] == {"x": 3}
    assert json.loads(run(several, *judge, "--tag", "eu").output)["due"] == {"x": 2}
    with pytest.raises(StoreError, match="of 1 trajectory in the store that match, 1 can be judged"):
        run(several, *judge, "--tag", "vip")


def test_what_is_exported_is_chosen_by_ids_or_by_conditions(several_to_read: Path) -> None:
    assert "pass either IDs or conditions" in run(several_to_read, "export", "aa", "--tag", "eu").output
    assert (
        "neither IDs nor conditions"
        in run(several_to_read, "export", "--format", "parquet", "-o", "views", "--tag", "eu").output
    )
    for condition in (("--tag", "nope"), ("--entry", ""), ("--group", ""), ("--policy", "")):
        with pytest.raises(ArttraceError, match="No run matches"):
            run(several_to_read, "export", *condition)
        assert json.loads(run(several_to_read, "ls", "--json", *condition).output) == []


LONG = "nightly evaluation of the second assistant, question-"
NAMED = (
    f"{LONG}001",
    f"{LONG}002",
    "run",
    "run-1",
    "run-12",
    "run-1:sub",
    "two  spaces",
    " led",
    "—日本語",
    "it's" * 60,
)
OF_TIME = ("01930000aaaa7000800000000000000b", "01930000aaaa7000800000000000000c")  # UUIDs of one millisecond


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("named")
    with Store.open(DataDir(root), create=True) as store:
        for id in (*NAMED, *OF_TIME):
            store.append(research_run(id, "s1")[-1:])
    return root


@pytest.mark.parametrize("limit", [1, 5, 20])
def test_an_id_that_is_listed_finds_its_run_and_no_other(named: Path, limit: int) -> None:
    """Whatever the ids have in common, also with runs that are not listed: nothing of them is cut."""
    listed = json.loads(run(named, "ls", "--json", "--limit", str(limit)).output)
    head, _, *lines = run(named, "ls", "--limit", str(limit)).output.splitlines()
    assert head.split() == list(LIST_COLUMNS)
    ids = [line.partition(" agen")[0].rstrip() for line in lines[: len(listed)]]
    shown = run(named, "show", "--json", ids[-1])
    assert json.loads(shown.output)["trajectory"]["id"] == listed[-1]["id"]
    with Store.open(DataDir(named)) as store:  # which `show` and the others ask for it
        assert [store.trajectory(id).id for id in ids] == [one["id"] for one in listed]


def test_what_runs_now_is_named_as_in_the_list(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        for id in OF_TIME:
            store.append(research_run(id, "s1")[:-1])
    shown = run(tmp_path, "top", "--once", "--idle", "99999d").output
    assert {line.split()[0] for line in shown.splitlines()[2:]} == set(OF_TIME)


def test_an_id_that_several_begin_with_names_them(named: Path) -> None:
    for command in (["show"], ["export"], ["diff", "run"]):
        with pytest.raises(StoreError, match=f"2 trajectories begin with '{LONG}': {LONG}001, {LONG}002"):
            run(named, *command, LONG)


def test_ls_says_that_nothing_matches_and_what_it_does_not_understand(several_to_read: Path) -> None:
    assert run(several_to_read, "ls", "--tag", "nope").output == "no trajectory matches\n"
    assert "not a comparison such as '<0.5'" in run(several_to_read, "ls", "--reward", "good").output
    assert "neither an age such as 2h or 7d" in run(several_to_read, "ls", "--since", "soon").output
    assert "neither a policy nor a version of one" in run(several_to_read, "ls", "--policy", "policy@new").output


def test_ls_says_that_what_is_stored_makes_no_run(tmp_path: Path) -> None:
    """Spans of an SDK whose names nobody here knows: the list was empty, without a word of them."""
    Store.open(DataDir(tmp_path), create=True).close()
    assert run(tmp_path, "ls").output == "no trajectories yet\n"
    with Store.open(DataDir(tmp_path)) as store:
        store.append([SpanRow("1" * 32, "2" * 16, "generate", 1, 2, attributes={"genkit:type": "action"})])
    found = run(tmp_path, "ls").output
    assert "no trajectories yet" in found
    assert "1 span stored, of no run" in found
    assert "of no run" not in run(tmp_path, "ls", "--group", "nope").output


def test_tags_and_metadata_are_shown(several_to_read: Path) -> None:
    [line] = [line for line in run(several_to_read, "ls", "--wide").output.splitlines() if line.startswith("aa")]
    assert line.split()[-3:] == ["vip,", "eu", '{"task":7}']
    assert line.split()[1] == "shop.agent:answer"
    shown = run(several_to_read, "show", "aa").output
    assert "tags        vip, eu" in shown
    assert 'metadata    {"task":7}' in shown
    assert "entry       shop.agent:answer (/A/shop/agent.py:answer)" in shown


def test_nothing_is_shortened_in_a_wide_list(several: Path) -> None:
    long = Run("long")
    long.entry = "shop.agent:answer"
    tag = "x" * 600
    with Store.open(DataDir(several)) as store:
        store.append(long.end(SCENARIO=None, GROUP="g" * 200, TAGS=[tag], METADATA=json.dumps({"note": "y" * 600})))
    [line] = [line for line in run(several, "ls", "--wide").output.splitlines() if line.startswith("long")]
    assert line.split()[2] == "g" * 200
    assert line.split()[-2:] == [tag, '{"note":"' + "y" * 600 + '"}']


def test_rewards_of_runs_that_are_not_here_are_reported(root: Path) -> None:
    assert "rewards wait" not in run(root, "ls").output
    with Store.open(DataDir(root)) as store:
        store.append([Reward(id=f"r{n}", trajectory_id=f"missing-{n}", value=1.0) for n in range(5)])
    assert "rewards wait for 5 runs that are not here: missing-0, missing-1, missing-2, ..." in run(root, "ls").output
    assert json.loads(run(root, "ls", "--json").output)


def test_rewards_that_were_given_before_the_runs_that_are_listed_are_not(root: Path) -> None:
    with Store.open(DataDir(root)) as store:
        first_ns = min(one.start_ns for one in store.summaries())
        store.append([Reward(id="r", trajectory_id="never", value=1.0, time_ns=first_ns - 1)])
        store.append([Reward(id="s", trajectory_id="later", value=1.0, time_ns=first_ns)])
    assert "rewards wait for a run that is not here: later\n" in run(root, "ls").output
    assert "not here: later, never\n" in run(root, "ls", "--group", "no such").output


def test_show_nests_sub_agents_under_the_tool_call_that_started_them(root_to_read: Path) -> None:
    output = run(root_to_read, "show", "first").output
    assert "\x1b" not in output
    lines = output.splitlines()
    assert max(map(len, lines)) <= 100
    tool = next(
        i for i, line in enumerate(lines) if line.startswith('├── inferred tool research({"q": "a"}) -> answer a')
    )
    assert lines[tool + 1].startswith("│   └── agent research  (inferred")
    assert lines[tool + 3] == "│       ├── user: a"
    assert any("0.750 ruler (judge): Both questions were answered. [bold]No markup[/bold]" in line for line in lines)
    assert output.count("Long.") == 40
    assert any("sampled tokens can be trained on, in 3 sequences (0 forks)" in line for line in lines)


def test_show_an_incomplete_run(root_to_read: Path) -> None:
    output = run(root_to_read, "show", "other").output
    assert "incomplete: root missing" in output
    assert "(missing: its span did not arrive)" in output


def test_show_json_is_the_whole_trajectory(root_to_read: Path) -> None:
    shown = json.loads(run(root_to_read, "show", "first", "--json").output)
    assert len(shown["trajectory"]["agents"]) == 3
    assert len(shown["sequences"]) == 3
    assert shown["tokens"]["trained_tokens"] == sum(sum(sequence["trained"]) for sequence in shown["sequences"])


def test_errors_name_the_hint(root_to_read: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no trajectory 'zzz'") as error:
        run(root_to_read, "show", "zzz")
    assert error.value.hint == "`arttrace ls` lists the stored ones."
    with pytest.raises(StoreError, match="no store in"):
        run(tmp_path / "empty", "ls")


def test_sql(root_to_read: Path) -> None:
    output = run(root_to_read, "sql", "SELECT id, calls FROM trajectories ORDER BY id").output
    assert [line.split() for line in output.splitlines() if "-run" in line] == [["first-run", "7"], ["other-run", "7"]]
    wide = run(root_to_read, "sql", "FROM trajectories").output
    assert max(map(len, wide.splitlines())) <= 100
    assert "row 2" in wide
    assert json.loads(run(root_to_read, "sql", "--json", "SELECT 1 AS one, now() AS t").output)[0]["one"] == 1


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ("shop.agent:answer", "agent:answer"),
        ("/home/me/agent.py:answer", "agent.py:answer"),
        ("examples.market.agent", "agent"),
        ("planner", "planner"),
        ("gpt-4.1 planner", "gpt-4.1 planner"),
        ("shop.agent:Desk.answer", "agent:Desk.answer"),
    ],
)
def test_an_entry_point_is_shown_without_what_is_around_its_module(entry: str, shown: str) -> None:
    assert entry_name(entry) == shown


def test_an_import_of_a_large_file_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.formats.imported_files._RECORDS_AT_ONCE", 2)
    monkeypatch.setattr("arttrace.commands.data.import_.Progress", partial(Progress, every_s=0.0))
    file = tmp_path / "runs.jsonl"
    talk = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because " * (1 << 17)}]
    file.write_text("".join(json.dumps({"messages": [*talk, *talk[:number]]}) + "\n" for number in range(3)))
    done = CliRunner().invoke(cli, ["import", str(file), "--dir", str(tmp_path / "data")])
    assert done.exit_code == 0, done.output
    last = [line for line in done.stderr.splitlines() if " MiB of " in line][-1]
    assert last.startswith("4 of 4 MiB of runs.jsonl, ")
    assert "per second" in last


def test_ls_says_which_rewards_of_a_group_cannot_be_compared(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        for id in ("one", "two", "three"):
            store.append([*research_run(id, "s1"), Reward(f"code-{id}", id, 1.0)])
        store.append([*research_run("alone", "s2"), Reward("code-alone", "alone", 1.0)])
    assert "two scales" not in run(tmp_path, "ls").output
    with Store.open(DataDir(tmp_path)) as store:
        store.append([Reward("ruler", "three", 0.1, source="judge")])
    said = " ".join(run(tmp_path, "ls").output.split())
    assert "s1: 1 reward with a judge's score beside 2 from code alone: two scales" in said
    assert said.count("two scales") == 1


@pytest.mark.parametrize("tag", ["held-out", "not-trainable"])
def test_ls_says_nothing_of_scales_where_one_is_of_runs_that_nothing_is_trained_on(tmp_path: Path, tag: str) -> None:
    """They are compared with no run."""
    measured = [
        msgspec.structs.replace(span, attributes={**span.attributes, semconv.TAGS: [tag]})
        for span in research_run("measured", "s1")
    ]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([*measured, Reward("ruler", "measured", 0.1, source="judge")])
        store.append([*research_run("one", "s1"), Reward("code-one", "one", 1.0)])
    assert "two scales" not in run(tmp_path, "ls").output


@pytest.mark.parametrize("limit", [2**63 - 1, 10**30])
@pytest.mark.parametrize("condition", [(), ("--since", "1970-01-01")])
def test_a_limit_beyond_all_numbers_lists_all(several_to_read: Path, limit: int, condition: tuple[str, ...]) -> None:
    """DuckDB's refusal of the number was shown as one of the store."""
    listed = json.loads(run(several_to_read, "ls", "--json", *condition).stdout)
    assert json.loads(run(several_to_read, "ls", "--json", "--limit", str(limit), *condition).stdout) == listed != []
