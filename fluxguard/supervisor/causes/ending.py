"""Ends that are told by their code, by a name of an error, or by nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxguard.supervisor.causes.cause import Cause, Judged, Seen, ends, says
from fluxguard.supervisor.causes.signatures import INPUT, MACHINE

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom

UNKNOWN = "ended without a word"
"""The name of an end that nothing explains."""
UNVERIFIED = "no verified weights"
"""The name of an end with exit code 0 and without weights."""
_CRASH_ADVICE = "If it comes again: update the GPU driver and the trainer's packages; test the machine's memory."
_LAST_LINES = "The last lines of its output say more."


def _not_started(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    error = evidence.exit.error if evidence.exit else None
    return (error,) if error is not None else ()


def _crash(name: str, number: int, why: str, *also: int, said: str = "") -> Cause:
    shown = (says(said, f"Fatal Python error: {said.split(': ')[-1]}"),) if said else ()
    windows = "".join(f", or exit code 0x{code:X} of Windows" for code in also)
    return Cause(
        name=f"crashed ({name})",
        words=f"The trainer crashed inside compiled code ({name}): {why}.",
        advice=_CRASH_ADVICE,
        shown=(*shown, ends(f"{name}, exit code {128 + number}{windows}", -number, *also)),
    )


CAUSES = (
    Cause(
        name="could not start",
        words="The trainer could not be started: {said}.",
        advice="Check the interpreter and the working folder of the command.",
        origin=INPUT,
        again=False,
        shown=(Seen("the system refused to start the command", _not_started),),
    ),
    Cause(
        name="crashed (0xC0000005)",
        words="The trainer crashed on Windows (access violation, 0xC0000005), most often because memory ran out while"
        " loading.",
        advice="Enlarge the page file (to 64 GB and more), use fp8 model files, close other programs; then update the"
        " GPU driver.",
        origin=MACHINE,
        sure=False,
        shown=(
            ends("exit code 3221225477 (0xC0000005)", 0xC0000005),
            says(r"Windows fatal exception: access violation", "Windows fatal exception: access violation"),
        ),
    ),
    _crash("SIGSEGV", 11, "it touched memory that is not its own", said="Fatal Python error: Segmentation fault"),
    _crash("SIGABRT", 6, "a library gave up", 0xC0000409, 0xC0000374, said="Fatal Python error: Aborted"),
    _crash(
        "SIGBUS",
        7,
        "a file that was mapped into memory shrank or could not be read, or shared memory is too small",
        said="Fatal Python error: Bus error",
    ),
    _crash(
        "SIGILL",
        4,
        "a package was built for another processor",
        0xC000001D,
        said="Fatal Python error: Illegal instruction",
    ),
    _crash("SIGFPE", 8, "a library divided by zero", 0xC0000094, said="Fatal Python error: Floating point exception"),
    Cause(
        name="crashed (stack overflow)",
        words="The trainer crashed because something called itself too deep.",
        advice=_CRASH_ADVICE,
        shown=(
            ends("exit code 0xC00000FD of Windows", 0xC00000FD),
            says(
                r"Windows fatal exception: stack overflow|Cannot recover from stack overflow",
                "Windows fatal exception: stack overflow",
            ),
        ),
    ),
    Cause(
        name="gave up",
        words="The trainer ended with the code that asks for no other attempt.",
        advice=_LAST_LINES,
        again=False,
        fixed=True,
        shown=(ends("exit code 78", 78),),
    ),
    Cause(
        name="error in sampling ({what})",
        words="Making sample images failed: {said}",
        advice="Take the sample images out (--sample_every_n_epochs, --sample_prompts), or correct the prompts.",
        shown=(Judged("the traceback goes through sampling, and no row of this table knows its error"),),
    ),
    Cause(
        name="error in the trainer ({what})",
        words="The trainer stopped with an error: {said}",
        advice=_LAST_LINES,
        shown=(Judged("the error at the end of the traceback, which no row of this table knows"),),
    ),
    Cause(
        name="the same error again and again",
        words="The trainer said the same over and over before it ended: {said}",
        advice=_LAST_LINES,
        sure=False,
        shown=(Judged("nothing else explains the end, and one error was said five times or more"),),
    ),
    Cause(
        name=UNVERIFIED,
        words="The trainer said it was done, but its final weights do not verify: {said}.",
        advice=_LAST_LINES,
        fixed=True,
        shown=(
            Judged(
                "exit code 0, but the final weights are missing, older than the start or cut short, and the output does"
                " not say why"
            ),
        ),
    ),
    Cause(
        name="wrong number of steps",
        words="The trainer ended after {said} planned steps.",
        advice="Harden the trainer (`fluxguard apply-patches`): upstream's own step counting is wrong here.",
        again=False,
        fixed=True,
        shown=(Judged("exit code 0, but the steps that were trained are not those that were planned"),),
    ),
    Cause(
        name=UNKNOWN,
        words="The trainer ended {said} and said nothing that explains it.",
        advice=_LAST_LINES + " With next to no output it is most often memory: watch it while the training starts.",
        sure=False,
        shown=(Judged("it ended, and no row of this table fits"),),
    ),
)
