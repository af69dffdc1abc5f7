"""The fault campaign: python -m tests.campaign [--quick] [--only KIND] [--runs N] [--seed S] [--jobs N].

Prints a line for each run as it ends and a table at the end, writes campaign.json, and exits with 1 when a run ended
wrongly. The folder of such a run stays. A single run is repeated by `--only KIND --seed S`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import psutil

from fluxguard.errors import FluxguardError
from tests.campaign.field import Field, Kind
from tests.campaign.judging import Facts, Ruling, end
from tests.campaign.kinds import KINDS, QUICK

RUNS, JOBS = 72, 2
RESULTS = Path("campaign.json")


def plan(kinds: Sequence[Kind], runs: int, seed: int) -> list[tuple[Kind, int]]:
    """Return which kinds are run with which seeds: all in turn, until there are enough."""
    return [(kinds[number % len(kinds)], seed + number // len(kinds)) for number in range(runs)]


def hold(field: Field, planned: Iterable[tuple[Kind, int]], jobs: int, tell: Callable[[Ruling], None]) -> list[Ruling]:
    """Run what is planned, so many at once; each ruling is told as it comes."""
    field.make_template()
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(_one, field, kind, seed) for kind, seed in planned]
        rulings = []
        for done in as_completed(waiting):
            rulings.append(done.result())
            tell(rulings[-1])
    return rulings


def _one(field: Field, kind: Kind, seed: int) -> Ruling:
    try:
        return field.run(kind, seed)
    except (OSError, FluxguardError, psutil.Error, subprocess.SubprocessError, AssertionError) as error:
        nothing = Facts(code=None, said="", expected=0)
        return Ruling(kind.name, seed, "", nothing, (f"the campaign itself failed: {error!r}",))


def line(ruling: Ruling) -> str:
    """Return a run in one line."""
    facts = ruling.facts
    causes = [str(event.values.get("cause")) for event in facts.of("incident")]
    healed = len(facts.of("healed"))
    verdict = "wrong" if ruling.broken else "right"
    said = f"{verdict}  {ruling.kind} (seed {ruling.seed}): {end(facts) or 'no end'}, {facts.applied}/{facts.expected}"
    said += f", {', '.join(causes) or 'no incident'}{f', {healed} healed' if healed else ''}"
    said += f" [{ruling.moment}; {ruling.seconds:.0f} s]"
    return "\n".join([said, *(f"       {words}" for words in ruling.broken)])


def table(rulings: Sequence[Ruling]) -> str:
    """Return the results by kind."""
    rows = [f"{'kind':<48} {'runs':>4} {'right':>5} {'finished':>8} {'stopped':>7} {'seconds':>7}"]
    for kind in dict.fromkeys(ruling.kind for ruling in sorted(rulings, key=lambda ruling: ruling.kind)):
        mine = [ruling for ruling in rulings if ruling.kind == kind]
        right = sum(not ruling.broken for ruling in mine)
        ends = [end(ruling.facts) for ruling in mine]
        mean = sum(ruling.seconds for ruling in mine) / len(mine)
        counts = f"{len(mine):>4} {right:>5} {ends.count('finished'):>8} {len(mine) - ends.count('finished'):>7}"
        rows.append(f"{kind:<48} {counts} {mean:>7.0f}")
    return "\n".join(rows)


def summary(rulings: Sequence[Ruling], seconds: float) -> dict[str, object]:
    """Return the results as plain values."""
    return {
        "runs": len(rulings),
        "kinds": len({ruling.kind for ruling in rulings}),
        "right": sum(not ruling.broken for ruling in rulings),
        "wrong step totals": sum(end(r.facts) == "finished" and r.facts.applied != r.facts.expected for r in rulings),
        "left behind": sum(bool(r.facts.left) for r in rulings),
        "minutes": round(seconds / 60, 1),
        "each": [
            {
                "kind": ruling.kind,
                "seed": ruling.seed,
                "moment": ruling.moment,
                "end": end(ruling.facts),
                "reason": ruling.facts.reason,
                "causes": [event.values.get("cause") for event in ruling.facts.of("incident")],
                "healed": len(ruling.facts.of("healed")),
                "applied": ruling.facts.applied,
                "identical": ruling.facts.identical,
                "seconds": ruling.seconds,
                "broken": list(ruling.broken),
            }
            for ruling in sorted(rulings, key=lambda ruling: (ruling.kind, ruling.seed))
        ],
    }


def say(text: str) -> None:
    """Write a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Hold a campaign; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--quick", action="store_true", help="only the kinds that the tests run")
    parser.add_argument("--only", action="append", default=[], help="kinds whose name begins so")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("CAMPAIGN_SEED", "1")))
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--folder", type=Path, help="where the runs happen; made when it is not there")
    chosen = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if not chosen.quick or kind.name in QUICK]
    kinds = [kind for kind in kinds if not chosen.only or any(kind.name.startswith(word) for word in chosen.only)]
    for kind in [kind for kind in kinds if not kind.possible()]:
        say(f"left out: {kind.name} (it needs the rights of root)")
    kinds = [kind for kind in kinds if kind.possible()]
    runs = chosen.runs or (len(kinds) if chosen.quick or chosen.only else max(RUNS, len(kinds)))
    say(f"{runs} runs over {len(kinds)} kinds of faults, seed {chosen.seed}")
    began = time.monotonic()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="campaign-"))
    rulings = hold(Field(folder), plan(kinds, runs, chosen.seed), chosen.jobs, lambda one: say(line(one)))
    found = summary(rulings, time.monotonic() - began)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    say(f"\n{table(rulings)}\n")
    say(f"{found['right']} of {found['runs']} ended right, {found['minutes']} minutes; runs that did not: {folder}")
    return 0 if found["right"] == found["runs"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
