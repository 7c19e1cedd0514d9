"""The command line: options in, one call, text out."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeVar

import click

from patcher import __version__, report
from patcher.errors import Exit, PatchError, Refused
from patcher.fix import PROFILES, Fix, catalogue, select
from patcher.model import FixStatus, Plan, State
from patcher.session import FOLDER, Session, look, only_recorded, open_session, refuse_blocked, target, without, write

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--select", "only", multiple=True, metavar="FIX", help="Only this fix (may be repeated)."),
    click.option("--skip", multiple=True, metavar="FIX", help="Not this fix (may be repeated)."),
    click.option(
        "--profile", type=click.Choice(PROFILES), default="default", show_default=True, help="Which fixes: strict goes beyond NVSHMEM."
    ),
    click.option(
        "--nvshmem", metavar="VERSION|PATH|auto", help="Judge for this NVSHMEM only, without version guards. Default: 3.3.9 to 3.8.0."
    ),
    click.option("-q", "--quiet", is_flag=True, help="Only the result, no log."),
)


def common(command: Command) -> Command:
    """The options and the argument that every command on a checkout takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.argument("checkout", type=click.Path(), default=".")(command)


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Errors as sentences on stderr, with their exit codes."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except PatchError as error:
            say(click.style("error: ", fg="red", bold=True) + str(error))
            sys.exit(int(error.code))
        except RecursionError:
            say(click.style("error: ", fg="red", bold=True) + "code in this tree is nested too deeply to be read. Nothing was changed.")
            sys.exit(int(Exit.BLOCKED))
        except KeyboardInterrupt as error:
            _finish()
            say(f"interrupted: {str(error) or 'the checkout is as it was'}")
            sys.exit(130)

    return run


