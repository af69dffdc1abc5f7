"""Reading a train.bat: the part of cmd that train scripts are written in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fluxguard.errors import InputError
from fluxguard.launch.script import INSTEAD, Script, control_character, outside

_IGNORED = re.compile(r"(?:rem(?:\s.*)?|::.*|echo\s+(?:off|on)|title\s.*|setlocal|pause)", re.IGNORECASE | re.DOTALL)
_SET = re.compile(r'set\s+(?:"([A-Za-z_]\w*)=(.*)"|([A-Za-z_]\w*)=(.*))', re.IGNORECASE)
_CD = re.compile(r"(?:cd|chdir)\s+(?:/d\s+)?(.+)", re.IGNORECASE)
_CALL = re.compile(r"call\s+(.+)", re.IGNORECASE)
_ACTIVATE = re.compile(r"(.+)[\\/](?:Scripts|bin)[\\/]activate(?:\.bat)?", re.IGNORECASE)
_KEYWORD = re.compile(r"(?:if|for|goto|set|cd|call|echo|exit|start|chcp|pushd|popd)(?:\s|$)|:", re.IGNORECASE)
_VARIABLE = re.compile(r"%(?:([A-Za-z_][\w()]*)%)?")
_WORD = re.compile(r'(?:\^.|\\+"|\\+|"|[^\s])', re.DOTALL)


def parse_text(text: str, source: str, env: Mapping[str, str]) -> Script:
    """Return what a train.bat of this text says. Raises InputError naming file and line when it is not read."""
    text = text.replace("\r\n", "\n")
    if found := control_character(text):
        raise outside(source, found[0], f"is not a text file (it holds {found[1]!r})")
    names = {name.upper(): value for name, value in env.items()}
    exports: dict[str, str] = {}
    cwd: Path | None = None
    activate: Path | None = None
    argv: tuple[str, ...] = ()
    for number, raw in _lines(text, source):
        if _IGNORED.fullmatch(raw):
            continue
        if argv:
            raise outside(source, number, "a second command is not read")
        line = _expanded(raw, names, source, number)
        if match := _SET.fullmatch(line):
            name, value = (match[1], match[2]) if match[1] else (match[3], match[4])
            exports[name] = names[name.upper()] = value
        elif match := _CD.fullmatch(line):
            cwd = _there(cwd, match[1])
        elif (match := _CALL.fullmatch(line)) and (venv := _ACTIVATE.fullmatch(match[1].strip('"'))) and not activate:
            activate = _there(cwd, venv[1])
        elif _KEYWORD.match(line):
            raise outside(source, number, f"`{line.split()[0]}` is not read in this form")
        else:
            argv = tuple(_words(line, source, number))
    if not argv:
        raise InputError(source, f"holds no command; {INSTEAD}")
    return Script(argv=argv, cwd=cwd, env=exports, activate=activate)


def _there(cwd: Path | None, folder: str) -> Path:
    folder = folder.strip().strip('"')
    return Path(folder) if cwd is None else cwd / folder


def _lines(text: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, logical line), continuations joined, blanks and the `@` taken off."""
    logical, first = "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        if re.search(r"\^[ \t]+$", line):
            raise outside(source, number, "a blank follows the ^, so the command would end here")
        if not logical:
            first = number
        if line.endswith("^") and not _IGNORED.fullmatch(line.strip()):
            logical += line[:-1] or " "
            continue
        logical = (logical + line).strip().lstrip("@")
        if logical:
            yield first, logical
        logical = ""
    if logical.strip():
        yield first, logical.strip().lstrip("@")


def _expanded(line: str, names: Mapping[str, str], source: str, number: int) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            raise outside(source, number, "of `%`, only %NAME% is read")
        if match[1].upper() not in names:
            raise outside(source, number, f"%{match[1]}% is not set")
        return names[match[1].upper()]

    return _VARIABLE.sub(value, line)


def _words(line: str, source: str, number: int) -> Iterator[str]:
    """Split as cmd and the Windows runtime do: ^ escapes outside quotes, backslashes count only before a quote."""
    word: str | None = None
    quoted = False
    at = 0
    while at < len(line):
        match = None if quoted and line[at] == "^" else _WORD.match(line, at)
        piece = match[0] if match else line[at]
        at += len(piece)
        if piece.isspace() and not quoted:
            if word is not None:
                yield word
            word = None
        elif piece.endswith('"'):
            slashes = len(piece) - 1
            word = (word or "") + "\\" * (slashes // 2) + ('"' if slashes % 2 else "")
            quoted ^= slashes % 2 == 0
        elif piece in tuple("&|<>()") and not quoted:
            raise outside(source, number, f"`{piece}` outside quotes is not read")
        else:
            word = (word or "") + (piece[1:] if piece.startswith("^") and not quoted else piece)
    if quoted:
        raise outside(source, number, "a double quote is never closed")
    if word is not None:
        yield word
