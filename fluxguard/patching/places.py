"""Names that hardening knows: kinds of checkouts, and what it puts into one."""

from __future__ import annotations

from pathlib import Path

SD_SCRIPTS = "sd-scripts"
FLUXGYM = "fluxgym"

STAMP = ".fluxguard-stamp.json"
ORIGINALS = ".fluxguard-originals"
JOURNAL = ".fluxguard-journal"
LOCK = ".fluxguard-lock"
PACKAGE = "fluxguard"
SIGNPOST = "library/fluxguard.py"
"""Where a checkout's own packages find the guard, whatever the script that was started and wherever it lies."""

OURS = frozenset({STAMP, ORIGINALS, JOURNAL, LOCK, PACKAGE, SIGNPOST})

IMPORT = "import fluxguard"

_HERE = Path(__file__).resolve()
RULES = next(path for path in (_HERE.parents[1] / "patches", _HERE.parents[2] / "patches") if path.is_dir())
"""Where the rules lie: inside the package when it is installed, beside it in its own checkout."""
