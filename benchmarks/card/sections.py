"""The sections in the order they run, most valuable first."""

from __future__ import annotations

from benchmarks.card.frame import Section

# Together less than half an hour, each less than ten minutes with its start.

SECTIONS = (
    Section("a", "learner", "one step of the learner, in several layouts", budget_s=540),
    Section("b", "publish", "from a step's end to the first token of the new version", budget_s=360),
    Section("d", "loop", "the whole loop: a model made on the spot gets better", budget_s=330),
    Section("c", "sleeping", "an engine that sleeps beside the learner", budget_s=200),
    Section("e", "agreement", "log-probabilities of engine and learner, and what the gate makes of them", budget_s=250),
)
