"""Where the address of an access comes from, and how it is given another one."""

from __future__ import annotations

import re
from typing import NamedTuple

from tree_sitter import Node

from patcher import protocol
from patcher.errors import Blocked
from patcher.facts import Facts
from patcher.machine import Load, Rmw, Site
from patcher.machine.terms import Term, address
from patcher.protocol import READY_HEAD
from patcher.rewrite import Rewriter, descendants, qp_pointer, statement_of
from patcher.source.unit import Function, Unit

_ATOMIC = re.compile(rb"atomic(CAS|Max|Exch|Add)")
_ARMS = ("consequence", "alternative")


class Origin(NamedTuple):
    """The statement and the expression that give an address, in the innermost function where it is no parameter.

    ``direct``: the expression is the place itself, not a pointer to it.
    """

    site: Site
    statement: Node
    expression: Node
    direct: bool


def origin(event: Rmw | Load) -> Origin:
    """Follow the address of an access outwards.  Raises Blocked where it can't be followed."""
    position = len(event.sites) - 1
    pointer = _pointer(event.sites[position], event.place)
    while pointer is not None:
        site = event.sites[position]
        index = _parameter(site.function, pointer)
        if index is None or position == 0:
            direct = pointer.type in ("field_expression", "pointer_expression", "subscript_expression") and pointer == site.node
            return Origin(site, *_definition(site, pointer), direct)
        position -= 1
        pointer = argument(event.sites[position].node, index)
    unit, node = event.outer.unit, event.outer.node
    raise Blocked(f"{unit.path}:{unit.line(node.start_byte)}: where the address of this access comes from is not understood")


def argument(node: Node, position: int) -> Node | None:
    """An argument of a call."""
    listed = node.child_by_field_name("arguments") if node.type == "call_expression" else None
    items = [c for c in listed.named_children if c.type != "comment"] if listed is not None else []
    return items[position] if position < len(items) else None


def _pointer(site: Site, place: Term) -> Node | None:
    """The expression in the code of a site that holds the address of a place."""
    node = site.node
    if node.type == "call_expression":
        callee = node.child_by_field_name("function")
        if callee is not None and _ATOMIC.match(callee.text or b""):
            return argument(node, 0)
        inner = [c for c in descendants(node, "call_expression") if c != node and _is_atomic(c)]
        if len(inner) == 1:
            return argument(inner[0], 0)
    elif node.type in ("field_expression", "pointer_expression", "subscript_expression"):
        target = node.child_by_field_name("argument") if node.type == "pointer_expression" else None
        reads_parameter = target is not None and _parameter(site.function, target) is not None and len(site.function.parameters) == 1
        return target if reads_parameter else node
    for name in descendants(node, "identifier"):
        held = site.names.get((name.text or b"").decode("utf-8", "replace"), ("none",))
        if site.env.get(held) == address(place):
            return name
    return None


def _is_atomic(node: Node) -> bool:
    callee = node.child_by_field_name("function")
    return callee is not None and _ATOMIC.match(callee.text or b"") is not None


def _bare(pointer: Node) -> Node:
    while pointer.type in ("parenthesized_expression", "cast_expression") or _is_cast_call(pointer):
        inner = argument(pointer, 0) if pointer.type == "call_expression" else pointer.child_by_field_name("value")
        pointer = inner or pointer.named_children[-1]
    return pointer


def _is_cast_call(node: Node) -> bool:
    callee = node.child_by_field_name("function") if node.type == "call_expression" else None
    return callee is not None and (callee.text or b"").startswith((b"reinterpret_cast", b"static_cast", b"const_cast"))


def _parameter(function: Function, pointer: Node) -> int | None:
    """The position of the parameter that an expression is, where the function does not change it."""
    inner = _bare(pointer)
    name = function.unit.source(inner) if inner.type == "identifier" else ""
    found = next((i for i, p in enumerate(function.parameters) if name and p.name == name), None)
    changed = any(_assigned(a, function.unit) == name for a in descendants(function.body, "assignment_expression"))
    return None if changed else found


def _definition(site: Site, pointer: Node) -> tuple[Node, Node]:
    """A local's only definition, or the expression itself."""
    unit = site.unit
    inner = _bare(pointer)
    if inner.type == "identifier":
        name, body = unit.source(inner), site.function.body
        made = [d for d in descendants(body, "init_declarator") if name in _declared(d, unit)]
        changed = [a for a in descendants(body, "assignment_expression") if _assigned(a, unit) == name]
        if len(made) == 1 and not changed:
            value, statement = made[0].child_by_field_name("value"), statement_of(made[0])
            alone = len(statement.children_by_field_name("declarator")) == 1
            if value is not None and statement.type == "declaration" and alone and value.type != "lambda_expression":
                return statement, value
    return statement_of(site.node), pointer


def _declared(node: Node, unit: Unit) -> set[str]:
    declarator = node.child_by_field_name("declarator")
    return {unit.source(i) for i in descendants(declarator, "identifier")} if declarator is not None else set()


def _assigned(node: Node, unit: Unit) -> str:
    left = node.child_by_field_name("left")
    return unit.source(left) if left is not None else ""


def ready_instead(code: Rewriter, made: Origin, event: Rmw | Load) -> tuple[Node, str]:
    """The node to replace, and its text, so that the access goes to ``ready_head`` in every mode."""
    unit = made.site.unit
    for choice in [*descendants(made.expression, "conditional_expression"), *_enclosing_choices(made)]:
        arms = [a for a in (choice.child_by_field_name(f) for f in _ARMS) if a is not None]
        fitting = [a for a in arms if b"ready_head" in (a.text or b"") and b"prod_idx" not in (a.text or b"")]
        if len(fitting) == 1:
            return choice, unit.source(fitting[0])
    ready = ready_node(made)
    if ready is not None:
        return ready, unit.source(ready)
    place = code.member(made.site, qp_pointer(event.place), READY_HEAD)
    if made.direct:
        return made.expression, place
    return made.expression, code.pointer(made.site.function, f"&{place}") if isinstance(event, Rmw) else f"&{place}"


def _enclosing_choices(made: Origin) -> list[Node]:
    found, at = [], made.expression.parent
    while at is not None and at.start_byte >= made.statement.start_byte and at.end_byte <= made.statement.end_byte:
        if at.type == "conditional_expression" and at.child_by_field_name("condition") is not None:
            found.append(at)
        at = at.parent
    return found


def ready_node(made: Origin) -> Node | None:
    """The address of ``ready_head`` as the expression writes it."""
    return next((n for n in descendants(made.expression, "pointer_expression") if b"ready_head" in (n.text or b"")), None)


def both_queues(code: Rewriter, facts: Facts, made: Origin, event: Rmw | Load) -> tuple[Node, str]:
    """The node to replace, and its text, so that the access goes to the proxy's queue in async mode only."""
    unit, node = made.site.unit, ready_node(made) or made.expression
    flag = code.state_member(made.site, facts, protocol.ASYNC_FLAG)
    proxy = code.member(made.site, qp_pointer(event.place), "tx_wq.prod_idx")
    if isinstance(event, Rmw) and b"unsigned long long" in (node.text or b""):
        proxy = code.pointer(made.site.function, proxy)
    text = f"{flag} ? {'*' if made.direct else ''}{proxy} : {unit.source(node)}"
    bare = node.parent is not None and node.parent.type in ("parenthesized_expression", "argument_list", "init_declarator")
    return node, text if bare else f"({text})"
