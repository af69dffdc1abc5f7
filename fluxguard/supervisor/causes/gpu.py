"""The GPU, its driver, and a training that does not use it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fluxguard.supervisor.causes.cause import Cause, Seen, says
from fluxguard.supervisor.causes.signatures import INPUT, MACHINE
from fluxguard.supervisor.detecting.signs import strained_little
from fluxguard.supervisor.sensing.gpu import used_by

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom

_XID = re.compile(r"Xid (?:\([^)]*\): )?(\d+)")
_OFF_THE_BUS = frozenset({79, 154})
_ECC = frozenset({48, 63, 64, 92, 94, 95, 140})
_CPU_SAID = re.compile(r"accelerator device:\s+cpu\s*$")


def _xids(evidence: Evidence, wanted: frozenset[int] | None) -> tuple[str, ...]:
    """Return the driver's reports of these numbers; None wants those that name no special cause."""
    special = _OFF_THE_BUS | _ECC
    found = []
    for text in evidence.xids:
        number = int(shown[1]) if (shown := _XID.search(text)) else None
        if number in wanted if wanted is not None else number not in special:
            found.append(text)
    return tuple(found)


def _lost(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    return _xids(evidence, _OFF_THE_BUS)


def _memory_fault(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    return _xids(evidence, _ECC)


def _reported(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    """Reports that any faulty program causes explain a hang, but not an end that has words of its own."""
    return _xids(evidence, None) if symptom.kind != "ended" else ()


def _idling(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    if symptom.kind != "stuck" or symptom.phase not in ("first step", "step", "validation"):
        return ()
    return tuple(
        f"GPU {card.index}: {card.utilisation:.0f} % busy, but at {card.watts:.0f} of {card.watt_limit:.0f} W"
        for card in used_by(
            evidence.cards or (), [pid for pid, _, _ in evidence.usage.states] if evidence.usage else ()
        )
        if strained_little(card)
    )


def _on_cpu(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    """A machine without a card is meant to train on its processor, as tests do."""
    if symptom.kind not in ("idle", "stuck") or not evidence.cards:
        return ()
    return tuple(line.strip() for line in evidence.lines if _CPU_SAID.search(line))


_DRIVER_ADVICE = (
    "If it comes again: update the driver, take back overclocking, and look at the temperature, the power supply and"
    " the slot of the card."
)

CAUSES = (
    Cause(
        name="GPU lost",
        words="The GPU is gone: the driver no longer reaches it.",
        advice="Switch the machine off and on. If it comes again: look at the power supply, its cables, the slot and"
        " the temperature.",
        origin=MACHINE,
        again=False,
        shown=(
            Seen("the driver reports XID 79 or 154", _lost),
            says(
                r"GPU (?:\S+ )?(?:has )?fallen off the bus|Xid \([^)]*\): (?:79|154)\b"
                r"|Unable to determine the device handle for GPU.*(?:Unknown Error|GPU is lost)",
                "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus.",
            ),
            says(
                r"CUDA error: (?:unknown error|device not ready|all CUDA-capable devices are busy or unavailable)",
                "RuntimeError: CUDA error: unknown error",
            ),
        ),
    ),
    Cause(
        name="GPU memory faulty",
        words="The GPU's memory has an error that cannot be corrected (ECC).",
        advice="Restart the machine; if it comes again, the card is broken: have it replaced.",
        origin=MACHINE,
        again=False,
        shown=(
            Seen("the driver reports XID 48, 63, 64, 92, 94, 95 or 140", _memory_fault),
            says(
                r"uncorrectable ECC error|Xid \([^)]*\): (?:48|63|64|92|94|95|140)\b",
                "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            ),
        ),
    ),
    Cause(
        name="GPU driver mismatch",
        words="The GPU's driver does not fit: {said}",
        advice="Restart the machine after a driver update; else install a newer driver, or a torch for an older CUDA.",
        origin=MACHINE,
        again=False,
        shown=(
            says(r"[Dd]river/library version mismatch", "Failed to initialize NVML: Driver/library version mismatch"),
            says(
                r"CUDA driver version is insufficient for CUDA runtime version"
                r"|The NVIDIA driver on your system is too old.*"
                r"|system has unsupported display driver / cuda driver combination",
                "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
            ),
            says(
                r"CUDA error: (?:forward compatibility was attempted"
                r"|the provided PTX was compiled with an unsupported toolchain).*",
                "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
            ),
        ),
    ),
    Cause(
        name="no GPU found",
        words="The trainer finds no GPU: {said}",
        advice="Check nvidia-smi, CUDA_VISIBLE_DEVICES, and in a container the option --gpus all.",
        origin=INPUT,
        again=False,
        shown=(
            says(
                r"No CUDA GPUs are available|Found no NVIDIA driver on your system.*"
                r"|no CUDA-capable device is detected|CUDA error: invalid device ordinal|No HIP GPUs are available",
                "RuntimeError: No CUDA GPUs are available",
            ),
            says(
                r"^ValueError: fp16 mixed precision requires a GPU.*",
                "ValueError: fp16 mixed precision requires a GPU (not 'cpu').",
            ),
        ),
    ),
    Cause(
        name="training on the CPU",
        words="The training runs on the processor although this machine has a GPU: accelerate is set up so.",
        advice="Run `accelerate config` anew (no CPU only), or delete"
        " ~/.cache/huggingface/accelerate/default_config.yaml.",
        origin=INPUT,
        again=False,
        shown=(Seen("no progress, the machine has a GPU, and the output says 'accelerator device: cpu'", _on_cpu),),
    ),
    Cause(
        name="index outside a table",
        words="A kernel on the GPU met an index outside its table (device-side assert).",
        advice="Mostly a caption or a label that the model cannot hold, or a model that is not what its flags say;"
        " with CUDA_LAUNCH_BLOCKING=1 the traceback names the place.",
        shown=(
            says(
                r"device-side assert triggered|Assertion `.*` failed\.$",
                "RuntimeError: CUDA error: device-side assert triggered",
            ),
        ),
    ),
    Cause(
        name="GPU fault",
        words="The GPU or its driver failed: {said}",
        advice=_DRIVER_ADVICE,
        origin=MACHINE,
        shown=(
            says(
                r"CUDA error: .*|HIP error: .*|cudaError\w+|CUDA driver error: .*",
                "RuntimeError: CUDA error: an illegal memory access was encountered",
            ),
            says(
                r"CUBLAS_STATUS_(?!ALLOC_FAILED)\w+.*|CUDNN_STATUS_(?!ALLOC_FAILED)\w+.*|CUSOLVER_STATUS_\w+.*",
                "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
            ),
            says(r"NVRM: Xid.*", "NVRM: Xid (PCI:0000:01:00): 62, pid=1234, 0x1 0x2 0x3"),
            Seen("no progress, and the driver reports another XID", _reported),
        ),
    ),
    Cause(
        name="GPU busy without work",
        words="No step comes although the GPU seems busy: it draws so little power that it does not compute.",
        advice="If it comes again: batch size 1 where blocks are swapped, an update of the GPU driver, no other program"
        " on the card.",
        sure=False,
        fixed=True,
        shown=(Seen("in a step, the GPU is busy while it draws next to no power", _idling, late=True),),
    ),
)
