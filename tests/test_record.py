"""The record: round trips, and undoing on files that others have changed since."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patcher.errors import Refused
from patcher.model import FileChange
from patcher.record import FileRecord, FixRecord, Record, from_bytes, record_of, sha256, to_bytes, undo

FIX = FixRecord("submit-order", "1", ("ready-in-order", "bell-monotonic"), ("https://example.org/pull/1",))


def recorded(before: bytes, after: bytes, path: str = "csrc/a.cuh") -> FileRecord:
    return record_of([FileChange(path, before, after)], [FIX], None, None, "default").files[0]


def full_record() -> Record:
    changes = [FileChange("b.cuh", b"x\r\n\xff\xfe\0\n", b"y\r\n\xff\xfe\0\nz"), FileChange("a.cuh", b"one\n", b"two\n")]
    return record_of(changes, [FIX], "0123abc", "3.4.5", "strict")


# Making


def test_hunks_are_whole_lines_with_context_that_stops_at_the_neighbour() -> None:
    before = b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"
    after = b"1\n2\n3\n4\nnew\n5\n6\nSEVEN\n8\n9\n"
    first, second = recorded(before, after).hunks
    assert (first.start, first.before, first.after) == (8, b"", b"new\n")
    assert (first.lead, first.trail) == (b"2\n3\n4\n", b"5\n6\n")
    assert (second.start, second.before, second.after) == (12, b"7\n", b"SEVEN\n")
    assert (second.lead, second.trail) == (b"5\n6\n", b"8\n9\n")


def test_a_lone_carriage_return_ends_no_line() -> None:
    assert recorded(b"a\rb\n", b"a\rc\n").hunks[0].before == b"a\rb\n"


def test_hunks_are_small_also_where_a_line_is_frequent() -> None:
    hunks = recorded(b"x" + b"\n" * 300 + b"y", b"X" + b"\n" * 300 + b"Y").hunks
    assert [(hunk.before, hunk.after) for hunk in hunks] == [(b"x\n", b"X\n"), (b"y", b"Y")]


def test_files_are_sorted_and_those_without_a_change_left_out() -> None:
    changes = [FileChange("b", b"1", b"2"), FileChange("same", b"1", b"1"), FileChange("a", b"1", b"3")]
    record = record_of(changes, [], None, None, "default")
    assert [file.path for file in record.files] == ["a", "b"]
    assert record.files[0].sha256_before == sha256(b"1")
    assert record.files[0].sha256_after == sha256(b"3")


# Undoing the file as we left it

PIECES = st.sampled_from([b"a", b"b", b"}", b"\n", b"\r\n", b"\r", b"\xff\xfe", b"\xc3", b"\0", b"\t", b"\x0c", b"\n\n"])
FILES = st.one_of(st.binary(max_size=60), st.lists(PIECES, max_size=30).map(b"".join))


@given(before=FILES, after=FILES)
@settings(max_examples=500)
def test_undo_gives_back_the_same_bytes(before: bytes, after: bytes) -> None:
    record = record_of([FileChange("f", before, after)], [FIX], None, None, "default")
    assert from_bytes(to_bytes(record)) == record
    for file in record.files:
        assert undo(file, after) == before
        assert undo(file, before) == before  # restored by hand already
    assert bool(record.files) == (before != after)


def test_a_record_that_does_not_lead_back_is_refused() -> None:
    file = recorded(b"1\n2\n", b"1\nx\n2\n")
    with pytest.raises(Refused, match=r"csrc/a\.cuh"):
        undo(FileRecord(file.path, sha256(b"else"), file.sha256_after, file.hunks), b"1\nx\n2\n")


# Undoing a file that others have changed since

CODE = b"""\
void reserve() {
    lock();
    add(1);
    unlock();
}

void submit() {
    wait();
    write_ready();
    ring();
}

