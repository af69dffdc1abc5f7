"""Laws of what is seen of another rank, and of the words in which it is told."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxguard import heartbeat
from fluxguard.distributed import world
from fluxguard.distributed.meetings import sight
from fluxguard.distributed.meetings.collectives import is_there
from fluxguard.distributed.meetings.sight import DEAD, LIVES, STOPPED, UNKNOWN, Sight, Who, Word
from fluxguard.heartbeat import OPEN, Heart

ME = sight.own()
HERE = Who(pid=4711, ticks=1, machine=ME.machine, host=ME.host)
THERE = Who(pid=4711, ticks=1, machine="another", host="node-b")
SAMPLING = Word(
    beats=9, phase="sampling", phase_age=60.2, sequence=41, kind="collective", what="fid.compute", age=58, open=False
)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Sight(), "has shown no sign yet"),
        (
            Sight(who=THERE, word=SAMPLING),
            "(pid 4711 on node-b) is in phase 'sampling' since 60 s, "
            "its last collective was #41 collective 'fid.compute'",
        ),
        (
            Sight(who=HERE, here=True, life=LIVES, word=replace(SAMPLING, open=True)),
            "(pid 4711) is in phase 'sampling' since 60 s, is in #41 collective 'fid.compute' since 58 s",
        ),
        (
            Sight(who=HERE, here=True, life=DEAD, word=SAMPLING),
            "(pid 4711) is dead: its process has ended, by itself (it left before the others) or killed, "
            "was in phase 'sampling', "
            "its last collective was #41 collective 'fid.compute'",
        ),
        (
            Sight(who=HERE, here=True, life=STOPPED),
            "(pid 4711) is stopped: its process does not run until it is continued",
        ),
        (
            Sight(who=THERE, word=replace(SAMPLING, sequence=0), silent=12.0),
            "(pid 4711 on node-b) has said nothing for 12 s, was in phase 'sampling'",
        ),
        (Sight(who=THERE, word=Word()), "(pid 4711 on node-b) has no heartbeat"),
        (Sight(who=HERE, here=True, life=LIVES), "(pid 4711) does not say what it does"),
    ],
)
def test_what_a_rank_does_is_said_in_plain_words(seen: Sight, words: str) -> None:
    """To be put behind its number."""
    assert seen.words() == words


def test_a_sign_of_life_is_a_beat_or_a_collective() -> None:
    """Who has no heartbeat shows none: that it speaks is the sign of another thread."""
    sign = Sight(word=SAMPLING).sign()
    later = Sight(word=replace(SAMPLING, begun=1)).sign()
    assert sign is not None
    assert later is not None
    assert (sign.beats, sign.phase, later.beats) == (9, "sampling", 10)
    assert Sight(word=Word(number=5)).sign() is None
    assert Sight().sign() is None


def test_a_rank_that_has_told_of_no_phase_shows_none() -> None:
    """Nobody can say what it does: its beats and collectives alone are signs."""
    silent = Sight(life=LIVES, word=Word(beats=1)).sign()
    assert silent is not None
    assert silent.phase is None


@pytest.mark.parametrize(("begun", "phase"), [(0, "load"), (1, "")])
def test_a_loop_that_tells_of_no_phase_is_not_in_the_first_one_for_ever(begun: int, phase: str) -> None:
    """Once it has met the others, that one allows it nothing."""
    assert sight._phase("load", begun) == phase
    assert sight._phase("sampling", begun) == "sampling"


@pytest.mark.parametrize("life", [DEAD, STOPPED])
def test_who_is_dead_or_stopped_is_in_no_phase_that_would_allow_it_more(life: str) -> None:
    sign = Sight(life=life, word=SAMPLING).sign()
    assert sign is not None
    assert sign.phase == ""


def test_a_word_and_a_name_survive_the_way() -> None:
    assert sight.unpack_word(SAMPLING.pack()) == SAMPLING
    assert sight.unpack_who(ME.pack()) == ME
    newer = SAMPLING.pack()[:-1] + b', "more": 1}'
    assert sight.unpack_word(newer) == SAMPLING


@pytest.mark.parametrize("data", [b"", b"{", b"3", b"[]", b"[1, 2]", b"null", b'["a", 1, "b", "c"]'])
def test_what_is_no_word_is_none(data: bytes) -> None:
    """A peer can say anything."""
    assert sight.unpack_who(data) is None
    assert sight.unpack_word(data) in (None, Word())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only /proc tells")
def test_a_process_is_known_by_more_than_its_number() -> None:
    """Its number may have been given to another one since; and that of another machine says nothing here."""
    assert sight.life_of(ME) == LIVES
    assert sight.life_of(replace(ME, ticks=ME.ticks + 1)) == DEAD
    assert sight.life_of(replace(ME, pid=2**22 + 1)) == DEAD
    assert sight.life_of(replace(ME, machine="another")) == UNKNOWN
    assert sight.life_of(None) == UNKNOWN


def test_the_heartbeat_of_this_machine_says_what_a_rank_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is fresher than what the rank tells the store; one of another process is not believed."""
    monkeypatch.setattr(world, "beats", lambda: tmp_path)
    heart = Heart(heartbeat.path_for(tmp_path, 1), rank=1)
    heart.phase = b"saving"
    heart.note(3, b"barrier", b"saved", heart.phase_at, OPEN, 3, 1)
    heart.beat()
    seen = sight.see(1, ME, Word(phase="step"), 2.0)
    assert seen.word is not None
    assert (seen.word.phase, seen.word.what, seen.word.open, seen.silent) == ("saving", "saved", True, 0.0)
    other = sight.see(1, replace(ME, pid=1), Word(phase="step"), 2.0)
    assert other.word is not None
    assert (other.word.phase, other.silent) == ("step", 2.0)


@pytest.mark.parametrize(
    ("change", "there"),
    [
        ({"begun": 7, "what": "ids"}, True),
        ({"begun": 8, "what": "end"}, True),
        ({"begun": 7, "what": "end"}, False),
        ({"begun": 6, "what": "ids"}, False),
    ],
)
def test_who_came_to_a_collective_or_went_on_from_it_was_there(change: dict[str, Any], there: bool) -> None:
    assert is_there(Sight(word=replace(SAMPLING, **change)), "ids", 7) is there


def test_who_died_in_a_collective_is_missing_unless_it_had_told_of_its_failure() -> None:
    """The first to go is the cause, those who follow it are not."""
    word = replace(SAMPLING, begun=7, what="ids")
    assert not is_there(Sight(life=DEAD, word=word), "ids", 7)
    assert is_there(Sight(life=DEAD, word=replace(word, failed=True)), "ids", 7)
    assert not is_there(Sight(), "ids", 7)
