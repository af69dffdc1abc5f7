"""Disks: full, over a quota, not to be written, not to be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxguard.supervisor.causes.cause import Cause, Seen, says
from fluxguard.supervisor.causes.signatures import INPUT, MACHINE

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom


def _no_room(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    if symptom.kind != "ended" or not evidence.disk_full:
        return ()
    return ("nothing more can be written in the output folder",)


def _in_kernel(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    if symptom.kind == "ended" or evidence.usage is None or not evidence.usage.unkillable:
        return ()
    pids = ", ".join(map(str, evidence.usage.unkillable))
    return (f"process {pids} is in an uninterruptible wait of the kernel (state D)",)


CAUSES = (
    Cause(
        name="disk full",
        words="The disk that the training saves to is full.",
        advice="Free some space, then start the run again with the same command: it resumes.",
        origin=MACHINE,
        again=False,
        shown=(
            Seen("no room is left in the output folder when the trainer has ended", _no_room),
            says(
                r"\[Errno 28\]|No space left on device(?! \(28\))|\(os error 28\)"
                r"|There is not enough space on the disk|\[WinError 112\]",
                "OSError: [Errno 28] No space left on device",
            ),
            says(
                r"PytorchStreamWriter failed writing file|inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
                "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64704 vs 64598",
            ),
        ),
    ),
    Cause(
        name="disk quota used up",
        words="The quota of this user or folder is used up: the disk takes nothing more of it.",
        advice="Delete what is not needed, or ask for a larger quota, then start the run again: it resumes.",
        origin=MACHINE,
        again=False,
        shown=(
            says(
                r"\[Errno 122\]|Disk quota exceeded|\(os error 122\)",
                "OSError: [Errno 122] Disk quota exceeded: 'out/lora-000004-state'",
            ),
        ),
    ),
    Cause(
        name="read-only disk",
        words="The trainer cannot write where it should: that file system is read-only.",
        advice="Choose an output folder that can be written; a disk that was writable before became read-only because"
        " of errors: look at the system log (dmesg).",
        origin=MACHINE,
        again=False,
        shown=(
            says(
                r"\[Errno 30\]|Read-only file system|\(os error 30\)",
                "OSError: [Errno 30] Read-only file system: '/data/out/lora.safetensors'",
            ),
        ),
    ),
    Cause(
        name="no permission",
        words="The trainer may not read or write a file: {said}",
        advice="Give this user the right to it, or choose another folder; on Windows close what holds the file open.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"^PermissionError: .*",
                "PermissionError: [Errno 13] Permission denied: '/data/out/lora-000001.safetensors'",
            ),
            says(
                r"Permission denied \(os error 13\).*",
                "safetensors_rust.SafetensorError: Error while serializing: Permission denied (os error 13)",
            ),
        ),
    ),
    Cause(
        name="too many open files",
        words="The trainer holds more files open than the system allows one process.",
        advice="Raise the limit before the start (ulimit -n 65536), or use fewer loader workers.",
        origin=MACHINE,
        again=False,
        shown=(
            says(
                r"\[Errno 24\]|Too many open files|\(os error 24\)",
                "OSError: [Errno 24] Too many open files: '/data/img/0001.npz'",
            ),
            says(r"received 0 items of ancdata", "RuntimeError: received 0 items of ancdata"),
        ),
    ),
    Cause(
        name="disk error",
        words="A disk or network share failed while it was read or written: {said}",
        advice="Look at the system log (dmesg) and at the disk; copy models and images to a local disk.",
        origin=MACHINE,
        shown=(
            says(
                r"^OSError: \[Errno (?:5|70|107|108|112|116|121)\].*",
                "OSError: [Errno 5] Input/output error: '/mnt/nas/img/0003.npz'",
            ),
            says(
                r"(?:Input/output error|Stale file handle|Transport endpoint is not connected"
                r"|Stale NFS file handle).*",
                "OSError: [Errno 116] Stale file handle: '/mnt/nas/img/0003.npz'",
                whole=True,
            ),
        ),
    ),
    Cause(
        name="disk or driver",
        words="The training waits inside the kernel for a disk, a network share or a driver that does not answer.",
        advice="Look at the disk or share that holds models and data, and at the system log.",
        origin=MACHINE,
        sure=False,
        shown=(Seen("no progress, and a process is in an uninterruptible wait (state D)", _in_kernel, late=True),),
    ),
)
