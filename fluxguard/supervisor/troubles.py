"""What a trainer tells beside its progress, in plain words: nothing of it ends a run, all of it explains one."""

from __future__ import annotations

from fluxguard.heartbeat import Beat


def troubles(beat: Beat | None) -> tuple[str, ...]:
    """Return what is not as it should be in a training that goes on."""
    if beat is None:
        return ()
    told = []
    if beat.retries or beat.ooms:
        told.append(
            f"the GPU's memory is full: its allocator had to make room {_times(max(beat.retries, beat.ooms))},"
            " which is slow; swap more blocks or lower the resolution"
        )
    if beat.unstepped:
        told.append(f"an optimizer did not step, {_times(beat.unstepped)}: a part of the model is not trained")
    if beat.unsampled:
        told.append(f"sampling failed {_times(beat.unsampled)}; the reason is in the output")
    return tuple(told)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
