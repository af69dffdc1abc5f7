"""Reading and writing a train script: the small part of bash (and of cmd) that train scripts are written in.

Comments, `export A=b`, `A=b`, `cd DIR`, `source VENV/bin/activate`, `set -e`, and one simple command, with `exec`,
`env A=b`, quotes, escapes, continuations, $NAME and ${NAME}. Nothing is ever executed; everything else is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from fluxguard.errors import InputError
from fluxguard.launch import batch
from fluxguard.launch.script import INSTEAD, Script, control_character, outside
from fluxguard.launch.shell import Word, commands

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ACTIVATE = re.compile(r"(.*)/(?:bin|Scripts)/activate")
_RESERVED = {"if", "for", "while", "until", "case", "function", "select", "time", "[[", "!", "coproc"}
_BATCH = {".bat", ".cmd"}
_SET_LETTERS = set("euxvhBETo")
_SET_NAMES = {"errexit", "errtrace", "nounset", "pipefail", "verbose", "xtrace"}
_OTHER_BUILTINS = {"alias", "declare", "echo", "eval", "exit", "local", "module", "readonly", "return", "unset"}


def parse(path: Path, env: Mapping[str, str]) -> Script:
    """Read a train.sh, or a train.bat by its suffix; `env` answers its $NAMEs.

    Raises InputError naming the file and the line: no such file, not text, or outside the grammar.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(path, f"is not UTF-8 text; {INSTEAD}") from None
    return (batch.parse_text if path.suffix.lower() in _BATCH else parse_text)(text, str(path), env)


def parse_text(text: str, source: str, env: Mapping[str, str]) -> Script:
    """Return what a train.sh of this text says; CRLF means what LF does. Raises InputError as `parse` does."""
    text = text.replace("\r\n", "\n")
    if found := control_character(text):
        raise outside(source, found[0], f"is not a text file (it holds {found[1]!r})")
    reading = _Reading(source, env)
    for words in commands(text, source):
        reading.take(words)
    if not reading.argv:
        raise InputError(source, f"holds no command; {INSTEAD}")
    return Script(argv=tuple(reading.argv), cwd=reading.cwd, env=reading.exports, activate=reading.activate)


class _Reading:
    """What the lines read so far have set up."""

    def __init__(self, source: str, env: Mapping[str, str]) -> None:
        self.source = source
        self.variables = dict(env)
        self.exported = set(env)
        self.exports: dict[str, str] = {}
        self.cwd: Path | None = None
        self.activate: Path | None = None
        self.argv: list[str] = []
        self.argv_line = 0

    def take(self, words: list[Word]) -> None:
        line = words[0].line
        if self.argv:
            raise outside(self.source, line, f"a second command is not read (the first is in line {self.argv_line})")
        assigned, rest = self._assignments(words)
        if not rest:
            for name, value in assigned.items():
                self._assign(name, value, export=name in self.exported)
            return
        verb = rest[0].plain
        builtin = {"export": self._export, "cd": self._cd, "set": self._set, "source": self._source, ".": self._source}
        if verb in builtin:
            if assigned:
                raise outside(self.source, line, f"an assignment before `{verb}` is not read")
            builtin[verb](rest[1:], line)
        elif verb in _RESERVED:
            raise outside(self.source, line, f"`{verb}` (loops, conditions, functions) is not read")
        elif verb in _OTHER_BUILTINS:
            raise outside(self.source, line, f"`{verb}` is not read")
        else:
            self._command(assigned, rest, line)

    def _assignments(self, words: list[Word]) -> tuple[dict[str, str], list[Word]]:
        found: dict[str, str] = {}
        for position, word in enumerate(words):
            assignment = word.assignment()
            if assignment is None:
                return found, words[position:]
            found[assignment[0]] = assignment[1].value({**self.variables, **found}, self.source)
        return found, []

    def _assign(self, name: str, value: str, *, export: bool) -> None:
        self.variables[name] = value
        if export:
            self.exported.add(name)
            self.exports[name] = value

    def _fields(self, words: list[Word]) -> list[str]:
        return [field for word in words for field in word.fields(self.variables, self.source)]

    def _export(self, words: list[Word], line: int) -> None:
        changes: list[tuple[str, str]] = []
        for word in words:
            if assignment := word.assignment():
                changes.append((assignment[0], assignment[1].value(self.variables, self.source)))
                continue
            for name in self._fields([word]):
                if not _NAME.fullmatch(name):
                    raise outside(self.source, line, f"`export {name}` is not read")
                self.exported.add(name)
                if name in self.variables:
                    changes.append((name, self.variables[name]))
        for name, value in changes:
            self._assign(name, value, export=True)

    def _cd(self, words: list[Word], line: int) -> None:
        folders = self._fields(words)
        named = folders[:1] == ["--"]
        folders = folders[named:]
        if len(folders) != 1 or folders[0] in ("", "-") or (folders[0].startswith("-") and not named):
            raise outside(self.source, line, "of `cd`, only `cd DIR` is read")
        self.cwd = self._there(folders[0])

    def _there(self, folder: str) -> Path:
        return Path(folder) if self.cwd is None else self.cwd / folder

    def _source(self, words: list[Word], line: int) -> None:
        files = self._fields(words)
        match = _ACTIVATE.fullmatch(files[0]) if len(files) == 1 else None
        if match is None or self.activate is not None:
            raise outside(self.source, line, "of `source`, only one virtual environment's bin/activate is read")
        self.activate = self._there(match[1] or "/")
        self.variables["VIRTUAL_ENV"] = str(self.activate)

    def _set(self, words: list[Word], line: int) -> None:
        named = False
        for option in self._fields(words):
            if named and option in _SET_NAMES:
                named = False
            elif not named and option[:1] in ("-", "+") and option[1:] and set(option[1:]) <= _SET_LETTERS:
                named = option.endswith("o")
            else:
                raise outside(self.source, line, f"`set {option}` is not read")

    def _command(self, assigned: dict[str, str], words: list[Word], line: int) -> None:
        argv = self._fields(words)
        while argv and argv[0] in ("exec", "env"):
            prefix = argv.pop(0)
            while prefix == "env" and argv and (match := re.match(_NAME.pattern + "=", argv[0])):
                assigned[match[0][:-1]] = argv.pop(0)[match.end() :]
            if not argv or argv[0].startswith("-"):
                raise outside(self.source, line, f"options of `{prefix}` are not read")
        if not argv:
            raise outside(self.source, line, "the command is empty")
        if re.match(_NAME.pattern + r"\+=", argv[0]):
            raise outside(self.source, line, "`+=` is not read")
        for name, value in assigned.items():
            self._assign(name, value, export=True)
        self.argv, self.argv_line = argv, line


def render(script: Script) -> str:
    """Return a train.sh that says the same, one flag to a line; parsing it gives `script` back.

    Raises InputError when no script can say it: an empty command, a name the shell keeps for itself, or a
    control character.
    """
    lines = ["#!/bin/bash"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in script.env.items()]
    if script.activate is not None:
        lines.append(f"source {shlex.quote(str(script.activate / 'bin' / 'activate'))}")
    if script.cwd is not None:
        lines.append(f"cd -- {shlex.quote(str(script.cwd))}")
    command = ""
    for word in script.argv:
        separator = " \\\n  " if word.startswith("--") else " "
        command += (separator if command else "") + shlex.quote(word)
    text = "\n".join([*lines, command]) + "\n"
    if parse_text(text, "the job", {}) != script:
        raise InputError("the job", "cannot be written as a train script", "argv")
    return text
