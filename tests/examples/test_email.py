"""The inbox of the e-mail example: the same by its seed, searched by SQLite, and each question answered by one mail."""

from __future__ import annotations

import pytest
from example_modules import load

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


@pytest.mark.parametrize("words", ["", '"', "NOT", "a OR b", "ünïcode", "\0", "(", "mail:x"])
def test_any_search_is_answered(words: str) -> None:
    assert INBOX.search(words) == []


def test_a_search_needs_all_words_and_is_bounded() -> None:
    assert len(INBOX.search("Delta")) == 3
    assert len(INBOX.search("Delta budget", limit=50)) == 30
    assert INBOX.search("Delta Fjord") == []
    assert INBOX.read("no such") is None