def _finish() -> None:
    """All is decided, only words are left: an interrupt now would say what is not so."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not SIG_IGN: that, a child would inherit


def say(text: str) -> None:
    """One line of log on stderr."""
    click.echo(text, err=True, color=_colour())


def show(text: str | bytes, newline: bool = True) -> None:
    """The result, on stdout."""
    try:
        click.echo(text, nl=newline, color=_colour())
    except BrokenPipeError:
        raise  # the reader has seen enough: click ends the run quietly
    except OSError as error:
        raise Refused(f"the result can't be written: {error.strerror}.") from error


def _colour() -> bool | None:
    return False if os.environ.get("NO_COLOR") else None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="deepep-patch")
def main() -> None:
    """Says which known defects a DeepEP or NVSHMEM checkout has, and mends them.

    \b
    Example:
      deepep-patch status path/to/DeepEP
      deepep-patch apply path/to/DeepEP

    Exit codes: 0 settled, 1 something is needed, 2 usage, 3 blocked or unknown, 4 a tool is missing, 5 refused to write.
    """
    gc.disable()  # a run is over before garbage matters, and looking for cycles among syntax nodes is a tenth of it
    signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _open(checkout: str, nvshmem: str | None, profile: str, quiet: bool) -> Session:
    session = open_session(checkout, nvshmem, profile)
    if not quiet:
        _tell(session)
    return session


def _tell(session: Session) -> None:
    """Log what was passed over, and what an earlier run has left."""
    for path in session.tree.too_large:
        say(f"{path}: passed over, too large for source")
    for path in session.tree.unreadable:
        say(f"{path}: passed over, not readable")
    for path in session.tree.astray:
        say(f"{path}: passed over, a link that leads nowhere or out of the checkout")
    if session.tree.exists(FOLDER) and _interrupted(session):
        say("an earlier run was interrupted or is at work: the next apply or revert finishes or undoes it")


def _interrupted(session: Session) -> bool:
    from patcher import transaction

    return transaction.interrupted(session.tree.root)


def _print_status(session: Session, statuses: Sequence[FixStatus], kind: str, full: bool = False) -> None:
    fixes = catalogue()
    if kind == "json":
        show(report.as_json(session.checkout, statuses))
    elif kind == "sarif":
        show(report.as_sarif(statuses, {s.id: fixes[s.id] for s in statuses}))
    else:
        show(report.headline(session.checkout, session.versions))
        for status in statuses:
            name = click.style(f"{status.state.value:9}", fg=report.colour(status.state), bold=not status.state.settled)
            show(f"{name} {status.id}: {fixes[status.id].title}")
            if full or not status.state.settled:
                for line in report.lines(status, fixes[status.id], full):
                    show(line)


_FORMAT = click.option("--format", "kind", type=click.Choice(["text", "json", "sarif"]), default="text", show_default=True)


@main.command()
@common
@_FORMAT
@guarded
def status(checkout: str, only: tuple[str, ...], skip: tuple[str, ...], profile: str, nvshmem: str | None, quiet: bool, kind: str) -> None:
    """States and obligations of each fix, with evidence.

    \b
    Example:
      deepep-patch status path/to/DeepEP --format json
    """
    session = _open(checkout, nvshmem, profile, quiet)
    seen = look(session, select(profile, only, skip))
    _print_status(session, seen.before, kind)
    sys.exit(int(report.exit_code(seen.before)))


@main.command()
@common
@_FORMAT
@guarded
def check(checkout: str, only: tuple[str, ...], skip: tuple[str, ...], profile: str, nvshmem: str | None, quiet: bool, kind: str) -> None:
    """Exit 0 where nothing is left to do; a line for each fix that is not settled.

    \b
    Example:
      deepep-patch check path/to/DeepEP --profile strict || exit 1
    """
    session = _open(checkout, nvshmem, profile, quiet)
    seen = look(session, select(profile, only, skip))
    if kind != "text":
        _print_status(session, seen.before, kind)
    elif not quiet:
        for item in seen.before:
            if not item.state.settled:
                show(f"{item.id}: {item.state.value}" + (f": {item.reason}" if item.reason else ""))
    sys.exit(int(report.exit_code(seen.before)))


@main.command()
@common
@guarded
def diff(checkout: str, only: tuple[str, ...], skip: tuple[str, ...], profile: str, nvshmem: str | None, quiet: bool) -> None:
    """What apply would write, as a unified diff.

    \b
    Example:
      deepep-patch diff path/to/DeepEP --nvshmem 3.4.5 | less
    """
    session = _open(checkout, nvshmem, profile, quiet)
    seen = look(session, select(profile, only, skip))
    show(report.as_diff(seen.changes), newline=False)
    for item in seen.before:
        if item.state is State.BLOCKED:
            say(f"{item.id}: blocked: {item.reason}")
    sys.exit(int(report.exit_code(seen.before)))


@main.command()
@common
@click.option("--commit", is_flag=True, help="One git commit for each fix, with trailers.")
@guarded
def apply(
    checkout: str, only: tuple[str, ...], skip: tuple[str, ...], profile: str, nvshmem: str | None, quiet: bool, commit: bool
) -> None:
    """Plan, verify and write: all selected fixes or nothing.

    \b
    Example:
      deepep-patch apply path/to/DeepEP
      deepep-patch apply path/to/DeepEP --select submit-order --commit
    """
    fixes = select(profile, only, skip)

    def change(session: Session) -> Sequence[str]:
        seen = look(session, fixes)
        refuse_blocked(seen.before)
        if not seen.applied:
            return [f"nothing to do: {', '.join(f'{s.id} {s.state.value}' for s in seen.before)}"]
        if commit:
            from patcher.commits import commit_each

            return commit_each(session, [f for f in fixes if f.id in seen.applied])
        goal = target(session, fixes, seen)
        write(session, goal)
        return [*(f"applied {i}" for i in seen.applied), *(f"wrote {c.path}" for c in goal.changes)]

    _change(checkout, nvshmem, profile, quiet, change)


@main.command()
@common
@guarded
def revert(checkout: str, only: tuple[str, ...], skip: tuple[str, ...], profile: str, nvshmem: str | None, quiet: bool) -> None:
    """Back to the bytes before, for all applied fixes or those selected; or refuse.

    \b
    Example:
      deepep-patch revert path/to/DeepEP
      deepep-patch revert path/to/DeepEP --select data-fence
    """
    fixes = select("all", only, skip)

    def change(session: Session) -> Sequence[str]:
        gone = only_recorded(session, fixes, bool(only))
        if not gone:
            return ["nothing to do: no fix was applied here by deepep-patch"]
        goal = without(session, gone)
        write(session, goal)
        return [*(f"reverted {f.id}" for f in gone), *(f"wrote {c.path}" for c in goal.changes)]

    _change(checkout, nvshmem, profile, quiet, change)


def _change(checkout: str, nvshmem: str | None, profile: str, quiet: bool, change: Callable[[Session], Sequence[str]]) -> None:
    """Run a change under the checkout's lock, after what an interrupted run left is put right."""
    from patcher import transaction

    first = _open(checkout, nvshmem, profile, True)
    root = first.tree.root
    with transaction.locked(root):
        recovered = transaction.recover(root)
        if recovered and not quiet:
            say(recovered)
        # What was read before the lock is still good: the writer refuses where a file has changed since.
        untouched = recovered is None and first.record is None and transaction.read_record(root) is None
        session = first if untouched else open_session(checkout, nvshmem, profile)
        if not quiet:
            _tell(session)
        try:
            told = change(session)
        except KeyboardInterrupt as error:
            ended = _how_it_ended(session)
            raise KeyboardInterrupt(str(error) or ended) from error
        _finish()
    if not quiet:
        for line in told:
            say(line)


