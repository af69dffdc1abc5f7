"""Several ranks: what our own errors say of them, collectives that time out, connections that close."""

from __future__ import annotations

from fluxguard.supervisor.causes.cause import Cause, Told, says, waits
from fluxguard.supervisor.causes.signatures import INPUT, MACHINE

_OWN = (
    Cause(
        name="ranks disagree",
        words="The ranks do not do the same: {said}",
        advice="Compare what each rank is said to do: a barrier, metric or save that only rank 0 comes to, or a loop"
        " that one rank leaves early. What rank 0 does alone goes into distributed.on_main; models that differ are made"
        " by distributed.load_or_init. `fluxguard scan` lists such places.",
        shown=(
            says(
                r"(?<=RanksDisagree: ).*",
                "fluxguard.errors.RanksDisagree: the ranks have come to different places: rank 0 is at #4 barrier"
                " 'only me', rank 1 is at #4 barrier 'loss'",
            ),
        ),
    ),
    Cause(
        name="ranks missing",
        words="A rank did not come to where the others wait for it: {said}",
        advice="Look at the rank that is named: at its own output, whether it was killed, or left the loop earlier than"
        " the others. One that is only slow gets more time by fluxguard.limits.use(barrier=SECONDS).",
        shown=(
            says(
                r"(?<=RanksMissing: ).*",
                "fluxguard.errors.RanksMissing: collective 'step' (#4; rank 1 did not come, or left; torch gave it up"
                " after 0.8 s); rank 1 (pid 23705) is dead: its process has ended",
                echo=True,
            ),
        ),
    ),
    Cause(
        name="setup failed",
        words="The ranks cannot work together as they were started: {said}",
        advice="Put right what the message names of that rank, then start all ranks again; `fluxguard doctor"
        " --distributed` on each of them checks it without the training.",
        origin=INPUT,
        shown=(
            says(
                r"(?<=SetupFailed: ).*",
                "fluxguard.errors.SetupFailed: rank 1 on node-b: MASTER_ADDR: is node-a, where nobody listens on port"
                " 29500 (MASTER_PORT): rank 0 has not started, has failed (look at its log), or has another"
                " MASTER_PORT",
            ),
        ),
    ),
    Cause(
        name="rank failed",
        words="Another rank failed in what it did for all: {said}",
        advice="Look at the error of the rank that is named: its own output has it in full.",
        shown=(
            says(
                r"(?<=RankFailed: ).*",
                "fluxguard.errors.RankFailed: rank 0 failed in 'evaluate': ZeroDivisionError: division by zero",
                echo=True,
            ),
        ),
    ),
)
OWN = frozenset(cause.name for cause in _OWN)
"""The names of those that errors of `fluxguard.distributed` tell."""

CAUSES = (
    *_OWN,
    Cause(
        name="barrier",
        words="A rank waits for others that do not come: {said}",
        advice="Look at what the rank that is named did; let one process make the caches before several train.",
        fixed=True,
        shown=(
            Told("barrier", "The ranks did not meet within {limit:g} s: {wait}."),
            waits(
                "a wait at a barrier is open, or a stack stands in `wait_for_everyone` or the guard's barrier",
                r"^barrier",
                "wait_for_everyone",
                "_meet",
                "monitored_barrier",
            ),
            says(
                r"^fluxguard: barrier.*did not finish within.*",
                "fluxguard: barrier (rank 3 did not come) did not finish within 300 s; this process ends with"
                " code 75, another attempt may pass",
            ),
            says(
                r"(?:Rank \d+ failed to pass monitoredBarrier|timed out in monitoredBarrier).*",
                "RuntimeError: Rank 1 failed to pass monitoredBarrier in 1800000 ms",
            ),
        ),
    ),
    Cause(
        name="collective timed out",
        words="The ranks did not meet in a collective operation in time: {said}",
        advice="One rank was slower than the others may wait, or died: look at the first rank that fell silent. Make"
        " caches in one process first, give the process group a longer timeout (--ddp_timeout of sd-scripts), and on"
        " cards without NVLink try NCCL_P2P_DISABLE=1.",
        shown=(
            says(
                r"Watchdog caught collective operation timeout: .*",
                "[rank0]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective"
                " operation"
                " timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran"
                " for 600081"
                " milliseconds before timing out.",
            ),
            says(
                r"Timed out waiting \d+ms for (?:recv|send) operation to complete",
                "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out"
                " waiting 1800000ms for recv operation to complete",
            ),
            says(
                r"Some NCCL operations have failed or timed out.*"
                r"|To avoid data inconsistency, we are taking the entire process down.*",
                "[E ProcessGroupNCCL.cpp:475] Some NCCL operations have failed or timed out.",
                echo=True,
            ),
        ),
    ),
    Cause(
        name="collective",
        words="A rank waits in a collective operation for others: {said}",
        advice="Look at the rank whose heartbeat stands still first; on cards without NVLink try NCCL_P2P_DISABLE=1.",
        sure=False,
        fixed=True,
        shown=(
            waits(
                "no progress, and a stack stands in a collective of torch.distributed",
                r"^collective",
                "all_reduce",
                "all_reduce_network",
                "all_gather",
                "all_gather_into_tensor",
                "all_gather_object",
                "broadcast",
                "broadcast_object_list",
                "reduce_scatter",
                "barrier",
            ),
        ),
    ),
    Cause(
        name="ranks cannot connect",
        words="The ranks cannot reach each other: {said}",
        advice="Another run may hold the port: choose another one (--master-port of torchrun, --main_process_port of"
        " accelerate); else check the network between the machines, and NCCL_SOCKET_IFNAME.",
        origin=MACHINE,
        shown=(
            says(
                r"(?:EADDRINUSE|[Aa]ddress already in use|server socket has failed to (?:listen|bind)).*",
                "RuntimeError: The server socket has failed to listen on any local network address. The server"
                " socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            ),
            says(
                r"ncclSystemError: .*|unhandled system error.*",
                "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, unhandled"
                " system error, NCCL version 2.20.5",
            ),
            says(
                r"(?:RendezvousTimeoutError|RendezvousConnectionError|DistStoreError): .*"
                r"|The client socket has (?:failed|timed out).*",
                "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients"
                " joined.",
            ),
        ),
    ),
    Cause(
        name="rank lost",
        words="A rank lost the connection to another one, which was gone: {said}",
        advice="Look at how the other rank ended; its own output or report names the cause.",
        sure=False,
        shown=(
            says(
                r"(?:Connection (?:closed|reset) by (?:remote )?peer|ncclRemoteError|remote process exited).*",
                "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by"
                " peer [127.0.0.1]:2915",
                echo=True,
            ),
            says(
                r"(?:recvValue failed|recvBytes failed|sendBytes failed|failed to recv, got 0 bytes).*",
                "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
                echo=True,
            ),
            says(r"Broken pipe.*", "NCCL WARN Net : Call to recv from 10.0.0.2<58355> failed : Broken pipe", echo=True),
        ),
    ),
    Cause(
        name="NCCL error",
        words="The library by which GPUs talk to each other failed: {said}",
        advice="Run once with NCCL_DEBUG=WARN to see why; on cards without NVLink try NCCL_P2P_DISABLE=1.",
        origin=MACHINE,
        shown=(
            says(
                r"(?:NCCL error|NCCL WARN|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage).*",
                "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, internal"
                " error, NCCL version 2.14.3",
                echo=True,
            ),
        ),
    ),
)
