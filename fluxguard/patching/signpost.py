"""Stands for the guard, which lies at the root of this checkout, wherever the script that was started lies.

fluxguard puts this file into a checkout as library/fluxguard.py and takes it away again. A script in tools/ finds the
package `library` (it is installed), but not what lies beside it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_NAME = "fluxguard"


def _guard(root: Path) -> ModuleType:
    known = sys.modules.get(_NAME)
    if known is not None:
        return known
    if str(root) not in sys.path:
        sys.path.append(str(root))  # for the workers of a loader, which import by name
    package = root / _NAME
    spec = importlib.util.spec_from_file_location(
        _NAME, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} is missing: take the hardening back with `fluxguard apply-patches --revert`")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module


if __name__ == "library.fluxguard":  # and not where it waits to be put there
    sys.modules[__name__] = _guard(Path(__file__).resolve().parents[1])
