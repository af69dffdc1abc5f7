"""The lexical part of bash that a train script needs: words, quotes, escapes, continuations, variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fluxguard.launch.script import outside

_BLANK = " \t"
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"[\w./:,=@%+-]+")
_PLAIN_IN_DOUBLE = re.compile(r'[^"\\$`\n]+')
_CONTINUATION = re.compile(r"\\(\n|\Z)")
_SPACED_CONTINUATION = re.compile(r"\\[ \t]+(\n|$)")
_GLOB = re.compile(r"[*?\[]")
_REFUSED = {
    "|": "a pipe is not read",
    "&": "`&` and `&&` are not read",
    ";": "a second command after `;` is not read",
    "<": "a redirection is not read",
    ">": "a redirection is not read (fluxguard keeps the log itself)",
    "(": "a subshell or function is not read",
    ")": "a subshell or function is not read",
    "`": "a command substitution is not read",
    "*": "a file pattern outside quotes is not read",
    "?": "a file pattern outside quotes is not read",
    "[": "a file pattern outside quotes is not read",
    "{": "braces outside quotes are not read",
    "}": "braces outside quotes are not read",
}


@dataclass(frozen=True)
class Part:
    """A stretch of one word that is either text or the name of a variable."""

    text: str
    quoted: bool = False
    variable: bool = False


@dataclass(frozen=True)
class Word:
    """A word of a script, before its variables are looked up."""

    line: int
    parts: tuple[Part, ...]

    @property
    def plain(self) -> str | None:
        """The word, when nothing in it is quoted or a variable."""
        if len(self.parts) == 1 and not self.parts[0].quoted and not self.parts[0].variable:
            return self.parts[0].text
        return None

    def assignment(self) -> tuple[str, Word] | None:
        """Return name and value of an assignment, or None for any other word."""
        head = self.parts[0]
        match = None if head.quoted or head.variable else _ASSIGNMENT.match(head.text)
        if match is None:
            return None
        return match[1], Word(self.line, (Part(head.text[match.end() :]), *self.parts[1:]))

    def value(self, variables: Mapping[str, str], source: str) -> str:
        """Return the word as one string, as the value of an assignment is read."""
        return "".join(_look_up(part, variables, source, self.line) for part in self.parts)

    def fields(self, variables: Mapping[str, str], source: str) -> list[str]:
        """Return the word as arguments: a variable outside quotes splits at blanks, and vanishes when it is empty."""
        done: list[str] = []
        open_field: str | None = None
        for part in self.parts:
            text = _look_up(part, variables, source, self.line)
            if part.quoted or not part.variable:
                open_field = (open_field or "") + text
                continue
            if _GLOB.search(text):
                raise outside(source, self.line, f"${part.text} holds a file pattern and stands outside quotes")
            pieces = text.split()
            if open_field is not None and (not pieces or text[0].isspace()) and text:
                done.append(open_field)
                open_field = None
            if pieces:
                done += [(open_field or "") + pieces[0], *pieces[1:]]
                open_field = None if text[-1].isspace() else done.pop()
        return done if open_field is None else [*done, open_field]


def _look_up(part: Part, variables: Mapping[str, str], source: str, line: int) -> str:
    if not part.variable:
        return part.text
    if part.text not in variables:
        raise outside(source, line, f"${part.text} is not set")
    return variables[part.text]


def commands(text: str, source: str) -> Iterator[list[Word]]:
    """Yield the words of each line that has some, continuations joined.

    Raises InputError for what is not read: pipes, lists, redirections, substitutions, patterns.
    """
    lexer = _Lexer(text, source)
    while not lexer.at_end:
        words = lexer.command()
        if words:
            yield words


class _Lexer:
    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.at = 0
        self.line = 1
        self.parts: list[Part] = []

    @property
    def at_end(self) -> bool:
        return self.at >= len(self.text)

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        character = self.peek()
        self.at += 1
        self.line += character == "\n"
        return character

    def add(self, text: str, *, quoted: bool = False, variable: bool = False) -> None:
        last = self.parts[-1] if self.parts else None
        if last and not variable and not last.variable and last.quoted == quoted:
            self.parts[-1] = Part(last.text + text, quoted)
        else:
            self.parts.append(Part(text, quoted, variable))

    def command(self) -> list[Word]:
        words: list[Word] = []
        while not self.at_end:
            character = self.peek()
            if character == "\n":
                self.take()
                break
            if character in _BLANK:
                self.take()
            elif _CONTINUATION.match(self.text, self.at):
                self.continuation()
            elif character == "#":
                while not self.at_end and self.peek() != "\n":
                    self.take()
            else:
                words.append(self.word())
        return words

    def continuation(self) -> None:
        self.take()
        self.take()  # at the end of the file there is none, and bash drops the backslash too

    def word(self) -> Word:
        line = self.line
        self.parts = []
        while not self.at_end and self.peek() not in _BLANK + "\n":
            self.step()
        return Word(line, tuple(self.parts) or (Part(""),))

    def step(self) -> None:
        character = self.peek()
        if plain := _PLAIN.match(self.text, self.at):
            self.at = plain.end()
            self.add(plain[0])
        elif character == "\\":
            self.escape()
        elif character == "'":
            self.single()
        elif character == '"':
            self.double()
        elif character == "$":
            self.variable(quoted=False)
        elif character == "~" and self.tilde_expands():
            self.tilde()
        elif character in _REFUSED:
            raise outside(self.source, self.line, _REFUSED[character])
        else:
            self.add(self.take())

    def escape(self) -> None:
        if _CONTINUATION.match(self.text, self.at):
            self.continuation()
        elif _SPACED_CONTINUATION.match(self.text, self.at):
            raise outside(self.source, self.line, "a blank follows the backslash, so the command would end here")
        else:
            self.take()
            self.add(self.take(), quoted=True)

    def single(self) -> None:
        start = self.line
        self.take()
        end = self.text.find("'", self.at)
        if end < 0:
            raise outside(self.source, start, "a single quote is never closed")
        self.add(self.text[self.at : end], quoted=True)
        self.line += self.text.count("\n", self.at, end)
        self.at = end + 1

    def double(self) -> None:
        start = self.line
        self.take()
        self.add("", quoted=True)
        while not self.at_end:
            character = self.peek()
            if plain := _PLAIN_IN_DOUBLE.match(self.text, self.at):
                self.at = plain.end()
                self.add(plain[0], quoted=True)
            elif character == '"':
                self.take()
                return
            elif character == "\\":
                self.take()
                following = self.take()
                if following != "\n":
                    self.add(following if following in tuple('$`"\\') else "\\" + following, quoted=True)
            elif character == "$":
                self.variable(quoted=True)
            elif character == "`":
                raise outside(self.source, self.line, _REFUSED["`"])
            else:
                self.add(self.take(), quoted=True)
        raise outside(self.source, start, "a double quote is never closed")

    def variable(self, *, quoted: bool) -> None:
        self.take()
        following = self.peek()
        if match := _NAME.match(self.text, self.at):
            self.at = match.end()
            if self.text.startswith("\\\n", self.at):
                raise outside(self.source, self.line, f"a variable's name that a line break may split (${match[0]})")
            self.add(match[0], quoted=quoted, variable=True)
        elif following == "{":
            match = re.compile(r"\{(" + _NAME.pattern + r")\}").match(self.text, self.at)
            if match is None:
                raise outside(self.source, self.line, "only $NAME and ${NAME} are read")
            self.at = match.end()
            self.add(match[1], quoted=quoted, variable=True)
        elif following == "(":
            raise outside(self.source, self.line, _REFUSED["`"])
        elif following and (following in "@*#?-$!0123456789" or (following in "'\"" and not quoted)):
            raise outside(self.source, self.line, "only $NAME and ${NAME} are read")
        elif quoted:
            self.add("$", quoted=True)
        else:
            raise outside(self.source, self.line, "a single `$` outside quotes is not read")

    def tilde_expands(self) -> bool:
        if not self.parts:
            return True
        head = self.parts[0]
        if head.quoted or head.variable or not _ASSIGNMENT.match(head.text):
            return False
        last = self.parts[-1]
        opens = last.text.endswith(":") or (last is head and _ASSIGNMENT.fullmatch(head.text) is not None)
        return opens and not last.quoted and not last.variable

    def tilde(self) -> None:
        self.take()
        following = self.peek()
        if following and following not in ("/:" if self.parts else "/") + "\n" + _BLANK:
            raise outside(self.source, self.line, "of `~`, only your own home folder is read")
        self.add("HOME", quoted=True, variable=True)
