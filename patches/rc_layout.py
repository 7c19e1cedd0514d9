"""The QP of a peer is looked up as NVSHMEM lays its QPs out.

What goes wrong
    Before 3.5.0 NVSHMEM lays RC QPs out ``[PE][QP]``: ``rcs[pe * num_rc + id % num_rc]``, with
    ``num_rc = num_rc_per_pe * num_devices_initialized``.  From then on it is ``[QP][PE]``:
    ``rcs[(id % num_rc) * npes + pe]``.  A lookup of the other layout gives the QP of another peer: the first
    internode dispatch times out, or writes land on the wrong rank (#707, #764, #553).  DeepEP followed the
    change in PR #564 and lost it again in EPv2; PR #696 brings it back.

What is done
    ``layout``  the index has the form of the NVSHMEM compiled against, decided by its version macros unless
                ``--nvshmem`` names one release.  The border is 3.5.0, where NVSHMEM's source changed; the first wheel
                with it is 3.5.19, which is what PR #696 tests for.  ``id % num_rc`` stays in both forms.

What is recognised
    The test of the device state's type (PR #564, with or without ``%``), the version macros (PR #696), and any
    arithmetic that comes to the same.

What is not touched
    Anything that has to do with submission.
"""

from __future__ import annotations

import re
from collections import defaultdict

from tree_sitter import Node

from patcher.errors import Blocked
from patcher.facts import Facts, rc_index
from patcher.fix import Case, Fix
from patcher.machine.terms import Term, spell, value_path, walk
from patcher.model import Evidence, Judgement, Obligation, Verdict
from patcher.protocol import QP_MAJOR_SINCE, Version
from patcher.rewrite import Rewriter, descendants, statement_of
from patcher.source.unit import Function
from patches._submit import at_function, possible, unparsed, verdicts

_ORDER = ("layout",)


def monomials(term: Term) -> list[tuple[Term, ...]]:
    """A sum of products, multiplied out."""
    if term[:2] == ("op", "+"):
        return [m for part in term[2:] for m in monomials(part)]
    if term[:2] == ("op", "*"):
        product: list[tuple[Term, ...]] = [()]
        for part in term[2:]:
            product = [(*a, *b) for a in product for b in monomials(part)]
        return product
    return [(term,)]


def _named(term: Term) -> str:
    return value_path(term).rsplit(".", 1)[-1] or (str(term[1][1]) if term[0] == "val" and term[1][0] == "sym" else "")


def layout(index: Term) -> str:
    """``pe-major``, ``qp-major``, ``handle`` (a QP handle of NVSHMEM's own, already multiplied) or the empty string."""
    parts = monomials(index)
    by_pes = [m for m in parts if any(_named(t) == "npes" for t in m)]
    by_rcs = [
        m for m in parts if any(_named(t).startswith("num_rc") or _named(t).startswith("num_default_rc") for t in m) and m not in by_pes
    ]
    plain = [m for m in parts if m not in by_pes and m not in by_rcs]
    if not by_pes and not by_rcs and len(plain) == 1 and len(plain[0]) == 1 and plain[0][0][0] == "sym":
        return "first"  # of each PE, where a QP's number is 0: right where another path has the whole form
    inner = {t for m in by_pes for part in m for t in walk(part)} - {t for m in by_pes for part in m for t in _hashed(part)}
    if by_pes and not by_rcs and len(plain) == 1 and len(plain[0]) == 1 and plain[0][0][0] == "sym" and plain[0][0] not in inner:
        return "qp-major"
    if by_rcs and not by_pes and all(plain[0][0] not in m for m in by_rcs if plain):
        return "pe-major"
    if any(t[0] == "sym" and "handle" in str(t[2]) for t in walk(index)):
        return "handle"
    return ""


def _hashed(term: Term) -> list[Term]:
    """What an index only depends on by way of an unknown call."""
    return [t for called in walk(term) if called[0] == "call" for t in walk(called)]


def _misses_devices(index: Term) -> bool:
    """Whether a PE-major index forgets that a PE has QPs on each of its NICs."""
    text = [m for m in monomials(index) if any(_named(t) == "num_rc_per_pe" for t in m)]
    return any(not any(_named(t) == "num_devices_initialized" for t in m) for m in text)


