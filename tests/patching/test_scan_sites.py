"""Laws of the scan of one file: what waits is found, what is guarded is not, and a guard removes just its finding."""

from __future__ import annotations

import pytest

from fluxguard.patching.scan_sites import find, may_hold

HEAD = """\
import concurrent.futures, queue, subprocess, threading, requests, urllib.request
import numpy as np
import torch.distributed as dist
import fluxguard
from torch.utils import data
from torch.utils.data import DataLoader as Loader
from concurrent.futures import ThreadPoolExecutor, as_completed
from accelerate.utils import gather_object
from torch.distributed import all_reduce
tasks = queue.Queue()
pool = ThreadPoolExecutor(1)
"""

# kind -> (one call that waits, the same call guarded)
SITES = [
    ("future", "x = future.result()", 'x = fluxguard.result(future, "block swap")'),
    ("future", "x.image = x.image.result()", "x.image = x.image.result(timeout=5)"),
    ("future", "self.futures[0].result(timeout=None)", "self.futures[0].result(5)"),
    ("future", "list(as_completed(futures))", "list(as_completed(futures, timeout=9))"),
    ("executor", "pool.shutdown()", "fluxguard.shutdown(pool)"),
    ("executor", "self.executor.shutdown(wait=True)", "self.executor.shutdown(wait=False)"),
    ("loader", "torch.utils.data.DataLoader(d, num_workers=n)", "fluxguard.DataLoader(d, num_workers=n)"),
    ("loader", "data.DataLoader(d, num_workers=n)", "data.DataLoader(d, num_workers=n, timeout=60)"),
    ("loader", "Loader(d, **options)", "fluxguard.DataLoader(d, **options)"),
    ("cache read", "x = np.load(path)", "with fluxguard.reads(path): x = np.load(path)"),
    ("cache write", "np.savez(path, **arrays)", "fluxguard.savez(path, **arrays)"),
    ("barrier", "accelerator.wait_for_everyone()", "fluxguard.barrier(accelerator)"),
    ("barrier", "dist.barrier()", "dist.barrier(timeout=limit)"),
    ("barrier", "torch.distributed.barrier()", "torch.distributed.barrier()  # fluxguard: bounded-barriers"),
    ("collective", "accelerator.reduce(g, reduction='mean')", "fluxguard.collective(lambda: accelerator.reduce(g))"),
    ("collective", "dist.all_gather(a, b)", "fluxguard.collective(dist.all_gather, a, b)"),
    ("collective", "all_reduce(x)", "fluxguard.collective(all_reduce, x)"),
    ("object collective", "gather_object(x)", "fluxguard.collective(gather_object, x)"),
    ("state", "accelerator.save_state(d)", "fluxguard.save_state(accelerator, d)"),
    ("state", "self.accelerator.load_state(d)", "fluxguard.load_state(self.accelerator, d)"),
    ("queue", "x = tasks.get()", "x = tasks.get(timeout=5)"),
    ("queue", "x = self.task_queue.get(True)", "x = self.task_queue.get(True, 5)"),
    ("join", "thread.join()", "thread.join(5)"),
    ("wait", "event.wait()", "event.wait(timeout=5)"),
    ("wait", "out, _ = process.communicate()", "out, _ = process.communicate(timeout=5)"),
    ("process", "subprocess.run(['nvidia-smi'])", "subprocess.run(['nvidia-smi'], timeout=5)"),
    ("network", "requests.get(url)", "requests.get(url, timeout=5)"),
    ("network", "urllib.request.urlopen(url)", "urllib.request.urlopen(url, timeout=5)"),
]

SILENT = [
    "','.join(words)",
    "options.get('x')",
    "context.get()",
    "stream.wait()",
    "runner.result",
    "tensor.gather(0, index)",
    "server.shutdown()",
    "buffer = io.BytesIO()\nnp.savez(buffer, x=x)",
    "np.savez(temporary, x=x)\nos.replace(temporary, path)",
    "for future in as_completed(futures, timeout=9):\n    future.result()",
    "[f.result() for f in as_completed(futures, timeout=9)]",
    "if future.done():\n    future.result()",
    "while not tasks.empty():\n    tasks.get()",
    "with fluxguard.exit_after(60, 'it'):\n    dist.barrier()",
    "with timeout_context(30):\n    future.result()",
]


