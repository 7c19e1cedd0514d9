"""The state of one path and the choices that lead to it.

A path is run from the start for each combination of choices (decision replay): the interpreter
stays a plain recursive function, and a branch is one call of :meth:`State.truth`.
"""

from __future__ import annotations

from collections.abc import Iterator

from patcher.machine.events import Event, Site
from patcher.machine.terms import FALSE, Term, operation


class Dead(Exception):
    """The path can't happen, repeats a loop, or traps."""


class Choices:
    """Depth-first enumeration of branch decisions."""

    def __init__(self) -> None:
        self._made: list[bool] = []
        self._next = 0

    def take(self) -> bool:
        """The decision at this point of the path: True first."""
        if self._next == len(self._made):
            self._made.append(True)
        choice = self._made[self._next]
        self._next += 1
        return choice

    def runs(self, limit: int) -> Iterator[int]:
        """One item for each path, until all are done or ``limit`` is passed (then one more)."""
        for count in range(limit + 1):
            self._next = 0
            yield count
            del self._made[self._next :]
            while self._made and not self._made[-1]:
                self._made.pop()
            if not self._made:
                return
            self._made[-1] = False


def atom(term: Term) -> tuple[Term, bool]:
    """A condition as a comparison in one form, and whether it is negated."""
    positive = True
    while True:
        if term[0] == "op":
            operator = term[1]
            if operator == "!":
                term, positive = term[2], not positive
                continue
            if operator == "!=":
                term, positive = operation("==", *term[2:]), not positive
                continue
            if operator in ("<", ">=", "<="):
                left, right = term[2], term[3]
                term = (
                    operation(">", right, left)
                    if operator == "<"
                    else operation(">", *((right, left) if operator == ">=" else (left, right)))
                )
                positive = positive if operator == "<" else not positive
                continue
            if operator == "==" and FALSE in term[2:]:
                other = term[3] if term[2] == FALSE else term[2]
                term, positive = other, not positive
                continue
            if operator == "==" and term[2:] and ("num", 1) in term[2:]:
                other = term[3] if term[2] == ("num", 1) else term[2]
                if _is_flag(other):
                    term = other
                    continue
            if operator == "==" and term[2] == term[3]:
                return ("num", 1), positive
            if operator == "==" and _differ(term[2], term[3]):
                return ("num", 0), positive
        return term, positive


def _is_flag(term: Term) -> bool:
    return term[0] == "val" and term[1][0] == "field" and str(term[1][2]).startswith(("use_", "is_", "nic_", "support_", "enable_"))


def _differ(left: Term, right: Term) -> bool:
    def split(term: Term) -> tuple[Term, int]:
        if term[:2] == ("op", "+") and term[-1][0] == "num":
            return operation("+", *term[2:-1]), term[-1][1]
        if term[:2] == ("op", "-") and len(term) == 4 and term[3][0] == "num":
            return term[2], -term[3][1]
        if term[:2] == ("op", "~"):
            return term[2], 1 << 64  # never the same as the operand
        return term, 0

    if left[0] == "num" and right[0] == "num":
        return bool(left[1] != right[1])
    a, b = split(left), split(right)
    if _enumerator(left) and _enumerator(right):
        return left != right
    return a[0] == b[0] and a[1] != b[1]


def _same_subject(one: Term, other: Term) -> list[tuple[Term, Term]]:
    """What two comparisons of one subject compare it with."""
    return [(one[5 - i], other[5 - j]) for i in (2, 3) for j in (2, 3) if one[i] == other[j]]


def _enumerator(term: Term) -> bool:
    """A name in capitals that no macro in sight defines: two such names are two enumerators."""
    return term[0] == "val" and term[1][0] == "sym" and str(term[1][1]).isupper()


class State:
    """Locals, what is known on the path, and the events so far."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.env: dict[Term, Term] = {}
        self.names: dict[str, Term] = {}
        self.known: dict[Term, bool] = {}
        self.events: list[Event] = []
        self.stack: list[Site] = []
        self.results = 0
        self.frames = 0

    def truth(self, term: Term, want: bool | None = None) -> bool:
        """Decide a condition; with ``want``, the path goes on only where it has that value."""
        condition, positive = atom(term)
        if condition[0] == "num":
            value = bool(condition[1])
        elif condition[0] == "addr":
            value = True
        elif condition in self.known:
            value = self.known[condition]
        elif self._excluded(condition):
            value = False
        else:
            value = (want == positive) if want is not None else self.choices.take()
            self.known[condition] = value
        outcome = value == positive
        if want is not None and outcome != want:
            raise Dead
        return outcome

    def _excluded(self, condition: Term) -> bool:
        """Whether ``x == A`` can't be true since ``x == B`` is."""
        if condition[:2] != ("op", "=="):
            return False
        return any(
            value and known[:2] == ("op", "==") and any(_differ(a, b) for a, b in _same_subject(known, condition))
            for known, value in self.known.items()
        )

    def read(self, place: Term) -> Term:
        """What a place holds: a local's value, or a symbol for what memory holds."""
        held = self.env.get(place)
        if held is not None:
            return held
        if place[0] == "field":
            whole = self.read(place[1])
            if whole[0] == "val" and whole[1] != place[1]:
                return ("val", ("field", whole[1], place[2]))
        return ("val", place)

    def next_result(self, kind: str) -> Term:
        """A new symbol for the result of a read-modify-write."""
        self.results += 1
        return ("res", self.results, kind)


def is_local(place: Term) -> bool:
    """Whether a place is (part of) a local variable."""
    while place[0] == "field":
        place = place[1]
    return bool(place[0] == "var")
