"""Terms: values and places as nested tuples, normalised while they are built.

====================================  ================================================
``("num", n)``                        an integer
``("sym", name, type)``               a parameter or a name that nothing in sight defines
``("var", name, frame)``              a local variable as a place
``("deref", pointer)``                the place that a pointer points to
``("field", place, name)``            a member of a place
``("val", place)``                    what is stored at a place
``("addr", place)``                   a pointer to a place
``("op", operator, a, b, ...)``       an operation; sums and products are sorted
``("call", name, a, ...)``            the result of a function that is not known
``("res", n, kind)``                  the result of the n-th read-modify-write of a path
====================================  ================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from patcher.source.integers import fold

Term = tuple[Any, ...]

TRUE: Term = ("num", 1)
FALSE: Term = ("num", 0)
_COMMUTATIVE = frozenset({"+", "*", "&", "|", "^", "=="})


def number(value: int) -> Term:
    """An integer constant."""
    return ("num", value)


def deref(pointer: Term) -> Term:
    """The place behind ``pointer``: ``*&x`` is ``x``."""
    return pointer[1] if pointer[0] == "addr" else ("deref", pointer)


def address(place: Term) -> Term:
    """A pointer to ``place``: ``&*p`` is ``p``."""
    return place[1] if place[0] == "deref" else ("addr", place)


def operation(operator: str, *operands: Term) -> Term:
    """An operation, constants folded, commutative operands in one order."""
    if len(operands) == 2 and operands[0][0] == "num" and operands[1][0] == "num":
        folded = fold(operator, operands[0][1], operands[1][1])
        if folded is not None:
            return number(folded)
    if operator in ("+", "*"):
        flat: list[Term] = []
        for operand in operands:
            flat.extend(operand[2:] if operand[:2] == ("op", operator) else (operand,))
        neutral = 0 if operator == "+" else 1
        constant = neutral
        rest = []
        for operand in flat:
            if operand[0] == "num":
                constant = constant + operand[1] if operator == "+" else constant * operand[1]
            else:
                rest.append(operand)
        if operator == "*" and constant == 0:
            return number(0)
        if constant != neutral or not rest:
            rest.append(number(constant))
        if len(rest) == 1:
            return rest[0]
        return ("op", operator, *sorted(rest, key=repr))
    if operator in _COMMUTATIVE:
        return ("op", operator, *sorted(operands, key=repr))
    return ("op", operator, *operands)


def walk(term: Term) -> Iterator[Term]:
    """The term and all terms in it, outermost first."""
    yield term
    for part in term[1:]:
        if isinstance(part, tuple):
            yield from walk(part)


def place_path(place: Term) -> str:
    """A place by its members, relative to the object that a pointer leads to.

    ``qp->mvars.tx_wq.prod_idx`` is ``mvars.tx_wq.prod_idx``; what ``qp->tx_wq.bf`` points to is
    ``*tx_wq.bf``; a place without members is the empty string.
    """
    stars = ""
    if place[0] == "deref":
        pointer = _base_pointer(place[1])
        if pointer[0] == "sym" and "management" in pointer[2]:
            return "mvars"
        if pointer[0] != "val":
            return ""
        stars, place = "*", pointer[1]
    names: list[str] = []
    while place[0] == "field":
        names.append(str(place[2]))
        place = place[1]
    if place[0] == "deref" and not stars and names:
        pointer = _base_pointer(place[1])
        if pointer[0] == "sym" and "management" in pointer[2]:
            names.append("mvars")
    return stars + ".".join(reversed(names)) if names else ""


def _base_pointer(pointer: Term) -> Term:
    if pointer[:2] == ("op", "+"):
        bases = [p for p in pointer[2:] if p[0] in ("val", "addr", "sym")]
        if len(bases) == 1:
            base: Term = bases[0]
            return base
    return pointer


def value_path(term: Term) -> str:
    """The path of the place that a value was read from, or the empty string."""
    return place_path(term[1]) if term[0] == "val" else ""


def root(place: Term) -> Term:
    """The pointer or object that a place hangs from."""
    while True:
        if place[0] in ("field", "deref", "val", "addr"):
            place = place[1]
        else:
            return place


def spell(term: Term) -> str:
    """A term for people: C-like, short."""
    kind = term[0]
    if kind == "num":
        return str(term[1])
    if kind in ("sym", "var"):
        return str(term[1])
    if kind == "deref":
        return f"*{spell(term[1])}"
    if kind == "field":
        parent = term[1]
        if parent[0] == "deref":
            return f"{spell(parent[1])}->{term[2]}"
        return f"{spell(parent)}.{term[2]}"
    if kind == "val":
        return spell(term[1])
    if kind == "addr":
        return f"&{spell(term[1])}"
    if kind == "op":
        if len(term) == 3:
            return f"{term[1]}{spell(term[2])}"
        return "(" + f" {term[1]} ".join(spell(t) for t in term[2:]) + ")"
    if kind == "call":
        return f"{term[1]}({', '.join(spell(t) for t in term[2:])})"
    if kind == "res":
        return f"<result of {term[2]}>"
    return "?"
