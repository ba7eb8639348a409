"""On which line each key of a TOML document stands, which :mod:`tomllib` does not say.

The text must already have been accepted by ``tomllib``: this scanner looks for keys and skips
values, it does not judge them.
"""

from __future__ import annotations

import re
import tomllib

from tenure.bad_input import KeyPath

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]*")
# Longest quotes first; a multi-line string may end in up to two quotes of its own.
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Line (from 1) of the first appearance of every key, tables and list entries included.

    >>> key_lines('a = 1\\n[b.c]\\nd = {e = [1,\\n  2]}')[("b", "c", "d", "e", 1)]
    4
    """
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted_to = 0
        self._line = 1
        self._tables: dict[KeyPath, int] = {}  # entries seen so far of each [[array of tables]]
        self.lines: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self._skip(_BLANK)
            if self._at >= len(self._text):
                return
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._assignment(table)

    def _header(self) -> KeyPath:
        double = self._text.startswith("[[", self._at)
        self._at += 2 if double else 1
        names = self._key()
        self._at += 2 if double else 1
        path: KeyPath = ()
        for position, name in enumerate(names):
            path = (*path, name)
            self._mark(path)
            last = position == len(names) - 1
            if last and double:
                self._tables[path] = self._tables.get(path, -1) + 1
            if path in self._tables:  # a table under the newest entry of an array of tables
                path = (*path, self._tables[path])
                self._mark(path)
        return path

    def _assignment(self, table: KeyPath) -> None:
        path = table
        for name in self._key():
            path = (*path, name)
            self._mark(path)
        self._at += 1  # the '='
        self._skip(_SPACE)
        self._value(path)

    def _key(self) -> list[str]:
        names = []
        while True:
            self._skip(_SPACE)
            if self._text[self._at] in "\"'":
                names.append(self._quoted())
            else:
                names.append(self._skip(_BARE_KEY))
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _quoted(self) -> str:
        # tomllib unescapes: the same rules, and no second table of escapes to keep right.
        return str(tomllib.loads(f"k = {self._skip_string()}")["k"])

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at]
        if first == "[":
            self._list(path)
        elif first == "{":
            self._inline_table(path)
        elif first in "\"'":
            self._skip_string()
        else:
            self._skip(_SCALAR)

    def _list(self, path: KeyPath) -> None:
        self._at += 1
        position = 0
        while True:
            self._skip(_BLANK)
            if self._text[self._at] == "]":
                self._at += 1
                return
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._mark((*path, position))
            self._value((*path, position))
            position += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while True:
            self._skip(_BLANK)
            if self._text[self._at] == "}":
                self._at += 1
                return
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._assignment(path)

    def _mark(self, path: KeyPath) -> None:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        self.lines.setdefault(path, self._line)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        assert match is not None, f"not TOML at offset {self._at}, though tomllib took it"
        self._at = match.end()
        return match.group()

    def _skip_string(self) -> str:
        for pattern in _STRINGS:
            match = pattern.match(self._text, self._at)
            if match:
                self._at = match.end()
                return match.group()
        raise AssertionError(f"not a TOML string at offset {self._at}, though tomllib took it")
