"""Conditionals, blanking and parsing: offsets stay, the right lines are seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patcher.protocol import Version
from patcher.source.conditions import Macro, evaluate
from patcher.source.integers import fold
from patcher.source.preprocess import preprocess
from patcher.source.unit import Unit, without_specifiers


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1", True),
        ("0x10 == 16u && !0", True),
        ("defined(A)", True),
        ("defined B || defined A", True),
        ("B", False),
        ("A * 10000 + 4 >= 30004", True),
        ("A > 3 || (A == 3 && C > 3)", True),
        ("AT_LEAST(3, 4)", True),
        ("AT_LEAST(3, 5)", False),
        ("A ? 0 : 1", False),
        ("-1 < 0", True),
        ("7 / 0", False),
        ("not B and true", True),
        ("LOOP", False),
        ("1 << 3 == 8", True),
    ],
)
def test_expressions(expression: str, expected: bool) -> None:
    macros = {"A": Macro("3"), "C": Macro("4"), "AT_LEAST": Macro("(A > x || (A == x && C >= y))", ("x", "y")), "LOOP": Macro("LOOP")}
    assert evaluate(expression, macros).value is expected


def test_names_asked_for_through_macros_are_told() -> None:
    macros = {"NEW": Macro("(NVSHMEM_VENDOR_MINOR_VERSION >= 4)"), **Version(3, 4, 5).macros()}
    assert evaluate("NEW", macros).names == {"NEW", "NVSHMEM_VENDOR_MINOR_VERSION"}


SOURCE = b"""a
#if defined(X)  // yes
b
# elif Y == 2
c
#else
/* #endif */ d
#endif
#define N 4
#if N == \\
    4
e
#endif
"""


@pytest.mark.parametrize(
    ("macros", "seen"),
    [({}, b"/* #endif */ d"), ({"X": Macro("")}, b"b"), ({"Y": Macro("2")}, b"c"), ({"X": Macro(""), "Y": Macro("2")}, b"b")],
)
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_branches(macros: dict[str, Macro], seen: bytes, ending: bytes) -> None:
    data = SOURCE.replace(b"\n", ending)
    text = preprocess(data, macros).text
    assert len(text) == len(data)
    assert [line for line in text.split(ending) if line.strip()] == [b"a", seen, b"e"]


def test_a_directive_in_a_comment_or_a_raw_string_is_none() -> None:
    data = b'/*\n#if 0\n*/\nint a;\nauto s = R"(\n#if 0\n)";\nint b;\n'
    assert preprocess(data, {}).text == data


@given(st.binary(max_size=300))
def test_any_bytes_keep_their_length_and_line_ends(data: bytes) -> None:
    found = preprocess(without_specifiers(data), {})
    assert len(found.text) == len(data)
    assert found.text.count(b"\n") == data.count(b"\n")


@given(st.integers(-50, 50), st.integers(-50, 50))
def test_division_is_that_of_c(left: int, right: int) -> None:
    quotient, rest = fold("/", left, right), fold("%", left, right)
    if right == 0:
        assert quotient is None
        assert rest is None
        return
    assert quotient is not None
    assert rest is not None
    assert quotient * right + rest == left
    assert abs(rest) < abs(right)
    assert rest == 0 or (rest < 0) == (left < 0)


def test_functions_are_found_through_specifiers_templates_and_namespaces() -> None:
    data = b"""namespace a { namespace {
template <bool kX, typename T>
__global__ __launch_bounds__(32 * (1 + 1), 1) static __forceinline__ void one(T* p, const int& n = 3) { }
struct S { __device__ int two() const { return 1; } };
} }
__device__ __attribute__((noinline)) int* three() { return nullptr; }
"""
    unit = Unit("x.cuh", data, preprocess(without_specifiers(data), {}))
    assert unit.errors == ()
    assert set(unit.functions) == {"one", "two", "three"}
    (one,) = unit.functions["one"]
    assert [(p.name, p.optional, p.reference) for p in one.parameters] == [("p", False, False), ("n", True, True)]
    assert one.template == ("kX", "T")
    assert one.accepts(1)
    assert not one.accepts(3)
    assert one.returns_nothing
    assert not unit.functions["three"][0].returns_nothing
    assert one.line == 3
