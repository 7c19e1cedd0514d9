"""Evaluate ``#if`` expressions (C17 6.10.1) for a table of macros.

pcpp and the like resolve conditionals too, but rewrite the text: every offset in it would then
point nowhere in the user's file.  Here nothing is rewritten, an expression only gets its value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from patcher.source.integers import fold

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+)[uUlL]*|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<op>\|\||&&|==|!=|<=|>=|<<|>>|[-+*/%<>!~&|^()?:,])|(?P<other>\S))"
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||", "or"),
    ("&&", "and"),
    ("|", "bitor"),
    ("^", "xor"),
    ("&", "bitand"),
    ("==", "!=", "not_eq"),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)


class Macro(NamedTuple):
    """A ``#define``: ``parameters`` is None for an object-like macro."""

    body: str
    parameters: tuple[str, ...] | None = None


class Evaluation(NamedTuple):
    """The value of one expression and the macro names that it asked for."""

    value: bool
    names: frozenset[str]


class _Parser:
    def __init__(self, text: str, macros: Mapping[str, Macro]) -> None:
        self.macros = macros
        self.names: set[str] = set()
        self.tokens = self._tokens(text)
        self.at = 0

    @staticmethod
    def _tokens(text: str) -> list[str]:
        return [m.group().strip().rstrip("uUlL") if m["number"] else m.group().strip() for m in _TOKEN.finditer(text)]

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def ternary(self) -> int:
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.take()
        yes = self.ternary()
        if self.peek() == ":":
            self.take()
        no = self.ternary()
        return yes if condition else no

    def binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            operator = self.take()
            left = _apply(operator, left, self.binary(level + 1))
        return left

    def unary(self) -> int:
        token = self.take()
        if token in ("!", "not"):
            return int(not self.unary())
        if token == "-":
            return -self.unary()
        if token == "+":
            return self.unary()
        if token in ("~", "compl"):
            return ~self.unary()
        if token == "(":
            value = self.ternary()
            if self.peek() == ")":
                self.take()
            return value
        if token[:1].isdigit():
            return int(token, 16) if token[:2].lower() == "0x" else int(token)
        if token == "defined":
            bracketed = self.peek() == "("
            if bracketed:
                self.take()
            name = self.take()
            self.names.add(name)
            if bracketed and self.peek() == ")":
                self.take()
            return int(name in self.macros)
        if token[:1].isalpha() or token[:1] == "_":
            return self.name(token)
        return 0

    def name(self, name: str) -> int:
        self.names.add(name)
        macro = self.macros.get(name)
        arguments: list[str] | None = None
        if self.peek() == "(" and (macro is None or macro.parameters is not None):
            arguments = self.arguments()
        if name == "true":
            return 1
        if macro is None:
            return 0
        body = macro.body
        if macro.parameters and arguments is not None:
            for parameter, argument in zip(macro.parameters, arguments, strict=False):
                body = re.sub(rf"\b{re.escape(parameter)}\b", f"({argument})", body)
        inner = _Parser(body, {n: m for n, m in self.macros.items() if n != name})
        value = inner.ternary()
        self.names |= inner.names
        return value

    def arguments(self) -> list[str]:
        self.take()
        out, depth, current = [], 0, [""]
        while self.peek():
            token = self.take()
            if token == ")" and depth == 0:
                break
            if token == "," and depth == 0:
                out.append(" ".join(current))
                current = [""]
                continue
            depth += {"(": 1, ")": -1}.get(token, 0)
            current.append(token)
        return [*out, " ".join(current)]


_WORDS = {"bitor": "|", "xor": "^", "bitand": "&", "not_eq": "!="}


def _apply(operator: str, left: int, right: int) -> int:
    if operator in ("||", "or"):
        return int(bool(left) or bool(right))
    if operator in ("&&", "and"):
        return int(bool(left) and bool(right))
    return fold(_WORDS.get(operator, operator), left, right) or 0


def evaluate(expression: str, macros: Mapping[str, Macro]) -> Evaluation:
    """The value of an ``#if`` expression: a name without a definition is 0, as in C."""
    parser = _Parser(expression, macros)
    return Evaluation(bool(parser.ternary()), frozenset(parser.names))
