"""Calls: built-ins, casts, macros, lambdas, helpers in sight (inlined) and everything else (opaque)."""

from __future__ import annotations

import re

from tree_sitter import Node

from patcher.machine import builtins
from patcher.machine.events import Barrier, Call, Fence, Load, Opaque, Scope, Store
from patcher.machine.expressions import Expressions, snippet
from patcher.machine.frame import MAX_DEPTH
from patcher.machine.nodes import named, part, text_of
from patcher.machine.ptx import Instruction, instructions, operand_index
from patcher.machine.state import Dead
from patcher.machine.terms import FALSE, Term, address, deref
from patcher.source.unit import Function, Parameter

STATE_TYPE, STATE = "nvshmemi_ibgda_device_state", "nvshmemi_ibgda_device_state_d"
_STRING = re.compile(r'"((?:\\.|[^"\\])*)"')


class Returned(Exception):
    """A ``return`` was reached."""

    def __init__(self, value: Term | None) -> None:
        super().__init__()
        self.value = value


class Jumped(Exception):
    """A ``goto`` was reached; one that leads back is a loop, and its path is dropped."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label


class Calls(Expressions):
    """Evaluates calls and inline assembly."""

    def run(self, node: Node) -> None:
        """Run a statement."""
        raise NotImplementedError

    def call(self, node: Node) -> Term:
        callee, listed = part(node, "function"), part(node, "arguments")
        if callee is None or listed is None:
            self.fail(node, "a call without its parts")
        arguments = [a for a in named(listed) if a.type != "comment"]
        if callee.type in ("lambda_expression", "parenthesized_expression") and (made := self.value(callee)) in self.lambdas:
            return self._lambda_call(node, made, arguments)
        if callee.type == "field_expression":
            return self._method(node, callee, arguments)
        name, qualified = _callee_name(callee), text_of(callee)
        if callee.type in ("primitive_type", "sized_type_specifier") or builtins.is_type_name(name) or name in self.unit.aliases:
            return self.value(arguments[0]) if arguments else FALSE
        if name in builtins.FENCES:
            self.emit(node, lambda sites: Fence(sites, builtins.FENCES[name]))
            return FALSE
        if name == "atomic_thread_fence":
            scope = builtins.thread_scope(text_of(listed))
            if "relaxed" in text_of(listed) or "memory_order_acquire" in text_of(listed):
                return FALSE  # it releases nothing
            self.emit(node, lambda sites: Fence(sites, scope))
            return FALSE
        known = self.state.names.get(name) if callee.type == "identifier" else None
        if known is not None:
            return self._lambda_call(node, known, arguments)
        if name in builtins.ASSERTIONS and arguments:
            if self.value(arguments[0]) == FALSE:
                raise Dead
            return FALSE
        if name in builtins.IGNORED:
            return FALSE
        if name in builtins.TRAPS:
            raise Dead
        if name in builtins.FIRST_ARGUMENT and arguments:
            return self._pass(name, arguments)
        if name in builtins.BARRIERS:
            self.emit(node, lambda sites: Barrier(sites, name))
            return FALSE
        if name in builtins.SHUFFLES and len(arguments) > 1:
            return self.value(arguments[1])
        atomic = builtins.atomic(name)
        if atomic is not None and arguments:
            pointer, *operands = [self.value(a) for a in arguments]
            return self.rmw(node, atomic[0], deref(pointer), tuple(operands), atomic[1])
        if name == "atomic_ref" and arguments:
            place = ("var", f"<atomic_ref {node.start_byte}>", self.frame)
            self.references[place] = (self.place(arguments[0]), qualified)
            return place
        expanded = self.macro(name, [text_of(a) for a in arguments], node)
        if expanded is not None:
            return expanded
        function = next((f for f in self.resolve(name, self.unit) if f.accepts(len(arguments))), None)
        if function is not None and len(self.state.stack) < MAX_DEPTH and not self._running(function):
            return self._inline(node, function, arguments)
        if function is None:
            self.unknown.add((name, self.unit.path))
        values = tuple(self.value(a) for a in arguments)
        self.emit(node, lambda sites: Call(sites, name, values))
        return ("call", name if callee.type != "qualified_identifier" else qualified, *values)

    def _pass(self, name: str, arguments: list[Node]) -> Term:
        if name in ("ACCESS_ONCE", "READ_ONCE"):
            return self.load(arguments[0], self.place(arguments[0]))
        first = self.value(arguments[0])
        if name in ("__ldg", "__ldcg", "__ldcv", "__ldlu"):
            return self.state.read(deref(first))
        return address(self.place(arguments[0])) if name == "addressof" else first

    def _running(self, function: Function) -> bool:
        return function is self.function or any(site.function is function for site in self.state.stack)

    def _method(self, node: Node, callee: Node, arguments: list[Node]) -> Term:
        target, member = part(callee, "argument"), part(callee, "field")
        name = _callee_name(member) if member is not None else ""
        owner = self.value(target) if target is not None else FALSE
        reference = self.references.get(owner) or self.references.get(owner[1] if owner[0] == "val" else owner)
        kind = builtins.method(name)
        values = tuple(self.value(a) for a in arguments)
        if reference is None:
            self.emit(node, lambda sites: Call(sites, name, (owner, *values)))
            return ("call", name, owner, *values)
        place, written = reference
        scope = builtins.thread_scope(written)
        orders = " ".join(text_of(a) for a in arguments)
        release = not orders.count("memory_order") or any(w in orders for w in ("release", "acq_rel", "seq_cst"))
        if kind is not None:
            return self.rmw(node, kind, place, values, scope, release)
        if name == "store" and values:
            self.emit(node, lambda sites: Store(sites, place, values[0], scope, release))
            return FALSE
        self.emit(node, lambda sites: Load(sites, place, scope))
        return ("val", place)

    def _lambda_call(self, node: Node, place: Term, arguments: list[Node]) -> Term:
        held = self.state.env.get(place, place)
        body_of = self.lambdas.get(held)
        values = [self.value(a) for a in arguments]
        if body_of is None:
            self.emit(node, lambda sites: Call(sites, str(place[1]), tuple(values)))
            return ("call", str(place[1]), *values)
        body = part(body_of, "body")
        declarator = part(body_of, "declarator")
        names = [text_of(i) for i in _parameter_names(declarator)] if declarator is not None else []
        saved = dict(self.state.names)
        self.state.stack.append(self.site(node))
        for name, value in zip(names, values, strict=False):
            self.state.env[self.local(name)] = value
        try:
            if body is not None:
                self.run(body)
        except Returned as returned:
            return returned.value or FALSE
        finally:
            self.state.stack.pop()
            self.state.names = saved
        return FALSE

    def _inline(self, node: Node, function: Function, arguments: list[Node]) -> Term:
        bound: list[tuple[str, Term, bool]] = []
        for parameter, argument in zip(function.parameters, arguments, strict=False):
            if parameter.reference:
                bound.append((parameter.name, self.place(argument), True))
            else:
                bound.append((parameter.name, self.value(argument), False))
        for parameter in function.parameters[len(arguments) :]:
            bound.append((parameter.name, ("sym", f"default {parameter.name}", parameter.type), False))
        bound.extend(self._template_arguments(node, function))
        state = self.state
        outer = (self.function, self.frame, state.names, self.pin)
        state.stack.append(self.site(node))
        try:
            return self.activate(function, bound) or FALSE
        finally:
            state.stack.pop()
            self.function, self.frame, state.names, self.pin = outer

    def _template_arguments(self, node: Node, function: Function) -> list[tuple[str, Term, bool]]:
        callee = part(node, "function")
        while callee is not None and callee.type == "qualified_identifier":
            callee = part(callee, "name")
        listed = part(callee, "arguments") if callee is not None and callee.type == "template_function" else None
        given = [c for c in named(listed) if c.type != "comment"] if listed is not None else []
        bound: list[tuple[str, Term, bool]] = []
        for position, name in enumerate(function.template):
            if position < len(given):
                argument = given[position]
                bound.append((name, self._template_value(argument), False))
            else:
                bound.append((name, ("sym", f"{name} of {function.name}", ""), False))
        return bound

    def _template_value(self, node: Node) -> Term:
        """A type is a symbol; a value is evaluated (the grammar can't tell ``f<T>`` from ``f<N>``)."""
        if node.type == "type_descriptor":
            name = text_of(node)
            place = self.state.names.get(name)
            return self.state.read(place) if place is not None else ("val", ("sym", name, ""))
        return self.value(node)

    def activate(self, function: Function, bound: list[tuple[str, Term, bool]]) -> Term | None:
        """Run ``function`` with its parameters bound to values (or, True, to places)."""
        state = self.state
        state.frames += 1
        self.entered.add(function)
        self.function, self.frame, self.pin, state.names = function, state.frames, None, {}
        for name, term, is_place in bound:
            if is_place:
                state.names[name] = term
            else:
                state.env[self.local(name)] = term
        try:
            self.run(function.body)
        except Returned as returned:
            return returned.value
        except Jumped:
            raise Dead from None
        return None

    def enter(self, function: Function) -> Term | None:
        """Run ``function`` with symbols for its parameters."""
        return self.activate(function, [self._symbol(p) for p in function.parameters])

    @staticmethod
    def _symbol(parameter: Parameter) -> tuple[str, Term, bool]:
        """A parameter's symbol; the device state is one object, however it is handed on."""
        name = parameter.name
        if STATE_TYPE in parameter.type:
            state: Term = ("sym", STATE, "")
            return (name, state, True) if parameter.reference else (name, ("addr", state), False)
        if parameter.reference:
            return (name, deref(("sym", name, parameter.type)), True)
        return (name, ("sym", name, parameter.type), False)

    def macro(self, name: str, arguments: list[str] | None, node: Node) -> Term | None:
        macro = self.unit.macros.get(name)
        if macro is None or (macro.parameters is None) != (arguments is None) or self.macro_depth > 8:
            return None
        body = macro.body
        for parameter, argument in zip(macro.parameters or (), arguments or (), strict=False):
            body = re.sub(rf"\b{re.escape(parameter)}\b", lambda _, argument=argument: argument, body)  # type: ignore[misc]
        if not body:
            return FALSE
        saved = self.pin
        self.pin = self.pin or node
        self.macro_depth += 1
        try:
            result = FALSE
            for child in named(snippet(body.replace("\\\n", " ").replace("\\\r\n", " "))):
                if child.type == "expression_statement" and named(child):
                    result = self.value(named(child)[0])
                else:
                    self.run(child)
            return result
        finally:
            self.macro_depth -= 1
            self.pin = saved

    def assembly(self, node: Node) -> Term:
        code = part(node, "assembly_code")
        text = self._asm_text(code) if code is not None else ""
        operands = [o for field in ("output_operands", "input_operands") for o in _asm_operands(part(node, field))]
        outputs = len(_asm_operands(part(node, "output_operands")))
        parsed = instructions(text)
        if not parsed:
            return FALSE
        values = [self.value(o) if i >= outputs else FALSE for i, o in enumerate(operands)]
        unknown = False
        for instruction in parsed:
            unknown |= not self._instruction(node, instruction, operands, values, outputs)
        if unknown:
            self.emit(node, lambda sites: Opaque(sites, text, tuple(values[outputs:])))
        return FALSE

    def _asm_text(self, node: Node) -> str:
        text = (node.text or b"").decode("utf-8", "replace")
        for name in set(re.findall(r"\b[A-Z_][A-Z0-9_]+\b", _STRING.sub(" ", text))):
            macro = self.unit.macros.get(name)
            if macro is not None:
                text = re.sub(rf"\b{name}\b", lambda _, macro=macro: macro.body, text)  # type: ignore[misc]
        return "".join(_STRING.findall(text))

    def _instruction(self, node: Node, op: Instruction, operands: list[Node], values: list[Term], outputs: int) -> bool:
        """One instruction; False where it takes operands and is not understood."""
        opcode = op.parts[0]

        def at(position: int) -> Term:
            index = operand_index(op.operands[position]) if position < len(op.operands) else None
            return (
                values[index]
                if index is not None and index < len(values)
                else ("sym", op.operands[position] if position < len(op.operands) else "?", "")
            )

        def set_output(position: int, value: Term) -> None:
            index = operand_index(op.operands[position]) if position < len(op.operands) else None
            if index is not None and index < outputs:
                values[index] = value
                self.store(node, self.place(operands[index]), value)

        if opcode == "trap" or opcode == "exit":
            raise Dead
        if opcode in ("fence", "membar") and ("acquire" in op.parts or op.predicated):
            return True  # it releases nothing, or not always
        if opcode in ("fence", "membar"):
            proxy = "proxy" in op.parts
            scope = op.scope or (Scope.SYS if proxy else Scope.NONE)
            self.emit(node, lambda sites: Fence(sites, scope, proxy))
        elif opcode in ("bar", "barrier"):
            self.emit(node, lambda sites: Barrier(sites, ".".join(op.parts)))
        elif opcode in ("st", "ld") and len(op.operands) >= 2 and "bulk" not in op.parts:
            ordered = op.has("relaxed", "release", "acquire")
            scope = op.scope or (Scope.SYS if op.has("volatile", "mmio") else Scope.NONE)
            if opcode == "st":
                place, value = deref(at(0)), at(1)
                self.emit(node, lambda sites: Store(sites, place, value, scope, ordered and "release" in op.parts))
            else:
                place = deref(at(1))
                self.emit(node, lambda sites: Load(sites, place, scope))
                set_output(0, self.state.read(place))
        elif opcode in ("atom", "red") and op.kind:
            first = 1 if opcode == "atom" else 0
            place = deref(at(first))
            arguments = tuple(at(i) for i in range(first + 1, len(op.operands)))
            result = self.rmw(node, op.kind, place, arguments, op.scope or Scope.GPU, op.has("release", "acq_rel"))
            if opcode == "atom":
                set_output(0, result)
        else:
            for position in range(len(op.operands)):
                set_output(position, ("call", ".".join(op.parts), *values[outputs:]))
                break
            return not any("[" in o for o in op.operands) and opcode not in ("cp", "st", "red", "multimem")
        return True


def _callee_name(node: Node) -> str:
    while node.type in ("qualified_identifier", "template_function", "dependent_name", "template_method"):
        inner = part(node, "name") or (named(node)[-1] if named(node) else None)
        if inner is None or inner == node:
            break
        node = inner
    if node.type == "parenthesized_expression" and named(node):
        return _callee_name(named(node)[0])
    return text_of(node)


def _parameter_names(node: Node) -> list[Node]:
    if node.type == "parameter_list":
        found = []
        for parameter in named(node):
            at: Node | None = part(parameter, "declarator")
            while at is not None and at.type != "identifier":
                at = part(at, "declarator") or next(iter(named(at)), None)
            if at is not None:
                found.append(at)
        return found
    return [i for child in named(node) for i in _parameter_names(child)]


def _asm_operands(node: Node | None) -> list[Node]:
    if node is None:
        return []
    return [named(o)[-1] for o in named(node) if o.type.endswith("_operand") and named(o)]


__all__ = ["Calls", "Jumped", "Returned"]
