"""Memory of the GPU, of the machine, and the part of it that processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxguard.launch.remedies import FEWER_WORKERS, MORE_SWAP
from fluxguard.supervisor.causes.cause import Cause, Seen, ends, says
from fluxguard.supervisor.causes.signatures import MACHINE

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom

_GIB = 1 << 30
_NEARLY_GONE = 0.03
"""Of the memory: with less of it free, the system kills rather than waits."""
_NEARLY_FULL = 0.97
_SWAPPING = 0.5
"""Of the swap space: with as much of it used and no memory free, a machine mostly moves pages."""
_WORKING = 80.0
_KILLS = frozenset({-9, 3221225477, 3221226505})
"""Ends that a machine without memory leaves behind: SIGKILL on Linux, an access violation or an abort on Windows."""

CUDA_MEMORY_ADVICE = (
    "Swap more blocks (--blocks_to_swap), lower the resolution or the batch size, or close what else uses the GPU."
)
_RAM_ADVICE = (
    "Use fp8 model files, fewer loader workers, a larger page file or swap space, or a machine with more RAM;"
    " FLUX with fp16 files wants about 48 GB."
)


def _kernel_killed(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    """The kernel's own count grew, and the trainer or one of its workers was ended by SIGKILL."""
    killed = evidence.ended_with(_KILLS) or any("killed by signal: Killed" in line for line in evidence.lines)
    if symptom.kind != "ended" or not evidence.out_of_memory or not killed:
        return ()
    return ("the kernel killed for memory since this attempt began (oom_kill)", *_free(evidence))


