"""Ends and stops that come from outside the training: people, the page, the system."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fluxguard.supervisor.causes import signatures
from fluxguard.supervisor.causes.cause import Cause, Judged, Says, Seen, ends, says
from fluxguard.supervisor.causes.signatures import OUTSIDE

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom


def _stopped(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    return evidence.stopped(symptom)


_WHO = "if it comes again, see who ends it (system log, container limits)."
NOTHING = f"Nothing has to be done; {_WHO}"
UNSUPERVISED = "Nobody starts it again: `fluxguard supervise` would have. " + _WHO[:1].upper() + _WHO[1:]
"""The same advice for a training that nobody supervised."""
UNSEEN = "killed from outside"
"""The name of an end that took the keeper too."""
SIGKILL = "killed from outside (SIGKILL)"
_RAM_WORDS = (
    "Something outside ended the trainer with SIGKILL while it loaded models: most likely the system, because its"
    " memory (RAM) ran out."
)
_RAM_ADVICE = (
    "Look at the free memory while it loads: FLUX with fp16 files wants 32 to 64 GB of RAM. Use fp8 model files, more"
    " swap space or a larger container limit; the system log says whether the system killed for memory."
)
_LOADS = re.compile(
    r"(?i)\b(?:load(?:ing|ed) (?:state dict|t5xxl|clip|ae\b|flux|checkpoint shards|model)|cast(?:ing)? (?:flux|model)"
    r"|building (?:flux|autoencoder|clip|t5))"
)
_TRAINS = re.compile(r"\b\d{1,3}%\||\b[Cc]aching\b|^\s*epoch \d")


def _loading(symptom: Symptom, evidence: Evidence) -> bool:
    """Return whether it ended while it loaded or converted models, which takes the most memory of the machine."""
    for line in reversed(signatures.read(evidence.lines)):
        if _LOADS.search(line.text):
            return True
        if _TRAINS.search(line.text):
            return False
    return symptom.phase == "cast"


def for_memory(symptom: Symptom, evidence: Evidence) -> dict[str, str]:
    """Return what is said otherwise of a SIGKILL that most likely came because the system's memory ran out."""
    return {"words": _RAM_WORDS, "advice": _RAM_ADVICE} if _loading(symptom, evidence) else {}


def _killed(signal: str, number: int, who: str, *more: Says, also: tuple[int, ...] = (), sure: bool = True) -> Cause:
    return Cause(
        name=f"killed from outside ({signal})",
        words=f"Something outside ended the trainer with {signal}: {who}.",
        advice=NOTHING,
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
        name=UNSEEN,
        words="Something outside ended the training and the process that keeps it: a person, a container or a session"
        " that was closed, or the system because memory ran out.",
        advice=NOTHING,
        origin=OUTSIDE,
        sure=False,
        shown=(
            Judged(
                "nobody saw the end, the keeper of the attempt is gone as well, the machine was not restarted, and the"
                " output does not say why"
            ),
        ),
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
