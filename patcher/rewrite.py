"""Means to edit code: where statements begin and end, how the code there spells things, version guards.

The tree locates, byte edits rewrite.  Nothing here knows a fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from tree_sitter import Node

from patcher import protocol
from patcher.errors import Blocked
from patcher.facts import Facts
from patcher.machine import Fence, Scope, Site
from patcher.machine.terms import Term, address, deref
from patcher.model import Edit
from patcher.protocol import Version
from patcher.source.unit import Function, Unit

_POINTER_CAST = re.compile(r"reinterpret_cast<\s*(unsigned long long(?: int)?\s*\*)\s*>|\(\s*(unsigned long long(?: int)?\s*\*)\s*\)")
_LINE = 110
_BLOCKS = frozenset({"compound_statement", "case_statement", "declaration_list", "translation_unit", "labeled_statement"})


def statement_of(node: Node) -> Node:
    """The smallest statement that holds ``node`` and stands in a block of its own.

    Raises Blocked where there is none.
    """
    at: Node | None = node
    while at is not None:
        parent = at.parent
        if parent is not None and parent.type in _BLOCKS and at.type != "case_statement":
            return at
        at = parent
    raise Blocked("no statement found round the place to change")


def common_statement(nodes: Sequence[Node]) -> Node:
    """The smallest statement in a block that holds all ``nodes``."""
    start, end = min(n.start_byte for n in nodes), max(n.end_byte for n in nodes)
    at = statement_of(nodes[0])
    while at.end_byte < end or at.start_byte > start:
        if at.parent is None:
            raise Blocked("the places to change share no statement")
        at = statement_of(at.parent)
    return at


def own_statement(node: Node) -> Node:
    """The smallest statement that holds ``node``, in a block or as the body of an ``if`` or a loop without braces."""
    at: Node | None = node
    while at is not None:
        parent = at.parent
        if (parent is not None and parent.type in _BLOCKS and at.type != "case_statement") or _is_bare_body(at):
            return at
        at = parent
    raise Blocked("no statement found round the place to change")


def _is_bare_body(node: Node) -> bool:
    parent = node.parent
    if parent is None or node.type in ("compound_statement", "else_clause"):
        return False
    if parent.type == "else_clause":
        return node.type.endswith("_statement")
    body = parent.child_by_field_name("consequence" if parent.type == "if_statement" else "body")
    return parent.type in ("if_statement", "while_statement", "for_statement", "do_statement", "for_range_loop") and body == node


def common_range(nodes: Sequence[Node]) -> tuple[Node, Node]:
    """The first and last statement, in the innermost block that holds all ``nodes``, between which they lie."""
    statements = [statement_of(n) for n in nodes]
    while len({s.parent.start_byte if s.parent is not None else -1 for s in statements}) > 1:
        deepest = max(range(len(statements)), key=lambda i: _depth(statements[i]))
        parent = statements[deepest].parent
        if parent is None:
            raise Blocked("the places to change share no block")
        statements[deepest] = statement_of(parent)
    statements.sort(key=lambda s: s.start_byte)
    return statements[0], statements[-1]


def _depth(node: Node) -> int:
    depth, at = 0, node.parent
    while at is not None:
        depth, at = depth + 1, at.parent
    return depth


def contains(outer: Node, inner: Node) -> bool:
    """Whether ``inner`` lies in ``outer``."""
    return outer.start_byte <= inner.start_byte and inner.end_byte <= outer.end_byte


def descendants(node: Node, *types: str) -> list[Node]:
    """Nodes of these types in ``node``, in order."""
    found, stack = [], [node]
    while stack:
        at = stack.pop()
        if at.type in types:
            found.append(at)
        stack.extend(reversed(at.named_children))
    return found


def since(version: Version) -> str:
    """The condition of an ``#if`` that is true from ``version`` on."""
    parts = "NVSHMEM_VENDOR_MAJOR_VERSION * 10000 + NVSHMEM_VENDOR_MINOR_VERSION * 100 + NVSHMEM_VENDOR_PATCH_VERSION"
    return f"{parts} >= {version.number}"


