"""Parts of syntax nodes, kept: a function is run once for each of its paths, over the same nodes."""

from __future__ import annotations

from tree_sitter import Node


class _Parts:
    __slots__ = ("fields", "named", "node", "text")

    def __init__(self, node: Node) -> None:
        self.node = node  # keeps the tree alive, and with it the meaning of the node's id
        self.text: str | None = None
        self.named: list[Node] | None = None
        self.fields: dict[str, Node | None] = {}


_parts: dict[int, _Parts] = {}
_MOST = 50_000


def _of(node: Node) -> _Parts:
    found = _parts.get(node.id)
    if found is None:
        if len(_parts) >= _MOST:
            _parts.clear()
        found = _parts[node.id] = _Parts(node)
    return found


def text_of(node: Node) -> str:
    """The text of a node as parsed."""
    parts = _of(node)
    if parts.text is None:
        parts.text = (node.text or b"").decode("utf-8", "surrogateescape")
    return parts.text


def named(node: Node) -> list[Node]:
    """The named children of a node without comments; not to be changed."""
    parts = _of(node)
    if parts.named is None:
        parts.named = [c for c in node.named_children if c.type != "comment"]
    return parts.named


def part(node: Node, name: str) -> Node | None:
    """The child in a field of the grammar."""
    fields = _of(node).fields
    if name not in fields:
        fields[name] = node.child_by_field_name(name)
    return fields[name]
