"""A store of ranks that lies in this process: what is used of torch's, without waiting."""

from __future__ import annotations


class Shelf:
    """Keys and values; `get` of a key that is not there would wait for ever, so it is an error."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        """Keep a value."""
        self.kept[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        """Return what is kept."""
        return self.kept[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a number and return it."""
        value = int(self.kept.get(key, b"0")) + amount
        self.kept[key] = b"%d" % value
        return value

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""
        return all(key in self.kept for key in keys)

    def wait(self, keys: list[str]) -> None:
        """Return at once, because all are there."""
        assert self.check(keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Keep a value where another one was, none being empty; return what is kept then."""
        if self.kept.get(key, b"").decode() == expected:
            self.set(key, desired)
        return self.kept[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return what is kept under each key."""
        return [self.kept[key] for key in keys]
