"""How a run says that ids of its spans stand for other spans too, and what to do about it."""

from __future__ import annotations

COLLIDED = "ids of {count} spans stand for several spans"
ADVICE_ON_COLLISIONS = (
    "Span ids that repeat come from a program that seeds `random` before OpenTelemetry makes ids of it. Seed a "
    "random.Random of your own in place of the module's, or give TracerProvider an id_generator."
)


def has_collisions(incomplete: str) -> bool:
    """Whether the reasons why a trajectory is incomplete name ids that stand for several spans."""
    return COLLIDED.partition("}")[2] in incomplete
