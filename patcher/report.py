"""What people and machines read: text, JSON, SARIF and diffs.  Pure: strings come out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from patcher import __version__
from patcher.checkout import Checkout
from patcher.errors import Exit
from patcher.fix import Fix
from patcher.model import FileChange, FixStatus, Judgement, State, Verdict
from patcher.protocol import Version

_MARKS = {Verdict.HOLDS: "+", Verdict.VIOLATED: "-", Verdict.UNKNOWN: "?"}
_COLOURS = {State.APPLIED: "green", State.UPSTREAM: "green", State.ABSENT: "bright_black", State.NEEDED: "yellow", State.PARTIAL: "yellow",
            State.BLOCKED: "red"}  # fmt: skip
_MOST_PLACES = 4


def exit_code(statuses: Sequence[FixStatus]) -> Exit:
    """The exit code for the states of the selected fixes."""
    states = {s.state for s in statuses}
    if State.BLOCKED in states:
        return Exit.BLOCKED
    return Exit.SETTLED if all(s.settled for s in states) else Exit.NEEDED


def colour(state: State) -> str:
    """The colour of a state on a terminal."""
    return _COLOURS[state]


def headline(checkout: Checkout, versions: Sequence[Version]) -> str:
    """What was looked at."""
    span = str(versions[0]) if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
    return f"{checkout}, for NVSHMEM {span}"


def lines(status: FixStatus, fix: Fix, full: bool) -> list[str]:
    """A fix's obligations with evidence, indented; ``full`` shows the places of what holds too."""
    out = [f"    {status.reason}"] if status.reason else []
    for judgement in status.judgements:
        title = next((o.title for o in fix.obligations if o.id == judgement.obligation), "")
        out.append(f"  {_MARKS[judgement.verdict]} {judgement.obligation}: {title}")
        if full or judgement.verdict is Verdict.VIOLATED:
            out.extend(_places(judgement, full))
    return out


def _places(judgement: Judgement, full: bool) -> list[str]:
    shown = judgement.evidence if full else judgement.evidence[:_MOST_PLACES]
    out = [f"      {e.path}:{e.line}: {e.note}" for e in shown]
    if len(shown) < len(judgement.evidence):
        out.append(f"      and {len(judgement.evidence) - len(shown)} more places (`explain` shows all)")
    return out


def as_json(checkout: Checkout, statuses: Sequence[FixStatus]) -> str:
    """Schema ``deepep-patch/status/1``."""
    import json

    return json.dumps(
        {
            "schema": "deepep-patch/status/1",
            "checkout": {
                "kind": checkout.kind,
                "layout": checkout.layout,
                "commit": checkout.commit,
                "nvshmem": str(checkout.nvshmem) if checkout.nvshmem else None,
            },
            "settled": all(s.state.settled for s in statuses),
            "fixes": [
                {"id": s.id, "state": s.state.value, "reason": s.reason, "obligations": [_obligation(j) for j in s.judgements]}
                for s in statuses
            ],
        },
        indent=2,
    )


def _obligation(judgement: Judgement) -> dict[str, Any]:
    return {
        "id": judgement.obligation,
        "verdict": judgement.verdict.value,
        "nvshmem": list(judgement.versions),
        "evidence": [{"path": e.path, "line": e.line, "end_line": e.end_line, "note": e.note} for e in judgement.evidence],
    }


def as_sarif(statuses: Sequence[FixStatus], fixes: dict[str, Fix]) -> str:
    """SARIF 2.1.0: a result for each obligation that does not hold."""
    import json
    from urllib.parse import quote

    results = []
    for status in statuses:
        for judgement in status.judgements:
            if judgement.verdict is Verdict.HOLDS:
                continue
            for item in judgement.evidence:
                region = {"startLine": item.line, "endLine": max(item.line, item.end_line)}
                results.append(
                    {
                        "ruleId": f"{status.id}/{judgement.obligation}",
                        "level": "error" if judgement.verdict is Verdict.VIOLATED else "warning",
                        "message": {"text": item.note},
                        "locations": [{"physicalLocation": {"artifactLocation": {"uri": quote(os.fsencode(item.path))}, "region": region}}],
                    }
                )
    rules = [
        {
            "id": f"{fix.id}/{o.id}",
            "shortDescription": {"text": o.title},
            "fullDescription": {"text": fix.title},
            **({"helpUri": fix.upstream[0]} if fix.upstream else {}),
        }
        for fix in fixes.values()
        for o in fix.obligations
    ]
    driver = {"name": "deepep-patch", "version": __version__, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(log, indent=2)


def as_diff(changes: Sequence[FileChange]) -> bytes:
    """A unified diff that ``git apply`` takes, byte for byte."""
    import difflib

    out: list[bytes] = []
    for change in changes:
        old, new = (_name(side + os.fsencode(change.path)) for side in (b"a/", b"b/"))
        before, after = _lines(change.before), _lines(change.after)
        for line in difflib.diff_bytes(difflib.unified_diff, before, after, old, new):
            out.append(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
    return b"".join(out)


def _name(path: bytes) -> bytes:
    """A file name in a diff's header as git writes it: quoted where it must be, and where it has a space, its end is marked."""
    if all(byte >= 0x20 and byte not in b'"\\\x7f' for byte in path):
        return path + b"\t" * (b" " in path)
    return b'"%s"' % b"".join(b"\\%03o" % byte if byte < 0x20 or byte in b'"\\\x7f' else bytes([byte]) for byte in path)


def _lines(data: bytes) -> list[bytes]:
    """Lines that end with a newline only: a lone carriage return is no line end to git."""
    parts = data.split(b"\n")
    return [p + b"\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
