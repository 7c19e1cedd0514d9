"""A parsed file: its active text under one set of macros, its tree, and its functions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser, Tree

from patcher.source.conditions import Macro
from patcher.source.preprocess import Preprocessed, blanked

# Known specifier macros stop tree-sitter-cpp from seeing a function: 25 ERROR nodes in DeepEP's
# ibgda_device.cuh and 119 in NVSHMEM 3.4.5's without this, 0 and 6 with it.
_SPECIFIERS = re.compile(
    rb"\b(?:__device__|__host__|__global__|__forceinline__|__noinline__|__inline_hint__|__restrict__|__shared__|__constant__"
    rb"|__grid_constant__|NVSHMEMI_STATIC|NVSHMEMI_DEVICE_ALWAYS_INLINE|NVSHMEMI_DEVICE_ALWAYS_FORCE_INLINE|NVSHMEMI_DEVICE_INLINE"
    rb"|CONSTANT_ADDRESS_SPACE"
    rb"|(?:__launch_bounds__|__align__|__cluster_dims__)[ \t]*\((?:[^()]|\([^()]*\))*\)"
    rb"|(?:__attribute__|__declspec)[ \t]*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))"
)
_ALIAS = re.compile(rb"\busing\s+(\w+)\s*=|\btypedef\b[^;{}]*?\b(\w+)\s*;")
_CONTAINERS = frozenset(
    {
        "translation_unit", "namespace_definition", "declaration_list", "template_declaration", "class_specifier", "struct_specifier",
        "field_declaration_list", "linkage_specification", "ERROR", "declaration", "type_definition",
    }
)  # fmt: skip
LANGUAGE = Language(tree_sitter_cpp.language())


def without_specifiers(data: bytes) -> bytes:
    """``data`` with CUDA's and NVSHMEM's specifiers, and NUL bytes, which end a file for the parser, as spaces."""
    return _SPECIFIERS.sub(lambda m: blanked(m.group()), data.replace(b"\0", b" "))


class Parameter(NamedTuple):
    """One parameter of a function: its name (may be empty), its type as written."""

    name: str
    type: str
    optional: bool
    reference: bool


@dataclass(frozen=True, eq=False, repr=False)
class Function:
    """A function definition with a body in one unit."""

    name: str
    unit: Unit
    node: Node
    body: Node
    parameters: tuple[Parameter, ...]
    template: tuple[str, ...] = ()

    @property
    def line(self) -> int:
        """The 1-based line of the definition."""
        return self.unit.line(self.node.start_byte)

    @property
    def returns_nothing(self) -> bool:
        """Whether the function is declared ``void``."""
        kind, declarator = self.node.child_by_field_name("type"), self.node.child_by_field_name("declarator")
        return kind is not None and declarator is not None and kind.text == b"void" and declarator.type == "function_declarator"

    def accepts(self, count: int) -> bool:
        """Whether a call with ``count`` arguments can mean this function."""
        required = sum(not p.optional for p in self.parameters)
        return required <= count <= len(self.parameters)


@dataclass(eq=False, repr=False)
class Unit:
    """One file under one set of macros.  ``path`` is relative to the checkout, with ``/``."""

    path: str
    data: bytes
    pre: Preprocessed
    _errors: list[Node] | None = field(default=None, repr=False)

    @property
    def text(self) -> bytes:
        """The bytes that are parsed: conditionals and specifiers blanked, same length as ``data``."""
        return self.pre.text

    @cached_property
    def tree(self) -> Tree:
        """The syntax tree of ``text``."""
        return Parser(LANGUAGE).parse(self.text)

    @cached_property
    def functions(self) -> Mapping[str, tuple[Function, ...]]:
        """Definitions by unqualified name, in file order."""
        found: dict[str, list[Function]] = {}
        for function in _functions(self, self.tree.root_node):
            found.setdefault(function.name, []).append(function)
        return {name: tuple(functions) for name, functions in found.items()}

    @cached_property
    def aliases(self) -> frozenset[str]:
        """Names of types that the file gives to others (``using``, ``typedef``)."""
        return frozenset(m.decode() for pair in _ALIAS.findall(self.text) for m in pair if m)

    @property
    def macros(self) -> Mapping[str, Macro]:
        """Macros defined in the file (and those it was given)."""
        return self.pre.macros

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(m.end() for m in re.finditer(rb"\n", self.data))]

    def line(self, offset: int) -> int:
        """The 1-based line of a byte offset."""
        return bisect_right(self._line_starts, offset)

    def line_start(self, offset: int) -> int:
        """The offset of the first byte of the line that holds ``offset``."""
        return self._line_starts[bisect_right(self._line_starts, offset) - 1]

    def line_end(self, offset: int) -> int:
        """The offset just behind the newline of the line that holds ``offset``."""
        newline = self.data.find(b"\n", offset)
        return len(self.data) if newline < 0 else newline + 1

    def source(self, node: Node) -> str:
        """The bytes of a node as the user wrote them."""
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")

    @cached_property
    def errors(self) -> tuple[tuple[int, int], ...]:
        """Byte ranges that tree-sitter did not understand."""
        found: list[tuple[int, int]] = []
        stack = [self.tree.root_node]
        while stack:
            node = stack.pop()
            if node.type == "ERROR" or node.is_missing:
                found.append((node.start_byte, node.end_byte))
            elif node.has_error:
                stack.extend(node.children)
        return tuple(sorted(found))


def _functions(unit: Unit, node: Node) -> Iterator[Function]:
    for child in node.children:
        if child.type == "function_definition":
            function = _function(unit, child)
            if function is not None:
                yield function
        elif child.type in _CONTAINERS:
            yield from _functions(unit, child)


def _function(unit: Unit, node: Node) -> Function | None:
    body = node.child_by_field_name("body")
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        inner = declarator.child_by_field_name("declarator")
        if inner is None:
            inner = next((c for c in declarator.named_children if c.type.endswith("declarator")), None)
        declarator = inner
    if body is None or declarator is None:
        return None
    name = declarator.child_by_field_name("declarator")
    while name is not None and name.type in ("qualified_identifier", "template_function"):
        name = name.child_by_field_name("name")
    listed = declarator.child_by_field_name("parameters")
    if name is None or listed is None:
        return None
    parameters = tuple(
        _parameter(unit, p)
        for p in listed.named_children
        if p.type in ("parameter_declaration", "optional_parameter_declaration") and unit.source(p) != "void"
    )
    return Function(unit.source(name), unit, node, body, parameters, _template(unit, node))


def _template(unit: Unit, node: Node) -> tuple[str, ...]:
    parent = node.parent
    listed = parent.child_by_field_name("parameters") if parent is not None and parent.type == "template_declaration" else None
    names = []
    for child in listed.named_children if listed is not None else ():
        words = re.findall(r"[A-Za-z_]\w*", unit.source(child).split("=")[0])
        names.append(words[-1] if words else "")
    return tuple(names)


def _parameter(unit: Unit, node: Node) -> Parameter:
    kind = node.child_by_field_name("type")
    name, reference = "", False
    declarator = node.child_by_field_name("declarator")
    while declarator is not None:
        if declarator.type == "identifier":
            name = unit.source(declarator)
            break
        reference = reference or declarator.type in ("reference_declarator", "abstract_reference_declarator")
        inner = declarator.child_by_field_name("declarator")
        declarator = inner or next((c for c in declarator.named_children if c.type == "identifier" or c.type.endswith("declarator")), None)
    return Parameter(name, unit.source(kind) if kind is not None else "", node.type == "optional_parameter_declaration", reference)