def judge(facts: Facts, version: Version) -> list[Judgement]:
    """Judge the index of every path that gives an RC QP."""
    bad: dict[str, list[Evidence]] = defaultdict(list)
    good: dict[str, list[Evidence]] = defaultdict(list)
    expected = "qp-major" if version >= QP_MAJOR_SINCE else "pe-major"
    lookups = _lookups(facts, version)
    whole = {id(function) for function, _, index in lookups if layout(index) == "qp-major"}
    for function, _, index in lookups:
        found = layout(index)
        if found == "first" and id(function) in whole:
            continue
        note = f"`{function.name}` takes rcs[{spell(index)}]" if len(spell(index)) < 200 else f"`{function.name}` takes a {found} index"
        if found == expected and not (found == "pe-major" and _misses_devices(index)):
            good["layout"].append(at_function(function, note))
        elif found != "handle":
            bad["layout"].append(at_function(function, f"{note}; NVSHMEM's layout is {expected}"))
    if not facts.lookup and (hidden := _hidden(facts)):
        return [Judgement("layout", Verdict.UNKNOWN, hidden)]
    return verdicts(bad, _ORDER, good) if facts.lookup else []


def _hidden(facts: Facts) -> tuple[Evidence, ...]:
    """Places that take QPs out of ``globalmem.rcs`` in a way that is not followed."""
    found = list(unparsed(facts))
    for unit in facts.units:
        for match in re.finditer(rb"\brcs\b", unit.text):
            if any(f.body.start_byte <= match.start() < f.body.end_byte for group in unit.functions.values() for f in group):
                line = unit.line(match.start())
                found.append(Evidence(unit.path, line, line, "takes a QP out of `rcs` in a way that is not understood"))
    return tuple(found)


def _lookups(facts: Facts, version: Version) -> list[tuple[Function, Function, Term]]:
    """Each lookup with the function that takes the QP out of the array, and the index."""
    found = []
    for function, inner in facts.lookup:
        for path in facts.paths(function):
            index = rc_index(path.result)
            if index is not None and possible(path, version):
                found.append((function, inner, index))
    return found


def rewrite(code: Rewriter) -> None:
    """Give the statement that returns the QP the form that each layout needs."""
    wrong: dict[tuple[str, int], tuple[Function, Term, set[bool]]] = {}
    for facts, version in code.worlds():
        expected = "qp-major" if version >= QP_MAJOR_SINCE else "pe-major"
        for _, inner, index in _lookups(facts, version):
            if layout(index) != expected or (expected == "pe-major" and _misses_devices(index)):
                key = (inner.unit.path, inner.node.start_byte)
                own = next((i for p in facts.paths(inner) if (i := rc_index(p.result)) is not None), index)
                wrong.setdefault(key, (inner, own, set()))[2].add(version >= QP_MAJOR_SINCE)
    for function, index, sides in wrong.values():
        _mend(code, function, index, sides)


def _mend(code: Rewriter, function: Function, index_term: Term, sides: set[bool]) -> None:
    unit = function.unit
    taken = _taken(function)
    if len(taken) != 1:
        raise Blocked(f"{unit.path}:{function.line}: `{function.name}` looks QPs up in {len(taken)} places; one was expected")
    owner, index = taken[0]
    rcs = unit.source(owner)
    pe, qp = _names(function, index_term)
    count = _count(function, rcs, _misses_devices(index_term))
    statement = statement_of(index)
    count = _bracketed(count)
    forms = (f"({qp} % {count}) * nvshmemi_device_state_d.npes + {pe}", f"{pe} * {count} + {qp} % {count}")
    bracket = "({})" if index.type == "parenthesized_expression" else "{}"
    new, old = (code.replaced(unit, statement, (index, bracket.format(form))) for form in forms)
    comment = ["// RC QPs are laid out [QP][PE] since NVSHMEM 3.5.0, and [PE][QP] before"]
    code.guard(unit, statement, QP_MAJOR_SINCE, new if True in sides else None, old if False in sides else None, comment)


def _taken(function: Function) -> list[tuple[Node, Node]]:
    """The places that take a QP out of ``rcs``: the array and the index."""
    unit, found = function.unit, []
    for node in descendants(function.body, "subscript_expression", "binary_expression"):
        if node.type == "subscript_expression":
            owner, indices = node.child_by_field_name("argument"), node.child_by_field_name("indices")
            index = next((c for c in indices.named_children if c.type != "comment"), None) if indices is not None else None
        else:
            owner, index = node.child_by_field_name("left"), node.child_by_field_name("right")
            index = index if any(c.type == "+" for c in node.children) else None
        if owner is not None and index is not None and unit.source(owner).endswith("rcs"):
            found.append((owner, index))
    return found


