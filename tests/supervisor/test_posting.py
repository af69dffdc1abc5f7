"""Laws of sending: whatever the network does, a supervision neither waits nor fails. Real processes, loopback only."""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fluxguard.clock import SystemClock
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir
from fluxguard.supervisor.ledger import Event, Ledger
from fluxguard.supervisor.messages import posting
from fluxguard.supervisor.messages.notifying import VARIABLE, trial
from fluxguard.supervisor.messages.posting import Postbox, Result
from tests.supervisor.conftest import FakeRun
from tests.supervisor.receivers import SECRET, receiver, silence

pytestmark = pytest.mark.integration

STOPPED = Event("stopped", 1.0, {"reason": "stopped on request", "applied_steps": 4})


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run in which nothing has happened yet."""
    made = RunDir(tmp_path / "my-lora")
    made.create()
    return made


def test_a_message_arrives() -> None:
    """As Apprise's own JSON, with its kind."""
    with receiver() as there:
        assert posting.send([there.url], [trial()]) == [Result(there.url, True, "")]
    assert there.got[0]["title"] == "fluxguard: a test message"
    assert there.got[0]["type"] == "info"


def test_a_service_that_fails_for_a_moment_is_asked_again() -> None:
    """And the message arrives."""
    with receiver(503) as there:
        assert posting.send([there.url], [trial()])[0].ok
    assert len(there.got) == 2


def test_a_service_that_refuses_is_not_asked_again() -> None:
    """A wrong key stays wrong; its answer is the reason."""
    with receiver(401) as there:
        assert posting.send([there.url], [trial()]) == [Result(there.url, False, "it answered 401")]
    assert len(there.got) == 1


def test_one_service_does_not_keep_another_waiting() -> None:
    """The silent one is given up, the other one has its message."""
    with receiver() as there, silence() as nowhere:
        began = time.monotonic()
        results = posting.send([nowhere, there.url], [trial()], seconds=2.0)
        assert time.monotonic() - began < 2.0 + posting._AFTER
    assert [result.ok for result in results] == [False, True]
    assert results[0].why == "no answer within 2 s"
    assert len(there.got) == 1


@pytest.mark.parametrize("url", ["nosuch://nobody-may-read-this", "discord://nobody-may-read-this"])
def test_a_url_that_apprise_does_not_know_is_refused(url: str) -> None:
    """Before anything starts, and without its secrets."""
    with pytest.raises(InputError, match="no URL that Apprise knows") as caught:
        posting.check(["json://127.0.0.1:9", url])
    assert SECRET not in str(caught.value)


def test_apprise_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that says how to get it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install apprise"):
        posting.check(["json://127.0.0.1:9"])


def test_a_listener_never_waits(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that never answers costs the caller nothing, and the end no more than its bound."""
    monkeypatch.setattr(posting, "NOTIFY_SEND", 1.5)
    with silence() as nowhere, Postbox(run, [nowhere], SystemClock()) as postbox:
        began = time.monotonic()
        for _ in range(1000):
            postbox.tell(STOPPED)
        assert time.monotonic() - began < 0.1
        postbox.close(longest=0.5)
        assert time.monotonic() - began < 2.0
        for thread in postbox._sending:
            thread.join(5)
            assert not thread.is_alive()  # the process has ended itself


def test_the_last_message_is_waited_for(run: RunDir) -> None:
    """When the postbox is closed, it has arrived."""
    with receiver() as there, Postbox(run, [there.url], SystemClock()) as postbox:
        postbox.tell(STOPPED)
        postbox.close()
        assert there.titles == ["stopped"]


def test_what_was_held_back_is_told_at_the_end(run: RunDir) -> None:
    """A supervisor that leaves has nobody left to tell it."""
    values = {"number": 1, "cause": "c", "step": 5, "report": None, "words": "It hung."}
    now = time.time()
    hang, again = Event("incident", now, values), Event("decision", now, {"action": "restart", "reason": "r"})
    with receiver() as there, Postbox(run, [there.url], SystemClock()) as postbox:
        for event in (hang, again, hang, again, hang, again):
            postbox.tell(event)
        postbox.close()
        assert sorted(there.titles) == ["restarted", "restarted 2 times"]


def test_a_failure_is_one_line_without_secrets(run: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    """It names the scheme and the host."""
    with receiver(403) as there, caplog.at_level(logging.WARNING):
        with Postbox(run, [there.url], SystemClock()) as postbox:
            postbox.tell(STOPPED)
            postbox.close()
        host = there.url.partition("@")[2].partition("/")[0]
    assert [record.getMessage() for record in caplog.records] == [f"no notification by json://{host}: it answered 403"]


def test_a_message_that_cannot_be_sent_at_all_costs_a_line(
    run: RunDir, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process can be started: the next message is tried all the same."""

    def short(*_: object, **__: object) -> None:
        raise OSError(12, f"no processes left for {SECRET}")

    monkeypatch.setattr(posting, "_start", short)
    with caplog.at_level(logging.WARNING), Postbox(run, ["json://127.0.0.1:9"], SystemClock()) as postbox:
        postbox.tell(STOPPED)
        postbox.tell(STOPPED)
        postbox.close()
    said = {record.getMessage() for record in caplog.records}
    assert said == {"a notification was lost (OSError)"}


def test_nobody_to_tell_is_no_thread(run: RunDir) -> None:
    """It costs nothing."""
    with Postbox(run, [], SystemClock()) as postbox:
        postbox.tell(STOPPED)
        assert "postbox" not in {thread.name for thread in threading.enumerate()}


def test_a_supervised_run_is_told_of(fake: Callable[..., FakeRun]) -> None:
    """A restart, then the end, which the trainer's environment and the files of the run know nothing of."""
    run = fake()
    run.fault("hang", 10)
    supervision = run.supervision()
    with receiver() as there, Postbox(run.run, [there.url], SystemClock()) as postbox:
        supervision.ledger = Ledger(run.run.ledger, SystemClock(), (postbox.tell,))
        assert supervision.to_the_end().finished
        postbox.close()
    assert there.titles == ["restarted", "finished and verified"]
    assert "step 40 of 40" in there.got[1]["message"]
    assert "no progress" in there.got[0]["message"] or "Nothing" in there.got[0]["message"]
    assert VARIABLE not in os.environ
    files = [path for path in run.run.output_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
