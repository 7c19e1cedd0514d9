"""Inline PTX: the instructions that order or touch memory."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from patcher.machine.events import Scope

_SCOPES = {"cta": Scope.CTA, "cluster": Scope.CLUSTER, "gpu": Scope.GPU, "sys": Scope.SYS, "gl": Scope.GPU}
_INSTRUCTION = re.compile(r"^(?:@!?%*\w+\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_KINDS = frozenset({"cas", "max", "min", "add", "inc", "dec", "exch", "and", "or", "xor"})


class Instruction(NamedTuple):
    """One instruction: opcode parts, operand texts, the scope that it names."""

    parts: tuple[str, ...]
    operands: tuple[str, ...]
    predicated: bool = False

    @property
    def scope(self) -> Scope:
        """The scope written in the opcode; NONE for a weak access."""
        return next((_SCOPES[p] for p in self.parts if p in _SCOPES), Scope.NONE)

    @property
    def kind(self) -> str:
        """The operation of an ``atom`` or ``red``."""
        return next((p for p in self.parts if p in _KINDS), "")

    def has(self, *names: str) -> bool:
        """Whether the opcode has one of these parts."""
        return any(n in self.parts for n in names)


@lru_cache(maxsize=512)
def instructions(text: str) -> list[Instruction]:
    """The instructions of an ``asm`` string; declarations, labels and braces are left out."""
    found = []
    for statement in re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S).replace("{\n", "\n").split(";"):
        statement = statement.replace("\\n", " ").replace("\\t", " ").strip().lstrip("{}").strip()
        match = _INSTRUCTION.match(statement)
        if match is None or statement.startswith("."):
            continue
        found.append(Instruction(tuple(re.split(r"\.|::", match[1])), _operands(match[2]), statement.startswith("@")))
    return found


def _operands(text: str) -> tuple[str, ...]:
    out, depth, current = [], 0, ""
    for character in text:
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        if character == "," and depth == 0:
            out.append(current.strip())
            current = ""
        else:
            current += character
    return tuple(o for o in [*out, current.strip()] if o)


def operand_index(text: str) -> int | None:
    """The number n of an operand ``%n`` or ``[%n]`` or ``[%n + 8]``."""
    match = re.search(r"%(\d+)", text)
    return int(match[1]) if match else None