def _how_it_ended(session: Session) -> str:
    """What an interrupt has left: the writer undoes its run, unless that was over already, or a second interrupt stopped it."""
    from patcher import transaction

    transaction.recover(session.tree.root)
    now = open_session(session.tree.root, session.nvshmem, session.profile)
    return "the checkout is as it was" if now.record == session.record else "the change was complete"


@main.command(name="list")
@click.option("--profile", type=click.Choice(PROFILES), default="all", show_default=True)
@guarded
def list_fixes(profile: str) -> None:
    """The catalogue of fixes.

    \b
    Example:
      deepep-patch list
    """
    for fix in select(profile):
        mark = "" if fix.profile == "default" else f" [{fix.profile}]"
        show(f"{fix.id:16} {fix.title}{mark}")


@main.command()
@click.argument("fix")
@click.argument("checkout", type=click.Path(), required=False)
@click.option("--nvshmem", metavar="VERSION|PATH|auto")
@guarded
def explain(fix: str, checkout: str | None, nvshmem: str | None) -> None:
    """One fix in full; with a checkout, why it has the state that it has.

    \b
    Example:
      deepep-patch explain submit-order path/to/DeepEP
    """
    (chosen,) = select("all", [fix])
    show(_page(chosen))
    if checkout is not None:
        session = _open(checkout, nvshmem, "all", False)
        seen = look(session, [chosen])
        _print_status(session, seen.before, "text", full=True)
        _show_change(seen)
        sys.exit(int(report.exit_code(seen.before)))


def _show_change(seen: Plan) -> None:
    if seen.changes:
        show("\nApply would change:")
        show(report.as_diff(seen.changes), newline=False)


def _page(fix: Fix) -> str:
    obligations = "\n".join(f"  {o.id}: {o.title}" for o in fix.obligations)
    links = "\n".join(f"  {u}" for u in fix.upstream)
    head = f"{fix.id} (version {fix.version}, profile {fix.profile})"
    return f"{head}\n\n{fix.documentation.strip()}\n\nObligations\n{obligations}\n\nUpstream\n{links}\n"
