"""What the supervisor, the patching and the tests cost: everything that is not the guard."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from fluxguard import heartbeat
from fluxguard.heartbeat import Heart
from tests.bench.measure import FAULTS, REPEATS, Row, median_us

FAKE = FAULTS / "fake" / "flux_train_network.py"
MINIATURE = Path(heartbeat.__file__).parent / "demo"
UNIT_REPEATS = 5
PATCHED_BYTES = 3_500_000
"""Python in a checkout of sd-scripts, tests left out."""


def heartbeat_rows(folder: Path) -> list[Row]:
    """Measure writing and reading one record."""
    path = heartbeat.path_for(Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else folder, os.getpid())
    heart = Heart(path)
    try:
        return [
            Row("heartbeat write", median_us(heart.beat, 5000), "us", 1.0),
            Row("heartbeat read", median_us(lambda: heartbeat.read(path), 500), "us", 50.0),
        ]
    finally:
        path.unlink(missing_ok=True)


def fake_run(folder: Path, name: str, *, step: float, epochs: int) -> tuple[psutil.Popen, Path]:
    """Start a supervised training of the fake trainer."""
    out = folder / name
    out.mkdir()
    process = psutil.Popen(
        [
            sys.executable, "-m", "fluxguard", "supervise", "--output-dir", str(out), "--python", sys.executable, "--",
            "python", str(FAKE), "--output_name", "x", "--max_train_epochs", str(epochs),
        ],
        env={**os.environ, "FAKE_STEP": str(step)},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return process, out


def events(out: Path) -> list[dict[str, Any]]:
    """Return the ledger of a run."""
    path = out / ".fluxguard" / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def supervisor_rows(folder: Path) -> list[Row]:
    """Measure what a supervisor costs while it watches a trainer of 20 steps a second."""
    process, _ = fake_run(folder, "watched", step=0.05, epochs=60)
    time.sleep(3)
    cpu, rss = [], []
    for _ in range(REPEATS):
        before = process.cpu_times()
        time.sleep(1)
        after = process.cpu_times()
        cpu.append(100 * (after.user + after.system - before.user - before.system))
        rss.append(process.memory_info().rss / 1e6)
    end(process, folder / "watched")
    return [
        Row("supervisor memory (RSS)", statistics.median(rss), "MB", 60.0),
        Row("supervisor processor time", statistics.median(cpu), "% of a core", 1.0),
    ]


def restart_rows(folder: Path) -> list[Row]:
    """Measure a kill: until it is detected, and from the decision to the new trainer process."""
    detected, restarted = [], []
    for number in range(REPEATS):
        process, out = fake_run(folder, f"killed-{number}", step=0.05, epochs=4)
        while sum(event["event"] == "spawned" for event in events(out)) < 1:
            time.sleep(0.02)
        time.sleep(1)
        spawned = next(event for event in events(out) if event["event"] == "spawned")
        for child in psutil.Process(spawned["keeper"]["pid"]).children():
            child.kill()
        while sum(event["event"] == "spawned" for event in events(out)) < 2:
            time.sleep(0.02)
        seen = {str(event["event"]): event for event in events(out)}
        detected.append(seen["incident"]["detected_after_s"])
        restarted.append(seen["spawned"]["at"] - seen["decision"]["at"])
        end(process, out)
    return [
        Row("crash detected after", statistics.median(detected), "s", 1.0),
        Row("decision to new trainer process", statistics.median(restarted), "s", 2.0),
    ]


def end(process: psutil.Popen, out: Path) -> None:
    """Stop a supervised training."""
    subprocess.run([sys.executable, "-m", "fluxguard", "stop", str(out)], stdout=subprocess.DEVNULL, check=False)
    process.wait(60)


def import_row() -> Row:
    """Measure what importing the guard costs a trainer."""
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(REPEATS):
        for code, costs in (("pass", bare), ("import fluxguard; fluxguard.step", ours)):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            costs.append(1000 * (time.perf_counter() - began))
    return Row("import of the guard", statistics.median(ours) - statistics.median(bare), "ms", 30.0)


def unit_row() -> Row:
    """Measure the unit tests, pytest's own start included."""
    costs = []
    for _ in range(UNIT_REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "not integration"], stdout=subprocess.DEVNULL)
        costs.append(time.perf_counter() - began)
    return Row(f"all unit tests ({UNIT_REPEATS} runs)", statistics.median(costs), "s", 5.0)


def generated_checkout(folder: Path) -> Path:
    """Return a tree about as large as sd-scripts: the miniature, and its sources again and again as other trainers."""
    checkout = folder / "sd-scripts"
    shutil.copytree(MINIATURE, checkout, ignore=shutil.ignore_patterns("__pycache__"))
    sources = sorted(path for path in checkout.rglob("*.py"))
    size = sum(path.stat().st_size for path in sources)
    for number in range(1 + PATCHED_BYTES // size):
        for path in sources:
            if path.name != "__init__.py":
                shutil.copyfile(path, path.with_name(f"{path.stem}_{number}.py"))
    return checkout


def patching_rows(folder: Path) -> list[Row]:
    """Measure hardening and checking, process start included, on a checkout of the user's or a generated tree."""
    given = os.environ.get("BENCH_CHECKOUT")
    original = Path(given) if given else generated_checkout(folder)
    name = original.name if given else "generated tree"
    command = [sys.executable, "-m", "fluxguard", "apply-patches"]
    applied: list[float] = []
    checked: list[float] = []
    for number in range(REPEATS):
        checkout = folder / f"patched-{number}"
        shutil.copytree(original, checkout, symlinks=True)
        for costs, options in ((applied, ["--partial"]), (checked, ["--check"])):
            began = time.perf_counter()
            subprocess.run([*command, str(checkout), *options], stdout=subprocess.DEVNULL, check=not given)
            costs.append(time.perf_counter() - began)
        shutil.rmtree(checkout)
    return [
        Row(f"apply-patches, {name}", statistics.median(applied), "s", 1.0),
        Row(f"apply-patches --check, {name}", statistics.median(checked), "s", 0.5),
    ]


def rows() -> list[Row]:
    """Measure all of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            *heartbeat_rows(folder),
            import_row(),
            *patching_rows(folder),
            unit_row(),
            *supervisor_rows(folder),
            *restart_rows(folder),
        ]
