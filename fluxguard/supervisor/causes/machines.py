"""Several machines: the rendezvous at which their agents meet is gone, closed, or too few come to it."""

from __future__ import annotations

from fluxguard.supervisor.causes.cause import Cause, Seen, says, waits
from fluxguard.supervisor.causes.signatures import MACHINE

CAUSES = (
    Cause(
        name="rendezvous gone",
        words="The machine that holds the rendezvous is gone, or cannot be reached from here: {said}",
        advice="Start the command of that machine again, and this one joins it. Where it does not come back, start all"
        " others again with another machine in --rdzv-endpoint: they go on from the newest state.",
        origin=MACHINE,
        fixed=True,
        shown=(
            says(
                r"RendezvousConnectionError: .*",
                "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store"
                " has failed. See inner exception for details.",
            ),
            waits("a stack of the agent stands in a question to the rendezvous", "", "_call_store"),
            Seen(
                "nothing better is known, and the address of the rendezvous does not answer",
                lambda _, evidence: evidence.rendezvous,
                late=True,
            ),
        ),
    ),
    Cause(
        name="rendezvous closed",
        words="The agent of another machine has closed the rendezvous: it was done, or had used up its restarts.",
        advice="Look at how the other machines ended: `fluxguard status` there, or their own output.",
        origin=MACHINE,
        fixed=True,
        shown=(
            says(
                r"RendezvousClosedError\b.*",
                "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
            ),
        ),
    ),
    Cause(
        name="machines missing",
        words="Too few machines came to the rendezvous in time: {said}",
        advice="Start the command on the other machines too. Where fewer may train, say so: --nnodes=1:2; where they"
        " need longer to come, raise join_timeout in --rdzv-conf.",
        origin=MACHINE,
        fixed=True,
        shown=(
            says(
                r"RendezvousTimeoutError\b.*",
                "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
                whole=True,
            ),
            waits("a stack of the agent stands in the rendezvous, where it waits for others", "", "next_rendezvous"),
        ),
    ),
)
