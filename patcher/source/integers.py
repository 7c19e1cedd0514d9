"""Integer operators of C, for constants."""

from __future__ import annotations

import operator
from collections.abc import Callable

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_WIDEST_SHIFT = 128


def fold(name: str, left: int, right: int) -> int | None:
    """The value of an operation; None where it has none (a division by zero) or the operator is not one of C's.

    Division rounds towards zero, as in C.
    """
    if name in ("<<", ">>"):
        if not 0 <= right < _WIDEST_SHIFT:
            return None
        return left << right if name == "<<" else left >> right
    if name in ("/", "%"):
        if right == 0:
            return None
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if name == "/" else left - quotient * right
    found = _OPERATORS.get(name)
    return int(found(left, right)) if found is not None else None
