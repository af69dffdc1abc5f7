"""Laws of the log patterns of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.errors import InputError
from fluxguard.rundir import RunDir
from fluxguard.supervisor.detecting import patterns
from fluxguard.supervisor.detecting.patterns import LogWatch, Matcher, Matches, Pattern, parse

WHOLE = r"""
- name: model loaded
  pattern: "Loaded model"
- name: first step
  pattern: '\bstep (\d+)/(\d+)'
  within: 1800
  after: model loaded
  progress: 1/2
  then: stop
- name: loss
  pattern: 'loss[=:] *(?P<value>\S+)'
  every: 600
  until: saved
  finite: value
  loss: value
- name: saved
  pattern: Saving final
"""


def test_a_whole_file_is_understood() -> None:
    """Every key."""
    loaded, first, loss, saved = parse(WHOLE, "mine.yaml")
    assert (loaded.name, loaded.then, saved.regex.pattern) == ("model loaded", "restart", "Saving final")
    assert (first.within, first.after, first.step, first.total, first.then) == (1800, "model loaded", 1, 2, "stop")
    assert (loss.every, loss.until, loss.finite, loss.loss) == (600, "saved", "value", "value")


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("{", "", "YAML"),
        ("a: 1", "", "list"),
        ("- 5", "pattern 1", "table"),
        ("- {pattern: a}", "pattern 1: name", "missing"),
        ("- {name: a}", "a: pattern", "missing"),
        ("- {name: a, pattern: 5}", "a: pattern", "text"),
        ("- {name: a, pattern: '('}", "a: pattern", "regular expression"),
        ("- {name: a, pattern: a, witin: 5}", "a: witin", "is no key"),
        ("- {name: a, pattern: a, within: 0}", "a: within", "seconds"),
        ("- {name: a, pattern: a, within: true}", "a: within", "seconds"),
        ("- {name: a, pattern: a, every: soon}", "a: every", "seconds"),
        ("- {name: a, pattern: a, every: .inf}", "a: every", "seconds"),
        ("- {name: a, pattern: a, within: 5, after: b}", "a: after", "'b' is no pattern"),
        ("- {name: a, pattern: a, after: a}", "a: after", "within"),
        ("- {name: a, pattern: a, finite: 1}", "a: finite", "no group"),
        ("- {name: a, pattern: '(a)', progress: 1/2}", "a: progress", "no group"),
        ("- {name: a, pattern: '(a)', finite: value}", "a: finite", "no group"),
        ("- {name: a, pattern: a, then: die}", "a: then", "restart or stop"),
        ("[{name: a, pattern: a}, {name: a, pattern: b}]", "a", "twice"),
        (f"[{', '.join(f'{{name: n{n}, pattern: a}}' for n in range(51))}]", "", "most"),
    ],
)
def test_what_is_wrong_is_named(text: str, field: str, reason: str) -> None:
    """The file, the pattern and its key."""
    with pytest.raises(InputError) as raised:
        parse(text, "mine.yaml")
    assert (raised.value.source, raised.value.field) == ("mine.yaml", field)
    assert reason in raised.value.reason


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Not there, or no text."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none", tmp_path / "bytes"):
        with pytest.raises(InputError, match="cannot be read"):
            patterns.read(path)


def test_lines_give_steps_and_losses() -> None:
    """The last of each; thousands may be set apart."""
    found = Matcher(parse(WHOLE, "")).search(["step 7/100 loss: 0.5", "nothing", "step 8/100 loss: 1,000.5"])
    assert (found.names, found.not_finite) == (frozenset({"first step", "loss"}), None)
    assert (found.step, found.total, found.loss) == (8, 100, 1000.5)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "none", "1.2.3"])
def test_a_value_that_is_no_finite_number_breaks_its_pattern(text: str) -> None:
    """At once, and for good."""
    known = parse(WHOLE, "")
    found = Matcher(known).search([f"loss={text}", "loss=0.5"])
    broken = LogWatch(patterns=known).then(found, 5.0).broken(5.0)
    assert broken is not None
    assert (broken.pattern.name, broken.reason) == ("loss", f"'{text}' is no finite number")


def watch(*names: tuple[float, str]) -> LogWatch:
    """Return what a log has shown that began at 1000 s and matched these, each at its second."""
    log = LogWatch(patterns=parse(WHOLE, ""), begun=1000.0)
    for at, name in names:
        log = log.then(Matches(names=frozenset({name})), at)
    return log


def broken(log: LogWatch, now: float) -> str | None:
    """Return which pattern is broken."""
    found = log.broken(now)
    return found.pattern.name if found else None


def test_a_first_match_is_expected_within_its_time_of_the_other() -> None:
    """Before that one nothing is expected."""
    assert broken(watch(), 99999.0) is None
    assert broken(watch((1100.0, "model loaded")), 2900.0) is None
    assert broken(watch((1100.0, "model loaded")), 2901.0) == "first step"
    assert broken(watch((1100.0, "model loaded"), (1200.0, "first step")), 99999.0) is None
    start = LogWatch(patterns=parse("- {name: a, pattern: a, within: 60}", ""), begun=1000.0)
    assert (broken(start, 1060.0), broken(start, 1061.0)) == (None, "a")


def test_each_next_match_is_expected_in_time_after_the_first() -> None:
    """Until the pattern that ends it."""
    log = watch((1100.0, "loss"), (1500.0, "loss"))
    assert (broken(log, 2100.0), broken(log, 2101.0)) == (None, "loss")
    ended = watch((1100.0, "loss"), (1500.0, "loss"), (1600.0, "saved"))
    assert broken(ended, 99999.0) is None


def test_time_that_counts_for_nothing_counts_for_no_pattern() -> None:
    """A machine that slept."""
    log = watch((1100.0, "loss")).shifted(3600.0)
    assert (broken(log, 1700.0 + 3600), broken(log, 1701.0 + 3600)) == (None, "loss")


def test_lines_that_nobody_read_may_have_matched() -> None:
    """What is not known is not missing."""
    assert broken(watch((1100.0, "model loaded")).unread(1200.0), 1700.0) is None


def test_a_pattern_that_takes_too_long_is_left_out_and_told() -> None:
    """One whose search would not end within a lifetime; the others are searched for, and what it expects is not."""
    known = parse(r"[{name: slow, pattern: '(\w\w|\w)+!', within: 5}, {name: quick, pattern: ab}]", "")
    matcher = Matcher(known)
    assert matcher.search(["ab" * 200 + " !"]) == Matches(names=frozenset({"quick"}), slow=("slow",))
    assert LogWatch(patterns=known).broken(100.0, ("slow",)) is None


def test_only_the_beginning_of_a_line_is_searched() -> None:
    """What a search may take is bounded by it."""
    matcher = Matcher((Pattern(name="far", regex=parse("- {name: a, pattern: z}", "")[0].regex),))
    assert matcher.search(["." * 5000 + "z"]).names == frozenset()


def test_a_run_keeps_its_patterns(tmp_path: Path) -> None:
    """Whatever becomes of the file; what was damaged since is no patterns, and harms nothing."""
    run = RunDir(tmp_path / "out")
    run.create()
    assert patterns.kept(run) == ()
    mine = tmp_path / "mine.yaml"
    mine.write_text(WHOLE)
    patterns.keep(run, mine)
    mine.unlink()
    assert [pattern.name for pattern in patterns.kept(run)] == ["model loaded", "first step", "loss", "saved"]
    run.watch_log.write_text("{")
    assert patterns.kept(run) == ()
