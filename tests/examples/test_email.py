"""The inbox of the e-mail example: the same by its seed, searched by SQLite, and each question answered by one mail;
the agent's tools, and the inboxes that a tiny model learns from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from example_modules import EXAMPLES, load

inbox = load("email/inbox.py")
INBOX = inbox.Inbox()


def test_the_inbox_is_that_of_its_seed() -> None:
    mails = inbox.mails(0)
    assert len(INBOX) == len({mail.id for mail in mails}) == 3000
    assert inbox.mails.__wrapped__(0) == mails
    assert inbox.mails(1) != mails
    assert mails[0] == inbox.Mail("noble sheep", "ana", "decision Indigo grant Prague", "it was decided: $87", 87)


def test_each_question_has_one_mail_that_answers_it_and_one_with_another_figure() -> None:
    questions = inbox.questions()
    assert len({question.text for question in questions}) == 1000
    for question in questions[::50]:
        about = question.text.removeprefix("What was decided on the ").rstrip("?")
        found = dict(INBOX.search(about))
        assert sorted(subject.split()[0] for subject in found.values()) == ["decision", "proposal", "question"]
        assert found[question.mail] == f"decision {about}"
        says = [id for id in found if (INBOX.read(id) or "").endswith(f"${question.answer}")]
        assert says == [question.mail]


@pytest.mark.parametrize("part", [slice(None, 250), slice(-250, None)])
def test_neither_end_of_the_questions_is_answered_by_what_is_found_first(part: slice) -> None:
    asked = inbox.questions()[part]
    found = [INBOX.search(question.text.removeprefix("What was decided on the ").rstrip("?")) for question in asked]
    places = [[id for id, _ in mails].index(question.mail) for question, mails in zip(asked, found, strict=True)]
    assert all(0.25 < places.count(place) / 250 < 0.42 for place in range(3)), places


@pytest.mark.parametrize("words", ["", '"', "NOT", "a OR b", "ünïcode", "\0", "(", "mail:x"])
def test_any_search_is_answered(words: str) -> None:
    assert INBOX.search(words) == []


def test_a_search_needs_all_words_and_is_bounded() -> None:
    assert len(INBOX.search("Delta")) == 3
    assert len(INBOX.search("Delta budget", limit=50)) == 30
    assert INBOX.search("Delta Fjord") == []
    assert INBOX.read("no such") is None


@pytest.fixture(scope="module")
def rollout() -> Iterator[ModuleType]:
    """The example's rollout.py, with the agent and the inbox that it imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES / "email"))
        yield load("email/rollout.py")
    for name in ("agent", "inbox"):
        sys.modules.pop(name, None)


def test_a_mail_is_read_by_its_number_in_the_last_search(rollout: ModuleType) -> None:
    tools = sys.modules["agent"].InboxTools(rollout.inbox(0))
    assert tools.call("read", "1") == "there is no such mail"
    assert tools.call("search", "Indigo grant Prague").splitlines()[0] == "decision Indigo grant Prague: 1"
    assert tools.call("read", "1") == "from ana: it was decided: $87"
    assert tools.call("search", "no such words") == "nothing found"
    assert tools.call("read", "1") == "there is no such mail"
    assert tools.call("delete", "1") == "there is no such tool"
    assert tools.read == ["noble sheep"]


def test_what_a_tiny_model_learns_from_is_in_no_held_out_inbox(rollout: ModuleType) -> None:
    begin = (0, 1_000_000, 2_000_000)
    trained, held_out, stand_in = ({rollout.tiny_scenario(first + n).seed for n in range(500)} for first in begin)
    assert [len(seeds) for seeds in (trained, held_out, stand_in)] == [10, 10, 10]
    assert len(trained | held_out | stand_in) == 30
    assert len({rollout.tiny_scenario(n).text for n in range(500)}) > 350
    asked = rollout.tiny_scenario(1_000_007)
    [decision] = [mail for mail in sys.modules["inbox"].mails(asked.seed) if mail.id == asked.mail]
    assert (str(decision.figure), decision.subject) == (asked.answer, f"decision {asked.text[24:-1]}")
