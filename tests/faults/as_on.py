"""Runs a program as on another platform: python as_on.py windows|macos PROGRAM ARGUMENTS.

The guard and the program see a `sys`, `os`, `signal` and `faulthandler` without what the platform lacks, and with its
names; nobody finds /proc; and worker processes are spawned, with the same taken away from them.

What it cannot show: the standard library and torch below are those of POSIX, so a kill is a SIGKILL, pipes are pipes,
an open file can be renamed, and a lock is a futex. It shows that the guard asks for nothing that is not there, and
that what it does instead ends the same hangs; whether the platform's own calls keep their word it does not show.
"""

import builtins
import faulthandler
import importlib.abc
import importlib.machinery
import io
import multiprocessing
import os
import pathlib
import signal
import sys
from types import ModuleType

PLATFORM, PROGRAM = "FLUXGUARD_TEST_PLATFORM", "FLUXGUARD_TEST_PROGRAM"
_NAMES = {"windows": ("win32", "nt"), "macos": ("darwin", "posix")}
_ON_WINDOWS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}
_LACKS = {
    ("windows", "signal"): {name for name in dir(signal) if name.startswith("SIG")} - _ON_WINDOWS
    | {"alarm", "setitimer", "getitimer", "ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF", "pause", "siginterrupt"}
    | {"pthread_kill", "pthread_sigmask", "sigpending", "sigwait", "sigwaitinfo", "sigtimedwait"},
    ("windows", "os"): {"fork", "forkpty", "register_at_fork", "killpg", "getpgid", "getpgrp", "setsid", "mkfifo"}
    | {"WNOHANG", "pidfd_open", "pread", "pwrite", "statvfs", "posix_fallocate", "posix_fadvise", "geteuid", "fchmod"},
    ("windows", "faulthandler"): {"register", "unregister"},
    ("macos", "os"): {"pidfd_open", "posix_fallocate", "posix_fadvise"},
}
_MISSING = {"windows": {"fcntl", "resource", "pwd", "grp", "termios"}, "macos": set()}
_SEEN_BY = ("fluxguard",)
"""Whose modules see the other platform; the program itself does too."""


def _view(real, lacks, **other):
    """Return a module like `real` but for what it lacks; what is set there is set in the real one."""

    class View(ModuleType):
        def __getattr__(self, name):
            if name in lacks:
                raise AttributeError(f"module {real.__name__!r} has no attribute {name!r}")
            return other[name] if name in other else getattr(real, name)

        def __setattr__(self, name, value):
            setattr(real, name, value)

    return View.__new__(View, real.__name__)


def _terminate(pid, number, kill=os.kill, hard=signal.SIGKILL):  # the program takes the names `os` and `signal`
    """Kill as Windows does, whatever the signal is called."""
    kill(pid, hard)


def _builtins(platform):
    """Return builtins whose `import` gives the modules of the other platform."""
    views = {
        real.__name__: _view(real, _LACKS.get((platform, real.__name__), set()), **names)
        for real, names in (
            (signal, {}),
            (faulthandler, {}),
            (os, {"name": _NAMES[platform][1], **({"kill": _terminate} if platform == "windows" else {})}),
            (sys, {"platform": _NAMES[platform][0]}),
        )
    }

    def see(name, *arguments, **options):
        if name in _MISSING[platform]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return views.get(name) or builtins.__import__(name, *arguments, **options)

    return {**vars(builtins), "__import__": see}


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        module.__dict__["__builtins__"] = _given
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in _SEEN_BY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _without_proc(call):
    def refuses(path, *arguments, **options):
        if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
        return call(path, *arguments, **options)

    return refuses


def _take_away(platform):
    sys.meta_path.insert(0, _Finder())
    builtins.open = io.open = _without_proc(io.open)
    for name in ("open", "listdir", "scandir", "readlink", "stat"):
        setattr(os, name, _without_proc(getattr(os, name)))
    multiprocessing.set_start_method("spawn", force=True)
    return _builtins(platform)


if __name__ == "__main__":
    os.environ[PLATFORM], os.environ[PROGRAM] = sys.argv[1:3]
    sys.argv[:] = sys.argv[2:]
    sys.path[0] = os.path.dirname(sys.argv[0])

# A spawned worker comes here too, under another name, and finds the classes of the program in this module.
_given = _take_away(os.environ[PLATFORM])
_program = os.environ[PROGRAM]
_code = compile(pathlib.Path(_program).read_bytes(), _program, "exec")
globals()["__builtins__"] = _given
exec(_code, globals())
