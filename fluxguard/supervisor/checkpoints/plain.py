"""Reads a pickle of numbers, texts, lists, tuples and dictionaries, by instructions of our own; there are no others.

Python's own reader is of no use for what others have written, even where no name is left to be called: tuples within
tuples that are to be a key overflow its stack, numbers that collide as keys hold it up for hours, and nothing in the
process runs meanwhile. Here a key is a text or a number, and what has to be done is bounded by what has to be read.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Mapping
from typing import Any

from fluxguard.supervisor.checkpoints import pickles

_MOST = 2_000_000
"""Instructions; each of them makes one value at most."""
_LONGEST_NUMBER = 64
"""Digits, where a number is written in them."""
_LARGEST_KEY = 1 << 60
"""Smaller numbers are their own hash."""
_MARK = object()
_NAMES = {ord(one.code): one.name for one in pickletools.opcodes}
_CODES = {name: code for code, name in _NAMES.items()}


def read(data: bytes) -> object:
    """Return what a pickle holds. Raises ValueError for one that is broken, or is more than plain data."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for number, (code, argument) in enumerate(pickles.instructions(data)):
            if number >= _MOST:
                raise ValueError(f"is too long (more than {_MOST} instructions in its pickle)")
            if code in _VALUES:
                stack.append(_VALUES[code](argument))
            elif code in _SHAPES:
                _SHAPES[code](stack)
            elif code in pickles.KEEP:
                memo[pickles.memo_number(code, _bounded(argument), len(memo))] = stack[-1]
            elif code in pickles.RECALL:
                stack.append(memo[pickles.memo_number(code, _bounded(argument), len(memo))])
            elif code not in _NEUTRAL:
                raise ValueError(f"is more than plain data (its pickle says {_NAMES[code]}): it was not read")
    except (ArithmeticError, AttributeError, LookupError, TypeError, struct.error) as error:
        raise ValueError(f"is broken ({error})") from None
    if len(stack) != 1:
        raise ValueError("is broken (its pickle leaves no one value)")
    return stack[0]


def _bounded(argument: bytes) -> bytes:
    """Return digits that do not take long to be read. Raises ValueError."""
    if len(argument) > _LONGEST_NUMBER:
        raise ValueError("is broken (a number in its pickle is too long)")
    return argument


def _integer(argument: bytes) -> int | bool:
    """Return what is written in digits, perhaps with an L behind them; 00 and 01 are truths."""
    digits = _bounded(argument).strip().removesuffix(b"L")
    return digits == b"01" if digits in (b"00", b"01") else int(digits)


def _of_texts(width: int) -> Callable[[bytes], str]:
    return lambda argument: argument[width:].decode("utf-8", "surrogatepass")


_READERS: Mapping[str, Callable[[bytes], object]] = {
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "BININT": lambda argument: int.from_bytes(argument, "little", signed=True),
    "BININT1": lambda argument: argument[0],
    "BININT2": lambda argument: int.from_bytes(argument, "little"),
    "LONG1": lambda argument: int.from_bytes(argument[1:], "little", signed=True),
    "INT": _integer,
    "LONG": _integer,
    "BINFLOAT": lambda argument: struct.unpack(">d", argument)[0],
    "FLOAT": lambda argument: float(_bounded(argument)),
    "SHORT_BINUNICODE": _of_texts(1),
    "BINUNICODE": _of_texts(4),
    "BINUNICODE8": _of_texts(8),
    "UNICODE": lambda argument: argument.removesuffix(b"\n").decode("raw-unicode-escape"),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "EMPTY_TUPLE": lambda _: (),
    "MARK": lambda _: _MARK,
}


def _since_mark(stack: list[Any]) -> list[Any]:
    """Take what lies above the last mark, and the mark."""
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        if at < 0:
            raise IndexError("no mark")
    found = stack[at + 1 :]
    del stack[at:]
    return found


def _extended(stack: list[Any], values: list[Any]) -> None:
    if type(stack[-1]) is not list:
        raise TypeError("no list to append to")
    stack[-1].extend(values)


def _with_items(stack: list[Any], items: list[Any]) -> None:
    target, keys = stack[-1], items[::2]
    if type(target) is not dict or len(items) % 2:
        raise TypeError("no dictionary to set, or half a pair")
    if not all(type(key) is str or (type(key) is int and abs(key) < _LARGEST_KEY) for key in keys):
        raise TypeError("a key is neither a text nor a small number")
    target.update(zip(keys, items[1::2], strict=True))


def _made(stack: list[Any], value: object, fill: Callable[[list[Any], list[Any]], None]) -> None:
    found = _since_mark(stack)
    stack.append(value)
    fill(stack, found)


def _last(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count:
        raise IndexError("too little on its stack")
    found = stack[-count:]
    del stack[-count:]
    return found


_WORKERS: Mapping[str, Callable[[list[Any]], None]] = {
    "APPEND": lambda stack: _extended(stack, _last(stack, 1)),
    "APPENDS": lambda stack: _extended(stack, _since_mark(stack)),
    "SETITEM": lambda stack: _with_items(stack, _last(stack, 2)),
    "SETITEMS": lambda stack: _with_items(stack, _since_mark(stack)),
    "LIST": lambda stack: _made(stack, [], _extended),
    "DICT": lambda stack: _made(stack, {}, _with_items),
    "TUPLE": lambda stack: stack.append(tuple(_since_mark(stack))),
    "TUPLE1": lambda stack: stack.append(tuple(_last(stack, 1))),
    "TUPLE2": lambda stack: stack.append(tuple(_last(stack, 2))),
    "TUPLE3": lambda stack: stack.append(tuple(_last(stack, 3))),
}
_VALUES = {_CODES[name]: read for name, read in _READERS.items()}
_SHAPES = {_CODES[name]: work for name, work in _WORKERS.items()}
_NEUTRAL = {_CODES[name] for name in ("PROTO", "FRAME", "STOP")}
