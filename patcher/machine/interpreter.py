"""Statements and control flow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tree_sitter import Node

from patcher.machine.calls import Calls, Jumped, Returned
from patcher.machine.frame import NotUnderstood
from patcher.machine.nodes import named, part, text_of
from patcher.machine.state import Dead
from patcher.machine.terms import TRUE, Term, address, operation

__all__ = ["Interpreter", "NotUnderstood"]


class Broke(Exception):
    """A ``break`` was reached."""


class Continued(Exception):
    """A ``continue`` was reached."""


class Interpreter(Calls):
    """Runs statements.  A loop is followed for one iteration at most: a path that would repeat is dropped."""

    def run(self, node: Node) -> None:
        handler = _STATEMENTS.get(node.type)
        if handler is not None:
            handler(self, node)
        elif node.type == "ERROR":
            self.fail(node, f"not understood: `{' '.join(text_of(node).split())[:60]}`")
        elif node.type not in _SKIPPED:
            self.value(node)

    def _compound(self, node: Node) -> None:
        names = dict(self.state.names)
        self._sequence(named(node))
        self.state.names = names

    def _sequence(self, statements: list[Node]) -> None:
        position = 0
        while position < len(statements):
            try:
                self.run(statements[position])
                position += 1
            except Jumped as jump:
                target = next((i for i, s in enumerate(statements) if i > position and _labels(s, jump.label)), None)
                if target is None:
                    raise
                position = target

    def _expression(self, node: Node) -> None:
        if node.has_error and b"asm" not in (node.text or b"") and not self._is_macro_alone(node):
            self.fail(node, f"not understood: `{' '.join(text_of(node).split())[:60]}`")
        for child in named(node):
            if child.type != "comment":
                self.value(child)

    def _is_macro_alone(self, node: Node) -> bool:
        """Whether a statement is a macro of the file that brings its own semicolon or block."""
        inner = named(node)[0] if len(named(node)) == 1 else node
        callee = part(inner, "function") if inner.type == "call_expression" else inner
        return callee is not None and not inner.has_error and text_of(callee) in self.unit.macros

    def _declaration(self, node: Node) -> None:
        written = part(node, "type")
        for child in node.children_by_field_name("declarator"):
            self._declare(child, text_of(written) if written is not None else "")

    def _declare(self, node: Node, written: str) -> None:
        initial = part(node, "value") if node.type == "init_declarator" else None
        declarator: Node | None = part(node, "declarator") if node.type == "init_declarator" else node
        reference = False
        while declarator is not None and declarator.type != "identifier":
            reference = reference or declarator.type == "reference_declarator"
            if declarator.type == "function_declarator" and node.has_error:
                self.fail(node, f"not understood: `{' '.join(text_of(node).split())[:60]}`")
            if declarator.type in ("structured_binding_declarator", "function_declarator"):
                break
            declarator = part(declarator, "declarator") or next(
                (c for c in named(declarator) if c.type == "identifier" or c.type.endswith("declarator")), None
            )
        if declarator is None or declarator.type != "identifier":
            if initial is not None:
                self.value(initial)
            return
        name = text_of(declarator)
        if initial is None:
            self.local(name)
            return
        if initial.type == "argument_list":
            arguments = named(initial)
            if "atomic_ref" in written and arguments:
                self.references[self.local(name)] = (self.place(arguments[0]), written)
                return
            initial = arguments[0] if arguments else initial
        if reference:
            self.state.names[name] = self.place(initial)
            return
        value = self.value(initial)
        self.state.env[self.local(name)] = value

    def _if(self, node: Node) -> None:
        condition, yes, no = (part(node, f) for f in ("condition", "consequence", "alternative"))
        if condition is None:
            self.fail(node, "an `if` without a condition")
        names = dict(self.state.names)
        if self.state.truth(self._condition(condition)):
            if yes is not None:
                self.run(yes)
        elif no is not None:
            for child in named(no) if no.type == "else_clause" else [no]:
                self.run(child)
        self.state.names = names

    def _condition(self, node: Node) -> Term:
        initial, declared = part(node, "initializer"), part(node, "value")
        if initial is not None:
            for child in named(initial) or [initial]:
                self.run(child)
        if declared is not None and declared.type == "declaration":
            value = part(declared, "value")
            name = part(declared, "declarator")
            if value is not None and name is not None:
                term = self.value(value)
                self.state.env[self.local(text_of(name).lstrip("*& "))] = term
                return term
        return self.value(node)

    def _switch(self, node: Node) -> None:
        condition, body = part(node, "condition"), part(node, "body")
        if condition is None or body is None:
            self.fail(node, "a `switch` without its parts")
        subject = self._condition(condition)
        cases = [c for c in named(body) if c.type == "case_statement"]
        chosen = None
        for index, case in enumerate(cases):
            label = part(case, "value")
            if label is not None and self.state.truth(operation("==", subject, self.value(label))):
                chosen = index
                break
        if chosen is None:
            chosen = next((i for i, c in enumerate(cases) if part(c, "value") is None), None)
        if chosen is None:
            return
        try:
            for case in cases[chosen:]:
                label = part(case, "value")
                self._sequence([c for c in named(case) if c != label])
        except Broke:
            pass

    def _while(self, node: Node) -> None:
        condition, body = part(node, "condition"), part(node, "body")
        if condition is None or body is None:
            self.fail(node, "a loop without its parts")
        self._loop(condition, lambda: self._condition(condition), body, None)

    def _for(self, node: Node) -> None:
        names = dict(self.state.names)
        initial, condition = part(node, "initializer"), part(node, "condition")
        update, body = part(node, "update"), part(node, "body")
        if body is None:
            self.fail(node, "a loop without a body")
        if initial is not None:
            self.run(initial)
        self._loop(condition, lambda: self.value(condition) if condition is not None else TRUE, body, update)
        self.state.names = names

    def _loop(self, test: Node | None, condition: Callable[[], Term], body: Node, update: Node | None) -> None:
        spins = not [c for c in named(body) if c.type not in ("comment", "continue_statement")]
        self._forget(test)
        if spins and update is None:
            self.state.truth(condition(), want=False)
            return
        if not self.state.truth(condition()):
            return
        self._forget(test, body, update)
        try:
            self.run(body)
        except Broke:
            return
        except Continued:
            pass
        if update is not None:
            self.value(update)
        self._again(condition)

    def _forget(self, *nodes: Node | None) -> None:
        """Make locals that a loop changes unknown: an iteration is any iteration, not the first."""
        stack = [n for n in nodes if n is not None]
        while stack:
            node = stack.pop()
            stack.extend(named(node))
            target = part(node, "left" if node.type == "assignment_expression" else "argument")
            if node.type in ("assignment_expression", "update_expression") and target is not None and target.type == "identifier":
                place = self.state.names.get(text_of(target))
                if place is not None and place in self.state.env:
                    self.state.env[place] = ("sym", f"some {text_of(target)}", f"loop {node.start_byte}")

    def _again(self, condition: Callable[[], Term]) -> None:
        """Leave a loop after an iteration.

        What a local counts up to is not known then, so its condition is forgotten, not contradicted.
        """
        before = dict(self.state.known)
        term = condition()
        if term[0] == "num" and not term[1]:
            return
        if term[0] == "num":
            raise Dead
        self.state.known = {k: v for k, v in self.state.known.items() if k not in before or before[k] == v}
        self.state.truth(term, want=False)

    def _do(self, node: Node) -> None:
        condition, body = part(node, "condition"), part(node, "body")
        if condition is None or body is None:
            self.fail(node, "a loop without its parts")
        self._forget(condition, body)
        try:
            self.run(body)
        except Broke:
            return
        except Continued:
            pass
        self._forget(condition)
        self._again(lambda: self.value(condition))

    def _range(self, node: Node) -> None:
        source, body, declarator = (part(node, f) for f in ("right", "body", "declarator"))
        if source is not None:
            self.value(source)
        if body is None or not self.state.truth(("call", "<range>", ("num", node.start_byte))):
            return
        names = dict(self.state.names)
        if declarator is not None:
            self.local(text_of(declarator).lstrip("*& "))
        with contextlib.suppress(Broke, Continued):
            self.run(body)
        self.state.names = names

    def _return(self, node: Node) -> None:
        children = [c for c in named(node) if c.type != "comment"]
        if not children:
            raise Returned(None)
        raise Returned(address(self.place(children[0])) if self._returns_reference() else self.value(children[0]))

    def _returns_reference(self) -> bool:
        assert self.function is not None
        declarator = part(self.function.node, "declarator")
        return declarator is not None and declarator.type == "reference_declarator"

    def _break(self, node: Node) -> None:
        raise Broke

    def _continue(self, node: Node) -> None:
        raise Continued

    def _goto(self, node: Node) -> None:
        label = part(node, "label") or named(node)[0]
        raise Jumped(text_of(label))

    def _labeled(self, node: Node) -> None:
        for child in named(node):
            if child.type != "statement_identifier":
                self.run(child)

    def _attributed(self, node: Node) -> None:
        for child in named(node):
            if child.type != "attribute_declaration":
                self.run(child)

    def _throw(self, node: Node) -> None:
        raise Dead


def _labels(node: Node, label: str) -> bool:
    return node.type == "labeled_statement" and any(c.type == "statement_identifier" and text_of(c) == label for c in node.children)


_SKIPPED = frozenset(
    {
        "comment", "using_declaration", "alias_declaration", "type_definition", "static_assert_declaration", "struct_specifier",
        "class_specifier", "enum_specifier", "namespace_alias_definition", ";", "empty_statement", "attribute_declaration",
    }
)  # fmt: skip
_STATEMENTS: dict[str, Callable[[Interpreter, Node], None]] = {
    "compound_statement": Interpreter._compound,
    "expression_statement": Interpreter._expression,
    "declaration": Interpreter._declaration,
    "if_statement": Interpreter._if,
    "while_statement": Interpreter._while,
    "for_statement": Interpreter._for,
    "do_statement": Interpreter._do,
    "for_range_loop": Interpreter._range,
    "switch_statement": Interpreter._switch,
    "return_statement": Interpreter._return,
    "break_statement": Interpreter._break,
    "continue_statement": Interpreter._continue,
    "goto_statement": Interpreter._goto,
    "labeled_statement": Interpreter._labeled,
    "attributed_statement": Interpreter._attributed,
    "throw_statement": Interpreter._throw,
}
