"""A synthetic inbox of 3000 mails in SQLite's full-text search, made by a seed, and questions whose answers are known.

Of each matter of each project three mails are to be found: one asks about it, one proposes a figure, one decides on
another. Only the last is what a question about it wants.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

_WORDS = """\
amber brave calm clever crisp deep eager early fair fast fine glad gold grand green happy keen kind late light \
lively lucky merry mild modest neat noble odd pale plain proud pure quick quiet rapid rare red rich ripe round \
sharp shy silent silver sleek slow small smart soft solid
badger bear beaver bison camel cat crane crow deer dog dove duck eagle elk falcon ferret finch fox frog goat \
goose hare hawk heron horse ibis jay koala lark lemur lion llama lynx mole moose mouse newt otter owl panda \
pony puma quail rabbit raven robin salmon seal shark sheep sloth snail stork swan tiger toad trout turtle wolf \
wren
Apollo Borealis Cascade Delta Everest Fjord Granite Horizon Indigo Jasmine
budget price rent salary margin fee bonus deposit grant fine
Berlin Lisbon Oslo Paris Prague Rome Tokyo Vienna Warsaw Zurich
ana ben cleo dan eva finn gina hugo iris jon
"""
ADJECTIVES, ANIMALS, PROJECTS, MATTERS, OFFICES, PEOPLE = (tuple(line.split()) for line in _WORDS.splitlines())
KINDS = ("question", "proposal", "decision")


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail. `figure` is the number that it names, 0 where it names none."""

    id: str
    sender: str
    subject: str
    body: str
    figure: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the inbox of a seed, with its answer and the one mail that says it."""

    text: str
    answer: str
    mail: str
    seed: int


@lru_cache(maxsize=16)
def mails(seed: int = 0) -> tuple[Mail, ...]:
    """All 3000 mails of a seed, in the order of the inbox. Each id is used once."""
    rng = random.Random(f"inbox {seed}")
    ids = [f"{adjective} {animal}" for adjective, animal in product(ADJECTIVES, ANIMALS)]
    rng.shuffle(ids)
    made = []
    for project, matter, office in product(PROJECTS, MATTERS, OFFICES):
        figures = rng.sample(range(1, 100), 2)
        for kind, figure in zip(KINDS, (0, *figures), strict=True):
            made.append(_mail(ids.pop(), rng.choice(PEOPLE), kind, f"{project} {matter} {office}", figure))
    rng.shuffle(made)
    return tuple(made)


def questions(seed: int = 0) -> list[Question]:
    """The 1000 questions that the inbox answers, in an order that says nothing of where their answers are."""
    decided = sorted((mail for mail in mails(seed) if mail.subject.startswith("decision")), key=lambda mail: mail.id)
    return [
        Question(f"What was decided on the {mail.subject.removeprefix('decision ')}?", str(mail.figure), mail.id, seed)
        for mail in decided
    ]


class Inbox:
    """The mails of a seed, to be searched and read."""

    def __init__(self, seed: int = 0) -> None:
        self._rows = sqlite3.connect(":memory:", check_same_thread=False)
        self._rows.execute("create virtual table mail using fts5(id unindexed, sender, subject, body)")
        everything = [(mail.id, mail.sender, mail.subject, mail.body) for mail in mails(seed)]
        self._rows.executemany("insert into mail values (?, ?, ?, ?)", everything)

    def __len__(self) -> int:
        return int(self._rows.execute("select count(*) from mail").fetchone()[0])

    def search(self, words: str, limit: int = 3) -> list[tuple[str, str]]:
        """Id and subject of the mails in which all words are, in the order of the inbox."""
        terms = [f'"{word}"' for word in words.replace('"', " ").replace("\0", " ").split()]
        if not terms:
            return []
        found = self._rows.execute(
            "select id, subject from mail where mail match ? order by rowid limit ?", (" ".join(terms), limit)
        )
        return [(str(id), str(subject)) for id, subject in found]

    def read(self, id: str) -> str | None:
        """The text of a mail; None where there is none of that id."""
        row = self._rows.execute("select sender, body from mail where id = ?", (id,)).fetchone()
        return None if row is None else f"from {row[0]}: {row[1]}"


def _mail(id: str, sender: str, kind: str, about: str, figure: int) -> Mail:
    body = {
        "question": "who knows more about it?",
        "proposal": f"my proposal is ${figure}",
        "decision": f"it was decided: ${figure}",
    }[kind]
    return Mail(id, sender, f"{kind} {about}", body, figure)
