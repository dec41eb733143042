"""The market: which goods there are, and what its two price services say about each of them.

A kind of goods is priced truthfully by one service only. The other answers as well, with a price that has expired and
says so. Everything is a function of the item and the day, so a run can be repeated.
"""

import hashlib

GOODS = ("apple", "bean", "carrot", "cherry", "fig", "lentil", "mango", "onion", "peach", "plum", "spinach", "tomato")
SERVICE_OF_KIND = {
    "fresh": "live_price",
    "local": "live_price",
    "imported": "live_price",
    "canned": "list_price",
    "dried": "list_price",
    "frozen": "list_price",
}
PRICES = range(1, 10)


def price(item: str, day: int) -> int:
    """The price of an item such as "fresh apple" that is valid on that day."""
    return PRICES[_draw(item, day, "valid") % len(PRICES)]


def quote(service: str, item: str, day: int) -> str:
    """What a service answers: "price 7 valid", or "price 4 expired" with a price that differs from the valid one."""
    kind, _, good = item.partition(" ")
    if kind not in SERVICE_OF_KIND or good not in GOODS or service not in SERVICE_OF_KIND.values():
        return "unknown"
    valid = price(item, day)
    if service == SERVICE_OF_KIND[kind]:
        return f"price {valid} valid"
    others = [other for other in PRICES if other != valid]
    return f"price {others[_draw(item, day, 'expired') % len(others)]} expired"


def _draw(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")