def inside(body: str, decorator: str = "", name: str = "work") -> str:
    """Return a file whose one function has this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}{decorator and decorator + chr(10)}def {name}(accelerator, rank):\n{lines}"


def kinds(text: str) -> list[str]:
    """Return the kinds of wait in a text; those on some ranks only are named so."""
    return [f"{wait.kind.name}{' on some ranks' if wait.condition else ''}" for wait in find(text)]


@pytest.mark.parametrize(("kind", "bare", "guarded"), SITES)
def test_each_wait_is_found_and_a_guard_silences_it(kind: str, bare: str, guarded: str) -> None:
    """At its line, in its function."""
    found = find(inside(f"begin()\n{bare}"))
    assert [(wait.kind.name, wait.line, wait.function) for wait in found] == [(kind, HEAD.count("\n") + 3, "work")]
    assert kinds(inside(guarded)) == []


@pytest.mark.parametrize("number", range(len(SITES)))
def test_a_guard_removes_just_its_finding(number: int) -> None:
    """All waits in one function, one of them guarded."""
    bodies = [guarded if at == number else bare for at, (_, bare, guarded) in enumerate(SITES)]
    expected = [kind for at, (kind, _, _) in enumerate(SITES) if at != number]
    assert kinds(inside("\n".join(bodies))) == expected


@pytest.mark.parametrize("body", SILENT)
def test_what_does_not_wait_for_ever_is_left_alone(body: str) -> None:
    """Each was met in a real trainer, or is next to one that was."""
    assert kinds(inside(body)) == []


def test_a_pool_in_a_with_waits_at_its_end() -> None:
    """For all its tasks, whatever limit each result has."""
    assert kinds(inside("with ThreadPoolExecutor(2) as workers:\n    workers.submit(f).result(timeout=1)")) == [
        "executor"
    ]


def test_a_guard_of_reads_bounds_reads_only() -> None:
    """A name for a phase bounds nothing."""
    body = "x = np.load(path)\nfuture.result()"
    assert kinds(inside(body, "@fluxguard.reads")) == ["future"]
    assert kinds(inside(body, "@fluxguard.bounded(30)")) == []
    assert kinds(inside(body, '@fluxguard.during("hash")')) == ["cache read", "future"]
    assert kinds(inside("accelerator.wait_for_everyone()  # fluxguard: pulse")) == ["barrier"]


def test_somebody_elses_limit_does_not_cover_a_lazy_read() -> None:
    """np.load reads a header; the data comes when its keys are looked up, where no limit holds any more."""
    assert kinds(inside("with timeout_context(30):\n    x = np.load(path)")) == ["cache read"]


def test_coroutines_do_not_block() -> None:
    """What is awaited, or made to be awaited with a limit, blocks nobody."""
    body = "    await tasks.get()\n    await asyncio.wait_for(event.wait(), 5)\n    task.result()\n"
    assert kinds(f"{HEAD}async def work():\n{body}") == []


ON_SOME_RANKS = [
    "if accelerator.is_main_process:\n    accelerator.wait_for_everyone()",
    "if accelerator.is_local_main_process and ready:\n    dist.barrier()",
    "if not is_main_process():\n    return\ndist.barrier()",
    "for x in y:\n    if rank != 0:\n        continue\n    dist.all_reduce(x)",
    "if rank == 0:\n    pass\nelse:\n    dist.all_reduce(x)",
    "if dist.get_rank() == 0:\n    dist.broadcast(x, 0)",
    "if int(os.environ['LOCAL_RANK']) == 0:\n    dist.barrier()",
    "if self.local_rank in (-1, 0):\n    fluxguard.barrier(accelerator)",
    "with lock:\n    if rank > 0:\n        return\ndist.barrier()",
]
ON_EVERY_RANK = [
    "if accelerator.is_main_process:\n    save()\naccelerator.wait_for_everyone()",
    "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)",
    "if rank not in (-1, 0):\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()",
    "if rank != -1:\n    dist.barrier()",
    "if rank >= 0:\n    dist.barrier()",
    "if world_size > 1:\n    dist.barrier()",
    "if rank is not None:\n    dist.barrier()",
    "if rank == 0:\n    def later():\n        dist.barrier()",
]


@pytest.mark.parametrize("body", ON_SOME_RANKS)
def test_what_only_some_ranks_come_to_is_named(body: str) -> None:
    """Once, with its condition, guarded or not: a guard ends such a wait, but cannot mend it."""
    found = kinds(inside(body))
    assert found in (["barrier on some ranks"], ["collective on some ranks"])


@pytest.mark.parametrize("body", ON_EVERY_RANK)
def test_what_every_rank_comes_to_is_not(body: str) -> None:
    """Paired calls, and conditions that are the same everywhere."""
    assert not [kind for kind in kinds(inside(body)) if "some ranks" in kind]


def test_most_files_are_done_with_at_a_glance() -> None:
    """That is what makes it fast."""
    assert not may_hold("import torch\nx = ','.join(y)\n")
    assert may_hold("from torch.distributed import barrier as meet\n")
    assert kinds("from torch.distributed import barrier as meet\nmeet()\n") == ["barrier"]


def test_a_warning_of_the_compiler_about_foreign_code_is_not_ours_to_show() -> None:
    """An invalid escape in a string is still Python: the file is read, and nothing is said (or this fails)."""
    assert kinds(inside("re.sub('\\(', '', text)\nfuture.result()")) == ["future"]