class Rewriter:
    """Collects the edits of one fix over the facts of all selected releases."""

    def __init__(self, groups: Sequence[Facts]) -> None:
        self.groups = tuple(groups)
        self.versions = tuple(sorted(v for g in groups for v in g.versions))
        self.edits: dict[str, list[Edit]] = {}

    def worlds(self) -> Iterable[tuple[Facts, Version]]:
        """One release for each set of facts and each form of the protocol."""
        for facts in self.groups:
            seen = set()
            for version in facts.versions:
                if (epoch := protocol.epoch(version)) not in seen:
                    seen.add(epoch)
                    yield facts, version

    def edit(self, unit: Unit, start: int, end: int, text: str) -> None:
        """Replace bytes of a file; the same edit asked for twice is made once.  Raises Blocked on an overlap."""
        new = Edit(start, end, self._newlines(unit, text).encode("utf-8", "surrogateescape"))
        made = self.edits.setdefault(unit.path, [])
        if new in made:
            return
        line = unit.line(start)
        if any(start < e and s < end for s, e in unit.errors):
            raise Blocked(f"{unit.path}:{line}: the syntax round this place is not understood, so it is left alone")
        if any(max(start, o.start) < min(end, o.end) or (o.start < start == end < o.end) or (start < o.start == o.end < end) for o in made):
            raise Blocked(f"{unit.path}:{line}: two changes would overlap here")
        made.append(new)

    def _newlines(self, unit: Unit, text: str) -> str:
        return text.replace("\n", "\r\n") if unit.data.count(b"\r\n") * 2 > unit.data.count(b"\n") else text

    def active_elsewhere(self, unit: Unit, node: Node, versions: Iterable[Version]) -> bool:
        """Whether a place is compiled for a selected release outside ``versions`` too."""
        chosen = set(versions)
        for facts in self.groups:
            others = [v for v in facts.versions if v not in chosen]
            if others and any(u.path == unit.path and u.pre.is_active(node.start_byte) for u in facts.units):
                return True
        return False

    def indent(self, unit: Unit, node: Node) -> str:
        """The white space before the first thing on the line of ``node``."""
        start = unit.line_start(node.start_byte)
        line = unit.data[start : node.start_byte].decode("utf-8", "surrogateescape")
        return line[: len(line) - len(line.lstrip())]

    def step(self, function: Function) -> str:
        """One level of indentation as the function uses it."""
        unit = function.unit
        inner = next((c for c in function.body.named_children if unit.line(c.start_byte) > unit.line(function.body.start_byte)), None)
        if inner is None:
            return "    "
        outer, own = self.indent(unit, function.node), self.indent(unit, inner)
        return own[len(outer) :] if own.startswith(outer) and len(own) > len(outer) else "    "

    def insert_before(self, unit: Unit, statement: Node, lines: Sequence[str]) -> None:
        """Insert whole lines before a statement; each line brings its indentation (directives have none).

        A statement that is the body of an ``if`` or a loop without braces gets braces.
        """
        start = unit.line_start(statement.start_byte)
        indent = self.indent(unit, statement)
        if _is_bare_body(statement):
            head = statement.parent.parent if statement.parent is not None and statement.parent.type == "else_clause" else statement.parent
            outer = self.indent(unit, head) if head is not None else indent
            own = unit.line_start(statement.start_byte) > (head.start_byte if head is not None else 0)
            inner = indent if own and len(indent) > len(outer) else outer + "    "
            self.edit(unit, statement.start_byte, statement.start_byte, "{\n" + "\n".join(inner + x.strip() for x in lines) + "\n" + inner)
            self.edit(unit, statement.end_byte, statement.end_byte, f"\n{outer}}}")
        elif unit.data[start : statement.start_byte].strip():
            self.edit(unit, statement.start_byte, statement.start_byte, "\n" + "\n".join(lines) + "\n" + indent)
        else:
            self.edit(unit, start, start, "\n".join(lines) + "\n")

    def insert_after(self, unit: Unit, statement: Node, lines: Sequence[str]) -> None:
        """Insert whole lines after a statement and a comment that follows it on its line.

        A statement that is the body of an ``if`` or a loop without braces gets braces.
        """
        if _is_bare_body(statement):
            head = statement.parent.parent if statement.parent is not None and statement.parent.type == "else_clause" else statement.parent
            outer = self.indent(unit, head) if head is not None else ""
            self.edit(unit, statement.start_byte, statement.start_byte, "{ ")
            body = "\n".join(line if line.startswith("#") else outer + "    " + line.strip() for line in lines if line)
            self.edit(unit, statement.end_byte, statement.end_byte, f"\n{body}\n{outer}}}")
            return
        end = unit.line_end(statement.end_byte)
        rest = unit.data[statement.end_byte : end].strip()
        alone = not rest or rest.startswith(b"//") or (rest.startswith(b"/*") and rest.find(b"*/") == len(rest) - 2)
        if alone and unit.data[:end].endswith(b"\n") and not rest.endswith(b"\\"):
            self.edit(unit, end, end, "\n".join(lines) + "\n")
        else:
            self.edit(unit, statement.end_byte, statement.end_byte, "\n" + "\n".join(lines) + "\n" + self.indent(unit, statement))

    def guard(self, unit: Unit, statement: Node, border: Version, new: str | None, old: str | None, comment: Sequence[str] = ()) -> None:
        """Give a statement two forms: from ``border`` on, and before.  None keeps what is there.

        ``new`` and ``old`` are the text of the statement; empty means no statement.  Where all selected
        releases are on one side, the statement is replaced and no directive is made.
        """
        indent = self.indent(unit, statement)
        notes = [indent + c for c in comment]
        sides = {v >= border for v in self.versions if self._compiles(unit, statement, v)}
        if len(sides) == 1:
            text = new if True in sides else old
            if text is None:
                return
            if notes:
                self.insert_before(unit, statement, notes)
            self.edit(unit, statement.start_byte, statement.end_byte, text)
            return
        head, tail = [*notes, f"#if {since(border)}"], ["#endif"]
        if new is None and old is not None:
            tail = ["#else", *([indent + old] if old else []), "#endif"] if old else ["#endif"]
        elif new is not None and old is None:
            head += [*([indent + new] if new else []), "#else"]
        elif new is not None and old is not None:
            head += [indent + new, "#else"]
            self.edit(unit, statement.start_byte, statement.end_byte, old)
        self.insert_before(unit, statement, head)
        self.insert_after(unit, statement, tail)

    def only_since(self, unit: Unit, first: Node, last: Node, border: Version) -> None:
        """Compile the statements from ``first`` to ``last`` from a release on only."""
        sides = {v >= border for v in self.versions if self._compiles(unit, first, v)}
        if sides == {False}:
            self.edit(unit, first.start_byte, last.end_byte, ";")
        elif len(sides) == 2:
            self.insert_before(unit, first, [f"#if {since(border)}"])
            self.insert_after(unit, last, ["#endif"])

    def _compiles(self, unit: Unit, node: Node, version: Version) -> bool:
        facts = next(g for g in self.groups if version in g.versions)
        return any(u.path == unit.path and u.pre.is_active(node.start_byte) for u in facts.units)

    def replaced(self, unit: Unit, statement: Node, *parts: tuple[Node, str]) -> str:
        """The text of a statement with some of its nodes replaced."""
        text, at = "", statement.start_byte
        for node, new in sorted(parts, key=lambda p: p[0].start_byte):
            text += unit.data[at : node.start_byte].decode("utf-8", "surrogateescape") + new
            at = node.end_byte
        text = (text + unit.data[at : statement.end_byte].decode("utf-8", "surrogateescape")).replace("\r\n", "\n")
        text = re.sub(r"[ \t]*\\\n", "\n", text)
        joined = re.sub(r"\s*\n\s*(?=\.|->)|(?<=\()\s*\n\s*", "", text)
        joined = re.sub(r"\s*\n\s*", " ", joined)
        return joined if len(self.indent(unit, statement)) + len(joined) <= _LINE and "//" not in text and "{" not in text else text

    # How the code at a place spells things

    def member(self, site: Site, qp: Term | None, path: str) -> str:
        """A member of the QP (``mvars.tx_wq.ready_head``) in the names of the place.

        Raises Blocked where no name there leads to it.
        """
        wanted = self._place(qp, path)
        spelled = self._lead(site, wanted) if wanted is not None else None
        if spelled is None:
            spelled = self._by_type(site, path)
        if spelled is None:
            unit = site.unit
            raise Blocked(f"{unit.path}:{unit.line(site.node.start_byte)}: no name in sight leads to `{path}` of the queue pair")
        return spelled

    @staticmethod
    def _place(qp: Term | None, path: str) -> Term | None:
        if qp is None:
            return None
        place = deref(qp)
        for name in path.split("."):
            place = ("field", place, name)
        return place

    def _lead(self, site: Site, wanted: Term) -> str | None:
        """The shortest way from a name in scope to a place."""
        rest: list[str] = []
        at = wanted
        while True:
            for name, place in site.names.items():
                if not name.isidentifier():
                    continue
                tail = ".".join(reversed(rest))
                if place == at:
                    return f"{name}.{tail}" if tail else name
                if site.env.get(place) == address(at) and tail:
                    return f"{name}->{tail}"
            if at[0] != "field":
                return None
            rest.append(str(at[2]))
            at = at[1]

    @staticmethod
    def _by_type(site: Site, path: str) -> str | None:
        for name, place in site.names.items():
            held = site.env.get(place, ("none",))
            if held[0] == "sym" and "device_qp_t" in str(held[2]) and "management" not in str(held[2]):
                return f"{name}->{path}"
        return None

    def value(self, site: Site, term: Term) -> str | None:
        """A name in scope that holds ``term``."""
        return next((n for n, p in site.names.items() if site.env.get(p) == term and n.isidentifier()), None)

    def state_member(self, site: Site, facts: Facts, name: str) -> str:
        """A member of the IBGDA device state in the names of the place."""
        state: Term = ("sym", "nvshmemi_ibgda_device_state_d", "")
        flag: Term = ("val", ("field", state, name))
        held = self.value(site, flag)
        if held is not None:
            return held
        led = self._lead(site, ("field", state, name))
        if led is not None:
            return led
        getter = self._state_getter(facts, site.unit, site.node.start_byte)
        return f"{getter}()->{name}" if getter else f"nvshmemi_ibgda_device_state_d.{name}"

    @staticmethod
    def _state_getter(facts: Facts, unit: Unit, before: int) -> str | None:
        wanted: Term = ("addr", ("sym", "nvshmemi_ibgda_device_state_d", ""))
        for candidate in (unit, *facts.units):
            for group in candidate.functions.values():
                for function in group:
                    if function.unit.path == unit.path and function.node.end_byte > before:
                        continue
                    if not function.parameters and not function.template and b"device_state_d" in (function.body.text or b""):
                        paths = facts.paths(function)
                        if len(paths) == 1 and paths[0].result == wanted:
                            return function.name
        return None

    def pointer(self, function: Function, expression: str) -> str:
        """``expression`` as a pointer that CUDA's 64-bit atomics take, in the cast style of the function."""
        match = _POINTER_CAST.search(function.unit.source(function.node)) or _POINTER_CAST.search(
            function.unit.data.decode("utf-8", "replace")
        )
        if match is not None and match[2]:
            return f"({match[2]})({expression})"
        return f"reinterpret_cast<{match[1] if match else 'unsigned long long*'}>({expression})"

    def cta_fence(self, facts: Facts, unit: Unit, before: int) -> str:
        """A call that fences at CTA scope: a helper that the file uses already, else CUDA's own."""
        used = set(re.findall(rb"(?<![\w:.>])([A-Za-z_]\w*)\s*\(\s*\)\s*;", unit.text))
        for name in sorted(used):
            for function in facts.resolve(name.decode(), unit):
                if function.parameters or function.template or (function.unit.path == unit.path and function.node.end_byte > before):
                    continue
                paths = facts.paths(function)
                events = paths[0].events if len(paths) == 1 else ()
                if len(events) == 1 and isinstance(events[0], Fence) and events[0].scope is Scope.CTA and not events[0].proxy:
                    return f"{name.decode()}();"
        return "__threadfence_block();"

    @cached_property
    def both_protocols(self) -> bool:
        """Whether releases with and without the proxy's slot are selected."""
        return len({v >= protocol.PROXY_SLOT_SINCE for v in self.versions}) == 2


def qp_pointer(place: Term) -> Term | None:
    """The pointer to the QP that a place belongs to, or None where only a part of the QP is in sight."""
    if place[0] == "deref" and place[1][0] == "val":
        place = place[1][1]
    names = []
    while place[0] == "field":
        names.append(place[2])
        place = place[1]
    if (
        place[0] != "deref"
        or not names
        or names[-1] not in ("mvars", "tx_wq")
        or (names[-1:] == ["tx_wq"] and names[0] in ("ready_head", "resv_head"))
    ):
        return None
    pointer: Term = place[1]
    return pointer


def apply_edits(data: bytes, edits: Iterable[Edit]) -> bytes:
    """``data`` with all edits made; insertions at one place keep the order in which they were asked for."""
    out, at = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        out.append(data[at : edit.start])
        out.append(edit.text)
        at = max(at, edit.end)
    return b"".join([*out, data[at:]])
