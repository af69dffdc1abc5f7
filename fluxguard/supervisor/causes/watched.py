"""What the user's own log patterns found."""

from __future__ import annotations

from fluxguard.supervisor.causes.cause import Cause, waits

WATCHED = "watched log: {what}"

CAUSES = (
    Cause(
        name=WATCHED,
        words="Your own log pattern '{what}' speaks: {said}",
        advice="The pattern is in the file that --watch-log names.",
        fixed=True,
        shown=(waits("a pattern of --watch-log FILE.yaml; with `then: stop` the run is not started again"),),
    ),
)
