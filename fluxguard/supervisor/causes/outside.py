"""Ends and stops that come from outside the training: people, the page, the system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxguard.supervisor.causes.cause import Cause, Judged, Says, Seen, ends, says
from fluxguard.supervisor.causes.signatures import OUTSIDE

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom


def _stopped(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    return evidence.stopped(symptom)


_NOTHING = "Nothing has to be done; if it comes again, see who ends it (system log, container limits)."


def _killed(signal: str, number: int, who: str, *more: Says, also: tuple[int, ...] = (), sure: bool = True) -> Cause:
    return Cause(
        name=f"killed from outside ({signal})",
        words=f"Something outside ended the trainer with {signal}: {who}.",
        advice=_NOTHING,
        origin=OUTSIDE,
        sure=sure,
        shown=(*more, ends(f"{signal}, or exit code {128 + number}", -number, *also)),
    )


CAUSES = (
    Cause(
        name="page closed",
        words="The page that ran the training ended it, as it does when its browser tab is closed or loses its"
        " connection.",
        advice="Start it under `fluxguard supervise` or fluxguard's own page: there it goes on without a browser.",
        origin=OUTSIDE,
        shown=(
            says(
                r"^(?:Terminating|Killing) process:? <Popen: .*",
                "Terminating process <Popen: returncode: None args: ['bash \"/workspace/fluxgym/outputs/styles...>",
            ),
            says(
                r"Keyboard interruption in main thread\.\.\. closing server",
                "Keyboard interruption in main thread... closing server.",
            ),
        ),
    ),
    _killed(
        "SIGKILL",
        9,
        "a person, the system because memory ran out, or the machine's host",
        sure=False,
    ),
    _killed(
        "SIGTERM",
        15,
        "a person, a scheduler, or a machine that shuts down",
        says(
            r"got signal: 15|SignalException: .*\b15\b",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15",
        ),
    ),
    _killed(
        "SIGINT",
        2,
        "somebody pressed Ctrl-C",
        says(r"^KeyboardInterrupt\b|got signal: 2\b", "KeyboardInterrupt"),
        also=(0xC000013A,),
    ),
    _killed(
        "SIGHUP",
        1,
        "the terminal or the connection it was started from was closed",
        says(
            r"got signal: 1\b",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 1",
        ),
        also=(0x40010004,),
    ),
    Cause(
        name="trainer stopped",
        words="The training was stopped (as by SIGSTOP): {said}.",
        advice="See what stops processes on this machine (a debugger, a suspending scheduler, Ctrl-Z, a selection in a"
        " Windows console).",
        origin=OUTSIDE,
        shown=(Seen("no progress, and processes of the training are in the state 'stopped'", _stopped),),
    ),
    Cause(
        name="machine restarted",
        words="The machine was restarted while it trained.",
        advice="Nothing has to be done; `fluxguard resume-all` at each start of the machine does it by itself.",
        origin=OUTSIDE,
        fixed=True,
        shown=(Judged("nobody saw the end, and the machine started later than the attempt"),),
    ),
    Cause(
        name="output folder gone",
        words="The output folder was removed, or its disk went away, while the training went on.",
        advice="When the folder is back, start the run again with the same command: it goes on from what is in it.",
        origin=OUTSIDE,
        again=False,
        fixed=True,
        shown=(Judged("the folder of the run is not there any more"),),
    ),
)
