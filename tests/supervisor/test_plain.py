"""Laws of the reader of plain pickles: what Python writes it reads the same, and nothing that it is given harms us."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxguard.supervisor.checkpoints import plain

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers(min_value=-(1 << 59), max_value=1 << 59)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=30,
)
LONG = 300


@settings(max_examples=60)
@given(VALUES, st.integers(min_value=0, max_value=pickle.HIGHEST_PROTOCOL))
def test_what_python_writes_is_read_the_same(value: Any, protocol: int) -> None:
    """In each of its ways of writing."""
    assert plain.read(pickle.dumps(value, protocol)) == value


def text(word: str) -> bytes:
    """Return the instructions that make a text."""
    return b"X" + len(word).to_bytes(4, "little") + word.encode()


class Bomb:
    """Calls something when Python reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


SIZE = 100_000
PRIME = (1 << 61) - 1
HARMFUL = {
    "a key that overflows the stack": b"\x80\x02})" + b"\x85" * SIZE + b"Ns.",
    "keys that collide": b"\x80\x02}("
    + b"".join(b"\x8a\x0c" + (k * PRIME).to_bytes(12, "little") + b"N" for k in range(1, 10_000))
    + b"u.",
    "digits without end": b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
    "a long number without end": b"\x80\x02\x8b" + SIZE.to_bytes(4, "little") + b"\x7f" * SIZE + b".",
    "a memo of a number without end": b"\x80\x02Np" + b"9" * 1_000_000 + b"\n.",
    "a set": b"\x80\x04\x8f.",
    "a frozen set": b"\x80\x04(\x91.",
    "bytes that change": b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00a.",
    "a name": b"\x80\x02cos\nsystem\n.",
    "a name that is put together": b"\x80\x04" + text("os") + text("system") + b"\x93.",
    "a registered name": b"\x80\x02\x82\x01.",
    "a call": pickle.dumps(Bomb()),
    "a call of nothing": b"\x80\x02NtR.",
    "a state": b"\x80\x02}Nb.",
    "an instance": b"(ios\nsystem\n.",
    "an object": b"\x80\x02(No.",
    "a reference": b"\x80\x02NQ.",
    "a reference in words": b"Pa\n.",
    "a buffer": b"\x80\x05\x97.",
    "a dictionary that is set in a list": b"\x80\x02]NNs.",
    "half a pair": b"\x80\x02}(Nu.",
    "a list that is appended to a text": b"\x80\x02" + text("a") + b"Na.",
    "what takes too much": b"\x80\x02N\x87.",
    "what goes back to no mark": b"\x80\x02Nt.",
    "two values": b"\x80\x02NN.",
    "no value": b"\x80\x02.",
    "half a text": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
}


@pytest.mark.parametrize("case", HARMFUL)
def test_what_is_more_than_plain_data_is_refused(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Soon, and before any of it is done."""
    with pytest.raises(ValueError, match=r"is broken|is more than plain data|codec"):
        plain.read(HARMFUL[case])
    assert capsys.readouterr().out == ""


def test_more_instructions_than_there_is_time_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them makes one value at most, so that this bounds the memory too."""
    monkeypatch.setattr(plain, "_MOST", 10)
    with pytest.raises(ValueError, match="too long"):
        plain.read(b"\x80\x02(" + b"}" * 10 + b"l.")


def test_a_list_that_holds_itself_and_one_that_is_deep_are_read() -> None:
    """Whoever reads them has only to look no deeper than it wants to."""
    found: Any = plain.read(b"\x80\x02]q\x00h\x00a.")
    assert found[0] is found
    deep: Any = plain.read(b"\x80\x02" + b"]" * SIZE + b"a" * (SIZE - 1) + b".")
    assert len(deep) == 1


@given(st.binary(max_size=LONG))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """With no other error."""
    read_or_refused(b"\x80\x02" + data + b".")


def test_a_dump_with_wrong_bytes_is_read_or_refused() -> None:
    """Wherever they are, and however many."""
    dice = random.Random(6)
    values = {
        "version": "2.10",
        "entries": [{"process_group": ("0", "x"), "seq": i, "f": [1.5, None]} for i in range(9)],
    }
    whole = [pickle.dumps(values, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for _ in range(3000):
        data = bytearray(dice.choice(whole))
        for _ in range(dice.randint(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        read_or_refused(bytes(data))


def read_or_refused(data: bytes) -> None:
    """Read bytes; only a ValueError may come of it."""
    try:
        plain.read(data)
    except ValueError:
        return
