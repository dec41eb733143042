"""What lies where: a function of the item's name."""

import hashlib

ITEMS = ("lamp", "chair", "table", "shelf", "bed", "desk", "sofa", "mirror", "carpet", "vase", "clock", "stool")


def count(place: str, item: str) -> int:
    """How many of an item lie in a place, 1 to 9; 0 for what is no item."""
    digest = hashlib.blake2b(f"{place} {item}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 9 + 1 if item in ITEMS else 0


def in_stock(place: str, item: str) -> str:
    """What the tool of a place says."""
    return f"{count(place, item)} in the {place}"


def total(item: str) -> int:
    """The right answer."""
    return count("north", item) + count("south", item)
