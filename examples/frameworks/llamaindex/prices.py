"""What things cost, and what a customer gets off: functions of their names."""

import hashlib

ITEMS = ("lamp", "chair", "table", "shelf", "bed", "desk", "sofa", "mirror")
CUSTOMERS = ("Ann", "Ben", "Cleo", "Dan")


def price(item: str) -> int:
    """What an item costs, 10 to 90; 0 for what is no item."""
    return 10 * (1 + _draw("price", item) % 9) if item in ITEMS else 0


def discount(customer: str) -> int:
    """What a customer gets off, 1 to 9; 0 for whoever is none."""
    return 1 + _draw("discount", customer) % 9 if customer in CUSTOMERS else 0


def _draw(*parts: str) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big")
