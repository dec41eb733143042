"""The stand-ins over HTTP, and the judge's rule on runs of the agent as a judge prompt shows them."""

import json
import signal
import subprocess
import sys

import httpx
import pytest
from click.testing import CliRunner
from openai import OpenAI

from arttrace.records.message import Message, TextPart, ToolCallPart, ToolResultPart
from arttrace.rewards.judge_answer import read_answer
from arttrace.rewards.judge_prompt import judge_prompt
from arttrace.rewards.transcript import AgentTranscript, Transcript
from trainer.demo import stand_in, stand_in_judge
from trainer.demo.teacher import Teacher

QUESTION = "fresh fig and canned bean"


def run(fig="price 3 valid", bean="price 5 valid", fig_report="fresh fig 3", bean_report="canned bean 5", result=None):
    """A run of the market agent in which the services and the sub-agents said this."""
    answer = f"{fig_report} and {bean_report}" if result is None else result
    planner = history(QUESTION, [fig_report, bean_report], answer)
    checks = [history("fresh fig", [fig], fig_report), history("canned bean", [bean], bean_report)]
    checkers = [AgentTranscript("ask_checker", parent=0, inferred=True, histories=(check,)) for check in checks]
    return Transcript(agents=(AgentTranscript("answer", histories=(planner,)), *checkers), result=answer)


def history(request, results, answer, asked=None):
    arguments = json.dumps({"item": asked or request})
    calls = tuple(ToolCallPart("tool", arguments, f"c{n}") for n in range(len(results)))
    shown = tuple(ToolResultPart(result, f"c{n}") for n, result in enumerate(results))
    return (
        Message("user", (TextPart(request),)),
        Message("assistant", calls),
        Message("tool", shown),
        Message("assistant", (TextPart(answer),)),
    )


def scores(*runs):
    prompt = judge_prompt(runs)
    answer = read_answer(stand_in_judge.reply({"messages": list(prompt.messages)})["content"], prompt.members)
    return [next(answer[id].score for id, members in prompt.members.items() if n in members) for n in range(len(runs))]


def test_the_judge_grades_evidence_and_faithfulness():
    assert scores(
        run(),
        run(fig="price 3 expired"),
        run(fig="price 3 expired", bean="price 5 expired"),
        run(fig="price 4 valid"),
        run(result="fresh fig 3 and canned bean 6"),
        run(result="no answer", fig="price 3 expired", bean="unknown"),
    ) == [1.0, 0.65, 0.3, 0.65, 0.7, 0.0]


def test_the_price_of_another_item_is_no_evidence():
    """A policy found that: it asked about a kind that the service prices truthfully, and passed that on as the price of
    one that it does not."""
    checked = AgentTranscript("answer", histories=(history("fresh fig", ["price 3 valid"], "fresh fig 3"),))
    other = AgentTranscript("answer", histories=(history("fresh fig", ["price 3 valid"], "fresh fig 3", "dried fig"),))
    runs = [Transcript(agents=(one,), result="fresh fig 3") for one in (checked, other)]
    assert scores(*runs) == [1.0, 0.3]


def test_a_run_without_sub_agents_or_calls_scores_nothing():
    assert scores(Transcript(agents=run().agents[:1], result="fresh fig 3 and canned bean 5"), Transcript()) == [
        0.0,
        0.0,
    ]


def test_explanations_name_the_items():
    (document,) = stand_in_judge.parse_prompt(
        judge_prompt([run(bean="price 5 expired")]).messages[1]["content"]
    ).values()
    assert stand_in_judge.judge(document)[1] == (
        "fresh fig: reported on valid evidence. canned bean: reported without valid evidence. "
        "The answer says what was reported."
    )


def test_the_teacher_is_served_to_an_openai_client(agent):
    teacher = Teacher(1)
    with (
        stand_in.serve(lambda body: teacher.reply(body["messages"], body["tools"]), "stand-in-teacher") as url,
        OpenAI(base_url=url, api_key="unused") as client,
    ):
        completion = client.chat.completions.create(
            model="policy:latest", messages=[{"role": "user", "content": QUESTION}], tools=agent.module.PLANNER_TOOLS
        )
        assert completion.model == "stand-in-teacher"
        assert completion.choices[0].finish_reason == "tool_calls"
        made = completion.choices[0].message.tool_calls
        assert [json.loads(call.function.arguments)["item"] for call in made] == ["fresh fig", "canned bean"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"stream": true}', b'{"messages": [{"content": "x"}]}'])
def test_what_a_stand_in_cannot_answer_is_refused_with_a_reason(body):
    with stand_in.serve(stand_in_judge.reply, stand_in_judge.NAME) as url:
        refused = httpx.post(f"{url}/chat/completions", content=body)
    assert refused.status_code == 400
    assert stand_in_judge.NAME in refused.json()["error"]["message"]


def test_an_agent_without_sub_agents_is_judged_by_its_own_evidence():
    def alone(shown, report):
        return Transcript(
            agents=(AgentTranscript("answer", histories=(history("fresh fig", [shown], report),)),), result=report
        )

    assert scores(
        alone("price 3 valid", "fresh fig 3"), alone("price 3 expired", "fresh fig 3"), alone("price 3 valid", "no")
    ) == [1.0, 0.3, 0.3]


def test_the_judge_as_a_program_scores_until_it_is_stopped():
    with subprocess.Popen(
        [sys.executable, "-m", "trainer.demo.stand_in_judge"], stdout=subprocess.PIPE, text=True
    ) as judge:
        assert "stand-in" in judge.stdout.readline()
        url = judge.stdout.readline().split()[-1]
        body = {"messages": list(judge_prompt([run(), run(fig="unknown")]).messages)}
        reply = httpx.post(f"{url}/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        assert sorted(entry["score"] for entry in json.loads(reply)["scores"]) == [0.65, 1.0]
        judge.send_signal(signal.SIGINT)
        assert judge.wait(60) == 0


def test_the_judge_names_the_option_for_another_port():
    with stand_in.serve(stand_in_judge.reply, "other") as base:
        port = str(httpx.URL(base).port)
        refused = CliRunner().invoke(stand_in_judge.main, ["--port", port])
    assert refused.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use.\nChoose another with --port." in refused.output
