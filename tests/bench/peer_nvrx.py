"""What nvidia-resiliency-ext takes: beats and sections of one rank, and when it ends a silent one. A program.

Its monitor is a process of its own for each rank, told of everything over a socket.
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.measure import median_us, tell

LIMIT = 2.0
CALLS = 500
_PACKAGE = "nvidia_resiliency_ext.fault_tolerance"


def client(socket: Path) -> Any:
    """Return a connected client of a monitor."""
    os.environ["FT_RANK_MONITOR_IPC_SOCKET"] = str(socket)
    connected = importlib.import_module(f"{_PACKAGE}.rank_monitor_client").RankMonitorClient()
    connected.init_workload_monitoring()
    return connected


def lateness(server: Any, config: Any, folder: Path) -> float:
    """Return how many seconds after its limit a rank that beats no more is ended, with the limits' defaults."""
    reading, writing = os.pipe()
    socket = folder / f"{time.monotonic_ns()}.sock"
    monitor = server.run_in_subprocess(config, str(socket))
    rank = os.fork()
    if not rank:
        connected = client(socket)
        connected.send_heartbeat()
        os.write(writing, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(reading, 1)
    began = time.monotonic()
    os.waitpid(rank, 0)
    took = time.monotonic() - began
    monitor.kill()
    return took - LIMIT


def main() -> None:
    """Measure and print."""
    logging.disable()
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    config = importlib.import_module(f"{_PACKAGE}.config").FaultToleranceConfig(
        initial_rank_heartbeat_timeout=60.0,
        rank_heartbeat_timeout=LIMIT,
        rank_section_timeouts={"step": 60.0},
        rank_out_of_section_timeout=60.0,
        log_level=logging.CRITICAL,
    )
    server = importlib.import_module(f"{_PACKAGE}.rank_monitor_server").RankMonitorServer
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        late = lateness(server, config, folder)
        monitor = server.run_in_subprocess(config, str(folder / "monitor.sock"))
        connected = client(folder / "monitor.sock")

        def section() -> None:
            connected.start_section("step")
            connected.end_section("step")

        figures = {
            "beat": median_us(connected.send_heartbeat, CALLS),
            "phase": median_us(section, CALLS),
            "late": late,
        }
        monitor.kill()
    tell(figures)


if __name__ == "__main__":
    main()
