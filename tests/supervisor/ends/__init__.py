"""Outputs of trainers that ended, written after the messages of the real ones: one file per theme of causes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fluxguard.supervisor.detecting.observation import Exit

FOLDER = Path(__file__).parent
_HEAD = re.compile(r"^=== (?P<cause>.*?)(?: \| (?P<how>code|signal) (?P<number>-?\d+))?$")

HEAD = "Traceback (most recent call last):"
CHAINED = "During handling of the above exception, another exception occurred:"

START = """\
2026-02-01 17:36:17 INFO     highvram is enabled /            train_util.py:4409
                    WARNING  cache_latents_to_disk is         train_util.py:4426
                             enabled, so cache_latents is
WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:
A matching Triton is not available, some optimizations will not be enabled
Traceback (most recent call last):
  File "/env/lib/python3.10/site-packages/xformers/__init__.py", line 57, in _is_triton_available
    import triton  # noqa
ModuleNotFoundError: No module named 'triton'
                    INFO     prepare images.                  train_util.py:2112
                    WARNING  no regularization images /       train_util.py:2167
                    INFO     caching latents...               train_util.py:1170
                    WARNING  Failed to get git commit      sai_model_spec.py:288
running training / 学習開始
epoch 1/4
steps:   2%|2         | 1/40 [00:01<00:40,  1.00it/s, avr_loss=0.71]
steps:  20%|##        | 8/40 [00:08<00:32,  1.00it/s, avr_loss=0.71]
steps:  38%|###8      | 15/40 [00:15<00:25,  1.00it/s, avr_loss=0.71]"""
"""What a healthy trainer printed before: all of it reads worse than it is."""

LAUNCHER = """\
steps:  40%|####      | 16/40 [00:16<00:24,  1.00it/s, avr_loss=0.71]
Traceback (most recent call last):
  File "/env/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/env/lib/python3.10/site-packages/accelerate/commands/launch.py", line 763, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/env/bin/python', 'flux_train_network.py', '--blocks_to_swap', '18', \
'--pretrained_model_name_or_path', 'No space left on device']' returned non-zero exit status 1."""
"""What the launcher prints behind it; it repeats the whole command, whatever that holds."""


@dataclass(frozen=True)
class End:
    """One output and how its process ended."""

    cause: str
    exit: Exit
    lines: tuple[str, ...]
    name: str


def ends() -> Iterator[End]:
    """Yield every output of this folder."""
    for path in sorted(FOLDER.glob("*.txt")):
        head, lines = None, []
        for number, line in enumerate([*path.read_text("utf-8").splitlines(), "=== "], start=1):
            if not line.startswith("=== "):
                lines.append(line)
                continue
            if head is not None:
                yield _end(head, lines, f"{path.stem}-{number}")
            head, lines = _HEAD.match(line), []


def _end(head: re.Match[str], lines: list[str], name: str) -> End:
    number = int(head["number"] or 1)
    exit = Exit(signal=number) if head["how"] == "signal" else Exit(code=number)
    return End(head["cause"], exit, tuple(lines), name)


def after_start(lines: tuple[str, ...]) -> list[str]:
    """Return an output behind a healthy start; its first line is glued to the bar, which ends in no newline."""
    *start, bar = START.splitlines()
    return [*start, bar + lines[0], *lines[1:]] if lines else [*start, bar]


def on_the_page(lines: list[str]) -> list[str]:
    """Return an output as FluxGym's page shows it: each line behind a time, its indentation gone."""
    return [f"[2026-02-01 17:36:17] [INFO] {line.strip()}" for line in lines]


def coloured(lines: list[str]) -> list[str]:
    """Return an output as a terminal gets it."""
    return [f"\x1b[1;31m{line}\x1b[0m" for line in lines]
