"""Resolve conditionals by blanking: the active text of a file, every byte where it was.

Each directive line and each line of an inactive group becomes spaces, newlines stay.  So the tree
of the result locates bytes of the user's own file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from patcher.source.conditions import Macro, evaluate

_DIRECTIVE = re.compile(rb"[ \t]*#[ \t]*([A-Za-z]+)[ \t]*")
_DEFINE = re.compile(r"([A-Za-z_]\w*)(\(([^)]*)\))?\s*(.*)", re.S)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_SPLICE = re.compile(rb"\\(?=\r?\n)")
_NOT_NEWLINE = re.compile(rb"[^\r\n]")
_LINE_START_SCAN = re.compile(
    rb"//[^\n]*|/\*.*?(?:\*/|\Z)|R\"(?P<d>[^()\\\s]{0,16})\(.*?\)(?P=d)\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.S
)


class Preprocessed(NamedTuple):
    """What a compiler would see of one file.

    ``text`` has the length of the input.  ``asked`` are the macro names that conditionals asked for;
    ``active`` are the byte ranges of source lines outside inactive groups.
    """

    text: bytes
    macros: Mapping[str, Macro]
    asked: frozenset[str]
    inactive: tuple[tuple[int, int], ...]

    def is_active(self, offset: int) -> bool:
        """Whether the byte at ``offset`` lies outside every inactive group."""
        return not any(start <= offset < end for start, end in self.inactive)


def blanked(data: bytes) -> bytes:
    """``data`` with every byte but newlines as a space."""
    return _NOT_NEWLINE.sub(b" ", data)


def _comment_spans(data: bytes) -> list[tuple[int, int]]:
    return [m.span() for m in _LINE_START_SCAN.finditer(data) if data[m.start() : m.start() + 2] == b"/*" or m["d"] is not None]


def _logical_lines(data: bytes) -> list[tuple[int, int]]:
    """Start and end of each directive, continuation lines included."""
    spans = _comment_spans(data) if b"/*" in data or b'R"' in data else []
    lines: list[tuple[int, int]] = []
    skip = 0
    for match in re.finditer(rb"^[ \t]*#", data, re.M):
        start = match.start()
        while skip < len(spans) and spans[skip][1] <= start:
            skip += 1
        if skip < len(spans) and spans[skip][0] < start < spans[skip][1]:
            continue
        end = start
        while True:
            newline = data.find(b"\n", end)
            if newline < 0:
                end = len(data)
                break
            end = newline + 1
            if not data[start:newline].rstrip(b"\r").endswith(b"\\"):
                break
        lines.append((start, end))
    return lines


def preprocess(data: bytes, predefined: Mapping[str, Macro]) -> Preprocessed:
    """Blank directives and inactive groups of ``data`` under ``predefined`` macros.

    Macros that nothing defines count as undefined: the default build of DeepEP and NVSHMEM.
    """
    macros = dict(predefined)
    asked: set[str] = set()
    pieces: list[bytes] = []
    inactive: list[tuple[int, int]] = []
    stack: list[tuple[bool, bool, bool]] = []  # enclosing group active, this branch active, a branch was taken
    active, position = True, 0
    for start, end in _logical_lines(data):
        if start < position:
            continue
        chunk = data[position:start]
        pieces.append(chunk if active else blanked(chunk))
        if not active and start > position:
            inactive.append((position, start))
        line = data[start:end]
        pieces.append(blanked(line))
        position = end
        head = _DIRECTIVE.match(line)
        if head is None:
            continue
        keyword = head.group(1)
        rest = _COMMENT.sub(" ", line[head.end() :].decode("utf-8", "replace").replace("\\\r\n", " ").replace("\\\n", " ")).strip()
        if keyword in (b"if", b"ifdef", b"ifndef"):
            taken = active and _test(keyword, rest, macros, asked)
            stack.append((active, taken, taken))
            active = taken
        elif keyword in (b"elif", b"elifdef", b"elifndef") and stack:
            outer, _, done = stack[-1]
            taken = outer and not done and _test(keyword[2:], rest, macros, asked)
            stack[-1] = (outer, taken, done or taken)
            active = taken
        elif keyword == b"else" and stack:
            outer, _, done = stack[-1]
            stack[-1] = (outer, outer and not done, True)
            active = outer and not done
        elif keyword == b"endif" and stack:
            active = stack.pop()[0]
        elif keyword == b"define" and active:
            _define(rest, macros)
        elif keyword == b"undef" and active:
            macros.pop(rest.split()[0] if rest else "", None)
    tail = data[position:]
    pieces.append(tail if active else blanked(tail))
    if not active and tail:
        inactive.append((position, len(data)))
    text = b"".join(pieces)
    if b"\\" in text:
        text = _SPLICE.sub(b" ", text)  # a line continued outside a directive: the newline alone ends nothing in C++
    return Preprocessed(text, macros, frozenset(asked), tuple(inactive))


def _test(keyword: bytes, rest: str, macros: Mapping[str, Macro], asked: set[str]) -> bool:
    if keyword == b"if":
        outcome = evaluate(rest, macros)
        asked |= outcome.names
        return outcome.value
    name = rest.split()[0] if rest else ""
    asked.add(name)
    return (name in macros) == (keyword == b"ifdef")


def _define(rest: str, macros: dict[str, Macro]) -> None:
    match = _DEFINE.match(rest)
    if match is None:
        return
    name, bracket, parameters, body = match.groups()
    names = tuple(p.strip() for p in parameters.split(",") if p.strip()) if bracket else None
    macros[name] = Macro(body.strip(), names)