void quiet() {
    poll();
    done();
}
"""
FIXED = CODE.replace(b"    wait();\n", b"    wait();\n    fence();\n").replace(b"    poll();\n", b"    poll_first();\n")


def test_moved_down_and_changed_elsewhere() -> None:
    def drift(code: bytes) -> bytes:
        return b"// a licence\n\n" + code.replace(b"add(1)", b"add(2)") + b"void more() {}\n"

    assert undo(recorded(CODE, FIXED), drift(FIXED)) == drift(CODE)


def test_context_changed_right_beside() -> None:
    def drift(code: bytes) -> bytes:
        return code.replace(b"write_ready", b"publish")

    assert undo(recorded(CODE, FIXED), drift(FIXED)) == drift(CODE)


def test_functions_that_have_changed_places() -> None:
    def drift(code: bytes) -> bytes:
        functions = code.split(b"\n\n")
        return b"\n\n".join([functions[2].rstrip(b"\n"), functions[0], functions[1]]) + b"\n"

    assert undo(recorded(CODE, FIXED), drift(FIXED)) == drift(CODE)


TWO = b"void a() {\n    x();\n}\n\nvoid b() {\n    y();\n}\n\nvoid c() {\n    x();\n    fence();\n}\n"
TWO_FIXED = TWO.replace(b"a() {\n    x();\n", b"a() {\n    x();\n    fence();\n").replace(b"y()", b"z()")


def test_functions_that_have_changed_places_beside_a_lookalike_are_refused() -> None:
    a, b, c = (part.rstrip(b"\n") for part in TWO_FIXED.split(b"\n\n"))
    file = recorded(TWO, TWO_FIXED)
    assert undo(file, b"// top\n" + TWO_FIXED) == b"// top\n" + TWO
    with pytest.raises(Refused, match="no more in its place"):
        undo(file, b"\n\n".join([b, a.replace(b"x", b"w"), c]) + b"\n")
    with pytest.raises(Refused, match="no more in its place"):
        undo(file, b"\n\n".join([b, c, a.replace(b"x", b"w")]) + b"\n")
    with pytest.raises(Refused, match="could be the one at"):
        undo(file, b"\n\n".join([b, a, a, c]) + b"\n")


def test_an_edited_hunk_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"csrc/a\.cuh: .*'fence\(\);'.*changed since"):
        undo(recorded(CODE, FIXED), FIXED.replace(b"fence();", b"fence_all();"))


def test_half_restored_by_hand_is_refused() -> None:
    with pytest.raises(Refused, match="poll_first"):
        undo(recorded(CODE, FIXED), FIXED.replace(b"poll_first", b"poll"))


def test_other_line_ends_are_refused() -> None:
    with pytest.raises(Refused):
        undo(recorded(CODE, FIXED), FIXED.replace(b"\n", b"\r\n"))


def test_a_copy_with_the_same_context_is_ambiguous() -> None:
    submit = FIXED[FIXED.index(b"void submit") : FIXED.index(b"void quiet")]
    with pytest.raises(Refused, match="could be the one at line 9 and 16"):
        undo(recorded(CODE, FIXED), FIXED.replace(submit, submit * 2))


def test_a_copy_with_less_context_is_told_apart() -> None:
    def drift(code: bytes) -> bytes:
        return b"void other() {\n    fence();\n}\n\n" + code

    assert undo(recorded(CODE, FIXED), drift(FIXED)) == drift(CODE)


def test_a_lookalike_is_not_taken_for_a_hunk_that_is_gone() -> None:
    before = b"void a() {\n    fence();\n}\n\nvoid b() {\n    x();\n}\n"
    after = before.replace(b"    x();\n", b"    x();\n    fence();\n")
    gone = before.replace(b"x();", b"y();")
    with pytest.raises(Refused, match="gone"):
        undo(recorded(before, after), gone)


def test_a_lookalike_that_has_become_a_little_more_alike_is_not_taken_either() -> None:
    before = b"x();\nfence();\n\n\n{\np();\nx();\n}\n"
    after = before.replace(b"x();\n}", b"x();\nfence();\n}")
    with pytest.raises(Refused, match="gone"):
        undo(recorded(before, after), b"p();\n" + before)


def test_two_hunks_that_have_become_one_are_refused() -> None:
    before = b"a\nb\nm\nc\nd\n"
    file = recorded(before, b"a\nfence\nb\nm\nc\nfence\nd\n")
    with pytest.raises(Refused, match="can't be told apart"):
        undo(file, b"a\nfence\nd\n")


def test_twins_that_were_both_changed_are_told_apart_by_their_order() -> None:
    one = b"{\n    a();\n    b();\n    c();\n    wait();\n    d();\n    e();\n    f();\n}\n"
    before = one + one
    after = before.replace(b"    wait();\n", b"    wait();\n    fence();\n")
    file = recorded(before, after)
    assert undo(file, b"// top\n" + after) == b"// top\n" + before
    lost = b"// top\n" + after.replace(b"    fence();\n", b"", 1)
    with pytest.raises(Refused):
        undo(file, lost)


DELETED = CODE.replace(b"    write_ready();\n", b"")


def test_a_deletion_is_found_by_its_context() -> None:
    file = recorded(CODE, DELETED)
    assert file.hunks[0].after == b""
    assert undo(file, b"// top\n" + DELETED) == b"// top\n" + CODE


@pytest.mark.parametrize("edit", [(b"    ring();", b"    bell();"), (b"    wait();", b"    hold();")])
def test_a_deletion_whose_context_is_changed_is_refused(edit: tuple[bytes, bytes]) -> None:
    with pytest.raises(Refused, match=r"'write_ready\(\);' was removed"):
        undo(recorded(CODE, DELETED), DELETED.replace(*edit))


def test_a_deletion_with_its_context_twice_is_refused() -> None:
    with pytest.raises(Refused, match="could be the one at line"):
        undo(recorded(CODE, DELETED), DELETED * 2)


def test_a_file_that_was_emptied_and_filled_by_others_is_refused() -> None:
    with pytest.raises(Refused, match="the whole file"):
        undo(recorded(b"x\n", b""), b"y")


def test_lines_added_behind_an_end_without_line_break_are_not_glued() -> None:
    with pytest.raises(Refused, match="without a line break"):
        undo(recorded(b"a\nend", b"a\nend\nmore\n"), b"a\nend\nmore\nadded\n")


def test_added_last_line_without_line_break_that_got_one_is_refused() -> None:
    with pytest.raises(Refused):
        undo(recorded(b"a\n", b"a\nb"), b"a\nb\n")


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"}\n", b"\n", b"fence\n"]), max_size=12)


@given(before=LINES, after=LINES, top=LINES, bottom=LINES)
@settings(max_examples=1500)
def test_lines_added_around_never_lead_to_a_wrong_undo(
    before: list[bytes], after: list[bytes], top: list[bytes], bottom: list[bytes]
) -> None:
    old, new, above, below = (b"".join(part) for part in (before, after, top, bottom))
    if old == new:
        return
    current = above + new + below
    try:
        result = undo(recorded(old, new), current)
    except Refused:
        return
    # A file that is as before (or as after) by chance is taken as such.
    assert result in (above + old + below, old)


@given(data=st.data(), inserted=st.integers(1, 3))
def test_distinct_lines_are_always_found(data: st.DataObject, inserted: int) -> None:
    old = [b"line %d\n" % n for n in range(data.draw(st.integers(1, 30)))]
    new = list(old)
    for n in range(inserted):
        new.insert(data.draw(st.integers(0, len(new))), b"ours %d\n" % n)
    around = data.draw(LINES.map(b"".join))
    assert undo(recorded(b"".join(old), b"".join(new)), around + b"".join(new) + around) == around + b"".join(old) + around


@given(data=st.data())
def test_one_of_our_lines_removed_is_always_refused(data: st.DataObject) -> None:
    old = [b"line %d\n" % n for n in range(6)]
    new = list(old)
    for n in range(3):
        new.insert(data.draw(st.integers(0, len(new))), b"ours %d\n" % n)
    file = recorded(b"".join(old), b"".join(new))
    new.remove(b"ours %d\n" % data.draw(st.integers(0, 2)))
    with pytest.raises(Refused):
        undo(file, b"// top\n" + b"".join(new))


# Storing


def test_the_same_record_is_the_same_bytes_and_comes_back() -> None:
    record = full_record()
    stored = to_bytes(record)
    assert stored == to_bytes(full_record())
    assert from_bytes(stored) == record
    assert stored.isascii()
    data = json.loads(stored)
    assert data["schema"] == "deepep-patch/record/1"
    assert list(data) == sorted(data)


def test_unknown_keys_are_passed_over() -> None:
    data = json.loads(to_bytes(full_record())) | {"later": 1}
    assert from_bytes(json.dumps(data).encode()) == full_record()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"schema": 1}'])
def test_damage_is_refused_with_what_to_do(damage: bytes) -> None:
    with pytest.raises(Refused, match=r"record\.json is damaged .*apply again"):
        from_bytes(damage)


def test_another_schema_is_refused() -> None:
    with pytest.raises(Refused, match=r"record/2.*the release of deepep-patch that applied"):
        from_bytes(to_bytes(full_record()).replace(b"record/1", b"record/2"))


@pytest.mark.parametrize("key", ["commit", "nvshmem", "profile", "fixes", "files"])
@pytest.mark.parametrize("value", [7, True, {}, [7], ["x"]])
def test_values_of_the_wrong_kind_are_damage(key: str, value: object) -> None:
    data = json.loads(to_bytes(full_record()))
    with pytest.raises(Refused, match="damaged"):
        from_bytes(json.dumps(data | {key: value}).encode())
    del data[key]
    with pytest.raises(Refused, match="damaged"):
        from_bytes(json.dumps(data).encode())


@pytest.mark.parametrize(
    ("key", "value"),
    [("start", True), ("start", -1), ("start", None), ("before", "\u20ac"), ("after", 1), ("near", [1]), ("far", ["a", 1]), ("far", 1)],
)
def test_a_damaged_hunk_is_damage(key: str, value: object) -> None:
    data = json.loads(to_bytes(full_record()))
    data["files"][0]["hunks"][0][key] = value
    with pytest.raises(Refused, match="damaged"):
        from_bytes(json.dumps(data).encode())


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_a_path_out_of_the_checkout_is_damage(path: str) -> None:
    data = json.loads(to_bytes(full_record()))
    data["files"][0]["path"] = path
    with pytest.raises(Refused, match="no path in a checkout"):
        from_bytes(json.dumps(data).encode())


def test_importing_stays_light() -> None:
    code = (
        "import sys; before = set(sys.modules); import patcher.record; print(*{'difflib', 'json', 'hashlib'} & set(sys.modules) - before)"
    )
    assert subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True).stdout.strip() == ""