def _nearly_gone(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    host = evidence.host
    if symptom.kind != "ended" or host is None or not evidence.ended_with(_KILLS):
        return ()
    gone = host.available is not None and host.total and host.available < _NEARLY_GONE * host.total
    full = host.cgroup_used is not None and host.cgroup_limit and host.cgroup_used > _NEARLY_FULL * host.cgroup_limit
    return _free(evidence) if gone or full else ()


def _thrashing(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    host = evidence.host
    if symptom.kind not in ("idle", "stuck", "overdue") or host is None:
        return ()
    gone = host.available is not None and host.total and host.available < _NEARLY_GONE * host.total
    moved = host.swap_used is not None and host.swap_total and host.swap_used > _SWAPPING * host.swap_total
    return _free(evidence) if gone and moved else ()


def _spilled(symptom: Symptom, evidence: Evidence) -> tuple[str, ...]:
    """Only drivers of Windows move to RAM what does not fit; elsewhere a full GPU is an error, and at once."""
    if symptom.kind != "stuck" or evidence.system != "win32":
        return ()
    return tuple(
        f"GPU {card.index}: {card.used / _GIB:.1f} of {card.total / _GIB:.1f} GiB used, {card.utilisation:.0f} % busy"
        for card in evidence.cards or ()
        if card.used is not None and card.total and card.used > _NEARLY_FULL * card.total
        if card.utilisation is not None and card.utilisation > _WORKING
    )


def _free(evidence: Evidence) -> tuple[str, ...]:
    host, found = evidence.host, []
    if host is None:
        return ()
    if host.available is not None and host.total:
        found.append(f"free memory when last seen: {host.available / _GIB:.1f} of {host.total / _GIB:.1f} GiB")
    if host.cgroup_used is not None and host.cgroup_limit:
        found.append(
            f"of the container's memory used: {host.cgroup_used / _GIB:.1f} of {host.cgroup_limit / _GIB:.1f} GiB"
        )
    if host.swap_used is not None and host.swap_total:
        found.append(f"swap space used: {host.swap_used / _GIB:.1f} of {host.swap_total / _GIB:.1f} GiB")
    return tuple(found)


CAUSES = (
    Cause(
        name="GPU memory full",
        words="The GPU ran out of memory.",
        advice=CUDA_MEMORY_ADVICE,
        origin=MACHINE,
        again=False,
        remedies=(MORE_SWAP,),
        shown=(
            says(
                r"(?:CUDA|HIP) out of memory|^(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b",
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
                " 23.99 GiB of which 0 bytes is free.",
            ),
            says(r"CUDA error: out of memory|cudaErrorMemoryAllocation", "RuntimeError: CUDA error: out of memory"),
            says(
                r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
                r"|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
                "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            ),
            says(
                r"Unable to find a valid cuDNN algorithm to run convolution",
                "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
            ),
            says(r"HIP error: out of memory|hipErrorOutOfMemory", "RuntimeError: HIP error: out of memory"),
            says(
                r"NCCL WARN Cuda failure 'out of memory'",
                "gpu004:77:99 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
            ),
        ),
    ),
    Cause(
        name="GPU memory spilled",
        words="The GPU's memory is full and the driver moved a part of it to RAM, which is a hundred times slower.",
        advice=CUDA_MEMORY_ADVICE
        + " In the NVIDIA control panel, 'CUDA - Sysmem Fallback Policy' turns the spilling off.",
        origin=MACHINE,
        again=False,
        remedies=(MORE_SWAP,),
        sure=False,
        shown=(Seen("on Windows: no step comes, the GPU's memory is full, and the GPU is busy", _spilled),),
    ),
    Cause(
        name="shared memory full",
        words="The memory that loader workers share with the trainer (/dev/shm) is too small.",
        advice="Give the container more (docker run --shm-size=8g, or --ipc=host), or use fewer loader workers"
        " (--max_data_loader_n_workers).",
        origin=MACHINE,
        again=False,
        remedies=(FEWER_WORKERS,),
        shown=(
            says(
                r"is killed by signal: Bus error|It is possible that dataloader's workers are out of shared memory",
                "RuntimeError: DataLoader worker (pid 4123) is killed by signal: Bus error. It is possible that"
                " dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
            ),
            says(
                r"unable to (?:write to file|resize file|mmap \d+ bytes from file) </torch_"
                r"|unable to open shared memory object",
                "RuntimeError: unable to write to file </torch_1189_3011541283_0>: No space left on device (28)",
            ),
            says(
                r"Error while creating shared memory segment|NCCL WARN .*posix_fallocate failed",
                "gpu:77:99 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-9sN2yX to 9637892"
                " bytes, Error while creating shared memory segment",
            ),
        ),
    ),
    Cause(
        name="system memory full",
        words="The machine ran out of memory (RAM, not the GPU's), and the system ended the trainer.",
        advice=_RAM_ADVICE,
        origin=MACHINE,
        again=False,
        shown=(
            Seen(
                "it was ended by SIGKILL (exit code 137), and the kernel's count of kills for memory grew",
                _kernel_killed,
            ),
            Seen(
                "it was ended by SIGKILL (Linux) or with 0xC0000005 (Windows) while next to no memory was free",
                _nearly_gone,
            ),
            says(
                r"^(?:\w+\.)*MemoryError\b|^(?:\w+\.)*_ArrayMemoryError: |DefaultCPUAllocator: (?:can't allocate"
                r"|not enough) memory",
                "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you"
                " tried to allocate 37748736 bytes.",
            ),
            says(
                r"\[Errno 12\]|\(os error 12\)|Cannot allocate memory|\(os error 1455\)|\[WinError 1455\]",
                "OSError: [WinError 1455] The paging file is too small for this operation to complete.",
            ),
            says(
                r"unable to mmap \d+ bytes from file .*Cannot allocate",
                "RuntimeError: unable to mmap 23802932552 bytes from file <flux1-dev.safetensors>: Cannot"
                " allocate memory (12)",
            ),
            ends("exit code 0xC0000017 or 0xC000012D of Windows: no memory, commit limit", 0xC0000017, 0xC000012D),
        ),
    ),
    Cause(
        name="system memory swapping",
        words="The machine's memory is full, and it moves pages to the disk and back instead of training.",
        advice=_RAM_ADVICE,
        origin=MACHINE,
        again=False,
        sure=False,
        shown=(Seen("no progress while next to no memory is free and most of the swap space is used", _thrashing),),
    ),
)