def _names(function: Function, index: Term) -> tuple[str, str]:
    """The parameters that are the PE and the number of the QP, by what the index does with them."""
    parts = monomials(index)
    names = {p.name for p in function.parameters}
    form = layout(index)
    if form == "qp-major":
        pes = [m[0] for m in parts if len(m) == 1 and m[0][0] == "sym"]
    else:
        pes = [t for m in parts if len(m) > 1 for t in m if t[0] == "sym"]
    found = [str(t[1]) for t in pes if t[1] in names]
    others = sorted({str(t[1]) for t in walk(index) if t[0] == "sym" and t[1] in names and t[1] not in found})
    if not form or len(found) != 1 or len(others) != 1:
        where = f"{function.unit.path}:{function.line}: `{function.name}` takes rcs[{spell(index)}]"
        raise Blocked(f"{where}, which is neither layout of NVSHMEM; which of its parameters is the PE is not clear")
    return found[0], others[0]


def _count(function: Function, rcs: str, one_nic: bool) -> str:
    """The number of RC QPs of a PE over all its NICs, as the function spells it."""
    unit = function.unit
    owner = rcs.removesuffix("rcs").rstrip("->. \n").removesuffix("globalmem").rstrip("->. \n")
    modulo = [b for b in descendants(function.body, "binary_expression") if any(c.type == "%" for c in b.children)]
    right = modulo[0].child_by_field_name("right") if len(modulo) == 1 else None
    text = unit.source(right) if right is not None else f"{owner}->num_rc_per_pe * {owner}->num_devices_initialized"
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    return f"{inner} * {owner}->num_devices_initialized" if one_nic and right is not None else inner


def _bracketed(text: str) -> str:
    return text if text.isidentifier() else f"({text})"


FIX = Fix(
    id="rc-layout",
    title="the QP of a peer is looked up as the NVSHMEM compiled against lays its QPs out",
    version=1,
    upstream=(
        "https://github.com/deepseek-ai/DeepEP/pull/696",
        "https://github.com/deepseek-ai/DeepEP/pull/564",
        "https://github.com/deepseek-ai/DeepEP/issues/707",
    ),
    obligations=(Obligation("layout", "the index of an RC QP has the form of the NVSHMEM compiled against"),),
    judge=judge,
    rewrite=rewrite,
    documentation=__doc__ or "",
    cases=(
        Case("the sample is PE-major", "needed"),
        Case("which is right before 3.5.0", "upstream", nvshmem="3.4.5"),
        Case("and wrong for NVSHMEM 3.5.1 from source", "needed", nvshmem="3.5.1"),
        Case(
            "QP-major in every release",
            "needed",
            (("rcs[pe * per_peer + id % per_peer]", "rcs[id % per_peer * nvshmemi_device_state_d.npes + pe]"),),
        ),
        Case(
            "QP-major without `%`, and right for its release",
            "upstream",
            (("rcs[pe * per_peer + id % per_peer]", "rcs[pe + nvshmemi_device_state_d.npes * id]"),),
            nvshmem="3.8.0",
        ),
        Case(
            "decided by the type of the device state",
            "upstream",
            (
                (
                    "    return &state->globalmem.rcs[pe * per_peer + id % per_peer];",
                    "    if constexpr (std::is_same_v<nvshmemi_ibgda_device_state_t, nvshmemi_ibgda_device_state_v1>)\n"
                    "        return &state->globalmem.rcs[pe * per_peer + id % per_peer];\n"
                    "    else\n"
                    "        return &state->globalmem.rcs[pe + nvshmemi_device_state_d.npes * id];",
                ),
            ),
        ),
        Case("QPs of one NIC only", "needed", (("state->num_rc_per_pe * state->num_devices_initialized;", "state->num_rc_per_pe;"),)),
        Case(
            "neither layout",
            "blocked",
            (("rcs[pe * per_peer + id % per_peer]", "rcs[pe * 7 + id]"),),
            reason="neither layout",
        ),
    ),
)
