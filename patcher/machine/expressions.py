"""Values and places of expressions."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from tree_sitter import Node, Parser

from patcher.machine.events import Load, Rmw, Scope, Store
from patcher.machine.frame import Frame
from patcher.machine.nodes import named, part, text_of
from patcher.machine.state import is_local
from patcher.machine.terms import FALSE, TRUE, Term, address, deref, number, operation
from patcher.source.unit import LANGUAGE

if TYPE_CHECKING:
    from collections.abc import Callable

_ALIASES = {"and": "&&", "or": "||", "not": "!", "not_eq": "!=", "bitand": "&", "bitor": "|", "xor": "^", "compl": "~"}
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uUlLzZ]*$")
_MACRO_DEPTH = 8


class Expressions(Frame):
    """Evaluates expressions; calls are left to :class:`patcher.machine.calls.Calls`."""

    macro_depth = 0

    def value(self, node: Node) -> Term:
        """The value of an expression."""
        handler = _VALUES.get(node.type)
        if handler is not None:
            return handler(self, node)
        if node.type == "subscript_expression" and (element := self._element(node)) is not None:
            return element
        if node.type in _PLACES:
            return self.load(node, self.place(node))
        if node.type == "ERROR":
            self.fail(node, f"not understood: `{_short(node)}`")
        for child in named(node):
            if child.type not in ("type_descriptor", "comment"):
                self.value(child)
        return ("call", node.type, ("sym", text_of(node), ""))

    def call(self, node: Node) -> Term:
        """The value of a call."""
        raise NotImplementedError

    def assembly(self, node: Node) -> Term:
        """The effect of inline assembly."""
        raise NotImplementedError

    def macro(self, name: str, arguments: list[str] | None, node: Node) -> Term | None:
        """The value of a macro of the unit, or None where ``name`` is none."""
        raise NotImplementedError

    def place(self, node: Node) -> Term:
        """The place that an expression denotes."""
        match node.type:
            case "identifier" | "field_identifier" | "this" | "type_identifier":
                name = text_of(node)
                found = self.state.names.get(name)
                return found if found is not None else ("sym", name, "")
            case "qualified_identifier":
                return ("sym", text_of(node).removeprefix("::"), "")
            case "parenthesized_expression":
                return self.place(_only(node))
            case "field_expression":
                argument, member = part(node, "argument"), part(node, "field")
                if argument is None or member is None:
                    self.fail(node, "a member access without a member")
                arrow = any(c.type == "->" for c in node.children)
                base = deref(self.value(argument)) if arrow else self.place(argument)
                return ("field", base, text_of(member))
            case "pointer_expression":
                argument = part(node, "argument")
                assert argument is not None
                if node.children[0].type == "*":
                    return deref(self.value(argument))
            case "subscript_expression":
                argument, index = part(node, "argument"), part(node, "indices")
                if argument is not None and index is not None and named(index):
                    base = self.value(argument)
                    if base[0] == "val" and base[1][0] == "var":
                        return ("field", base[1], f"[{self.value(named(index)[0])!r}]")
                    return deref(operation("+", base, self.value(named(index)[0])))
            case "conditional_expression":
                return self.place(self._arm(node))
            case "call_expression" | "cast_expression" | "assignment_expression" | "update_expression" | "comma_expression":
                return self._temporary(node)
        return self._temporary(node)

    def _temporary(self, node: Node) -> Term:
        value = self.value(node)
        if value[0] == "val":
            return tuple(value[1])
        place = ("var", f"<temporary {node.start_byte}>", self.frame)
        self.state.env[place] = value
        return place

    def _arm(self, node: Node) -> Node:
        condition = part(node, "condition")
        yes, no = part(node, "consequence"), part(node, "alternative")
        if condition is None or no is None:
            self.fail(node, "a conditional expression without its parts")
        if yes is None:
            return condition if self.state.truth(self.value(condition)) else no
        return yes if self.state.truth(self.value(condition)) else no

    def _name(self, node: Node) -> Term:
        name = text_of(node)
        place = self.state.names.get(name)
        if place is not None:
            if place in self.lambdas:
                return place
            return self.state.read(place)
        expanded = self.macro(name, None, node)
        return expanded if expanded is not None else ("val", ("sym", name, ""))

    def _number(self, node: Node) -> Term:
        text = text_of(node).replace("'", "")
        match = _NUMBER.match(text)
        return number(int(match[1], 0 if match[1][:2].lower() in ("0x", "0b") else 10)) if match else ("sym", text, "")

    def _pointer(self, node: Node) -> Term:
        argument = part(node, "argument")
        assert argument is not None
        if node.children[0].type == "&":
            return address(self.place(argument))
        return self.load(node, self.place(node))

    def _element(self, node: Node) -> Term | None:
        """An element of a local array with an initialiser; one of two by a condition is a branch."""
        argument, indices = part(node, "argument"), part(node, "indices")
        if argument is None or argument.type != "identifier" or indices is None or len(named(indices)) != 1:
            return None
        whole = self.state.env.get(self.state.names.get(text_of(argument), ("none",)), ("none",))
        if whole[:2] != ("call", "{}"):
            return None
        index = self.value(named(indices)[0])
        if index[0] != "num" and len(whole) == 4:
            index = TRUE if self.state.truth(index) else FALSE
        return whole[2 + index[1]] if index[0] == "num" and 0 <= index[1] < len(whole) - 2 else None

    def load(self, node: Node, place: Term) -> Term:
        """A plain read: of memory, it is an event without a scope."""
        if place[0] != "sym" and not is_local(place):
            self.emit(node, lambda sites: Load(sites, place, Scope.NONE))
        return self.state.read(place)

    def _cast(self, node: Node) -> Term:
        inner = part(node, "value")
        return self.value(inner) if inner is not None else number(0)

    def _unary(self, node: Node) -> Term:
        argument = part(node, "argument")
        assert argument is not None
        operator = text_of(node.children[0])
        operator = _ALIASES.get(operator, operator)
        operand = self.value(argument)
        if operator == "+":
            return operand
        if operator == "!" and operand[0] == "num":
            return number(int(not operand[1]))
        if operator == "-" and operand[0] == "num":
            return number(-operand[1])
        return ("op", operator, operand)

    def _binary(self, node: Node) -> Term:
        left, right = part(node, "left"), part(node, "right")
        operator_node = part(node, "operator")
        if left is None or right is None or operator_node is None:
            self.fail(node, "an operation without its operands")
        operator = text_of(operator_node)
        operator = _ALIASES.get(operator, operator)
        if operator == "&&":
            return TRUE if self.state.truth(self.value(left)) and self.state.truth(self.value(right)) else FALSE
        if operator == "||":
            return TRUE if self.state.truth(self.value(left)) or self.state.truth(self.value(right)) else FALSE
        return operation(operator, self.value(left), self.value(right))

    def _assignment(self, node: Node) -> Term:
        left, right = part(node, "left"), part(node, "right")
        if left is None or right is None:
            self.fail(node, "an assignment without its sides")
        operator = text_of(node.children[1])
        value = self.value(right)
        place = self.place(left)
        if operator != "=":
            value = operation(operator.removesuffix("="), self.state.read(place), value)
        self.store(node, place, value)
        return value

    def store(self, node: Node, place: Term, value: Term) -> None:
        """A plain assignment: a local changes, memory gets a weak store."""
        if not self.write(place, value):
            self.emit(node, lambda sites: Store(sites, place, value, Scope.NONE, False))

    def _update(self, node: Node) -> Term:
        argument = part(node, "argument")
        assert argument is not None
        place = self.place(argument)
        before = self.state.read(place)
        step = 1 if any(c.type == "++" for c in node.children) else -1
        after = operation("+", before, number(step))
        self.store(node, place, after)
        return before if node.children[0] == argument else after

    def _conditional(self, node: Node) -> Term:
        return self.value(self._arm(node))

    def _comma(self, node: Node) -> Term:
        result = FALSE
        for child in named(node):
            result = self.value(child)
        return result

    def _lambda(self, node: Node) -> Term:
        place = ("var", f"<lambda {node.start_byte}>", self.frame)
        self.lambdas[place] = node
        return place

    def _initializer(self, node: Node) -> Term:
        items = [c for c in named(node) if c.type != "comment"]
        if len(items) == 1 and items[0].type != "initializer_pair":
            return self.value(items[0])
        return ("call", "{}", *(self.value(i.children[-1] if i.type == "initializer_pair" else i) for i in items))

    def rmw(self, node: Node, kind: str, place: Term, operands: tuple[Term, ...], scope: Scope, release: bool = False) -> Term:
        """A read-modify-write on memory or, for a local, its plain meaning."""
        result = self.state.next_result(kind)
        self.emit(node, lambda sites: Rmw(sites, kind, place, operands, scope, result, release))
        return result


def _short(node: Node) -> str:
    text = " ".join(text_of(node).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _only(node: Node) -> Node:
    return next((c for c in named(node) if c.type != "comment"), node)


@lru_cache(maxsize=512)
def snippet(text: str) -> Node:
    """The body of ``{ text }`` as a tree of its own."""
    tree = Parser(LANGUAGE).parse(b"void f() {" + text.encode("utf-8", "surrogateescape") + b";}")
    body = tree.root_node.children[0].child_by_field_name("body")
    assert body is not None
    return body


_PLACES = frozenset({"field_expression", "subscript_expression", "this", "qualified_identifier"})
_VALUES: dict[str, Callable[[Expressions, Node], Term]] = {
    "identifier": Expressions._name,
    "number_literal": Expressions._number,
    "true": lambda self, node: TRUE,
    "false": lambda self, node: FALSE,
    "null": lambda self, node: FALSE,
    "string_literal": lambda self, node: ("sym", text_of(node), "string"),
    "char_literal": lambda self, node: ("sym", text_of(node), "char"),
    "concatenated_string": lambda self, node: ("sym", text_of(node), "string"),
    "sizeof_expression": lambda self, node: ("sym", text_of(node), ""),
    "parenthesized_expression": lambda self, node: self.value(_only(node)),
    "condition_clause": lambda self, node: self.value(part(node, "value") or _only(node)),
    "pointer_expression": Expressions._pointer,
    "cast_expression": Expressions._cast,
    "unary_expression": Expressions._unary,
    "binary_expression": Expressions._binary,
    "assignment_expression": Expressions._assignment,
    "update_expression": Expressions._update,
    "conditional_expression": Expressions._conditional,
    "comma_expression": Expressions._comma,
    "call_expression": lambda self, node: self.call(node),
    "gnu_asm_expression": lambda self, node: self.assembly(node),
    "lambda_expression": Expressions._lambda,
    "initializer_list": Expressions._initializer,
    "compound_literal_expression": lambda self, node: self.value(part(node, "value") or node.children[-1]),
}
