"""Writes what the documentation says of the fixes, from their docstrings: docs/fixes.md, and the table in README.md.

`python docs/generate.py` writes, `python docs/generate.py --check` exits 1 where a file is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the fixes beside this file, not installed ones

from patcher.fix import Fix, catalogue  # noqa: E402

DEEPEP = "https://github.com/deepseek-ai/DeepEP"
BEGIN, END = "<!-- fixes: written by docs/generate.py -->\n", "<!-- end of fixes -->"
_ITEM = re.compile(r"``([\w-]+)`` +(.*)")


def inline(text: str) -> str:
    """Docstring markup as Markdown, with upstream's numbers as links."""
    numbered = re.sub(r"(PR )?#(\d+)\b", lambda m: f"[{m[0]}]({DEEPEP}/{'pull' if m[1] else 'issues'}/{m[2]})", text)
    return numbered.replace("``", "`")


def body(lines: list[str], obligations: frozenset[str]) -> Iterator[str]:
    """A section's lines.  An obligation's id or a dash begins a list item, deeper lines go on with it."""
    listed = False
    for line in lines:
        item = _ITEM.fullmatch(line)
        if item and item[1] in obligations:
            listed = True
            yield f"- ``{item[1]}``: {item[2]}"
        elif listed and line.startswith("  "):
            yield f"  {line.strip()}"
        else:
            if listed and line and not line.startswith("- "):
                yield ""
            listed = line.startswith("- ")
            yield line


def page(fix: Fix) -> Iterator[str]:
    """One fix in Markdown."""
    obligations = frozenset(o.id for o in fix.obligations)
    title, *rest = fix.documentation.strip().splitlines()
    yield f"## {fix.id}\n\n{inline(title)}\n"
    yield f"Version {fix.version}, profile `{fix.profile}`.\n"
    section: list[str] = []
    for line in [*rest, "end"]:
        if not line or line.startswith(" "):
            section.append(line[4:])
            continue
        text = "\n".join(body(section, obligations)).strip()
        if text:
            yield inline(text) + "\n"
        section = []
        if line != "end":
            yield f"### {line}\n"
    yield "### Obligations\n"
    yield "\n".join(f"- `{o.id}`: {o.title}" for o in fix.obligations) + "\n"
    yield "### Upstream\n"
    yield "\n".join(f"- <{link}>" for link in fix.upstream) + "\n"


def catalogue_page() -> str:
    """All of docs/fixes.md."""
    head = "# The fixes\n\nWritten by `nox -s docs` from the docstrings in `patches/`. `deepep-patch explain FIX` prints the same.\n"
    return "\n".join([head, *(line for fix in catalogue().values() for line in page(fix))])


def table() -> str:
    """The fixes as a table."""
    rows = [f"| [`{f.id}`](docs/fixes.md#{f.id}) | {f.title} | {f.profile} |" for f in catalogue().values()]
    return "\n".join(["| fix | what is true where it is settled | profile |", "|---|---|---|", *rows]) + "\n"


def readme(text: str) -> str:
    """README.md with its table renewed."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is out of date")
    check: bool = parser.parse_args().check
    fixes, start = ROOT / "docs" / "fixes.md", ROOT / "README.md"
    wanted = {fixes: catalogue_page(), start: readme(start.read_text(encoding="utf-8"))}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if not check:
            path.write_text(wanted[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'out of date; `nox -s docs` writes it' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
