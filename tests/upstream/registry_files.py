"""Files of a package index, fetched and unpacked without running anything that is in them.

The index is the one that pip is configured for.  Of a wheel only the members asked for are read, by HTTP ranges
where the server has them: NVSHMEM's wheels are 73 to 281 MB, and their headers are one.
"""

from __future__ import annotations

import hashlib
import html.parser
import io
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import Any

BLOCK = 512 << 10
TRIES = 4
LARGEST_WHOLE = 160 << 20
"""Where the server has no ranges, larger wheels are not fetched: a CI machine has neither the time nor the disk."""


_dead: set[str] = set()
"""Hosts that could not be reached: not tried again and again."""


class Unreachable(AssertionError):
    """The index, or a file of it, could not be had: a failed test, not a skipped one."""


class NoRanges(Exception):
    """The server sends whole files only."""


@dataclass(frozen=True)
class Listed:
    """A file as the index lists it."""

    name: str
    url: str
    sha256: str | None


@cache
def index_url() -> str:
    """The index that pip would use here: from its configuration, its environment variables, or its own default."""
    found = os.environ.get("PIP_INDEX_URL") or _configured()
    if not found:
        environment = {**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"}
        shown = subprocess.run([sys.executable, "-m", "pip", "download", "--help"], env=environment, capture_output=True, text=True)
        match = re.search(r"--index-url <url>.*?\(default\s+(\S+?)\)", shown.stdout, re.S)
        if match is None:
            why = shown.stderr.strip() or "no default is shown"
            raise Unreachable(f"pip names no package index (`{sys.executable} -m pip download --help`): {why}")
        found = match[1]
    return found.rstrip("/")


def _configured() -> str | None:
    shown = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    values = dict(re.findall(r"^([\w.:-]+)\.index-url='(.*)'$", shown, re.M))
    return next((values[k] for k in ("download", "install", "global") if k in values), None)


@cache
def _context() -> ssl.SSLContext:
    bundle = os.environ.get("PIP_CERT")
    return ssl.create_default_context(cafile=bundle if bundle and os.path.exists(bundle) else None)


def _open(url: str, headers: dict[str, str]) -> HTTPResponse:
    parts = urllib.parse.urlsplit(url)
    if parts.username:
        import base64

        user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers = {**headers, "Authorization": "Basic " + base64.b64encode(user.encode()).decode()}
        url = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    request = urllib.request.Request(url, headers={"User-Agent": "deepep-patch-tests", **headers})
    response = urllib.request.urlopen(request, timeout=60, context=_context())
    if not isinstance(response, HTTPResponse):
        raise OSError("only an index that is reached by HTTP can be read")
    return response


def _fetch(url: str, headers: dict[str, str]) -> tuple[int, Any, bytes]:
    """Status, headers and body; a few tries, since an index is not always at its best."""
    host = urllib.parse.urlsplit(url).netloc
    for left in reversed(range(1 if host in _dead else TRIES)):
        try:
            with _open(url, headers) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            if left == 0 or error.code < 500:
                raise Unreachable(_told(url, f"HTTP {error.code} {error.reason}")) from error
        except (OSError, HTTPException) as error:
            if left == 0:
                _dead.add(host)
                raise Unreachable(_told(url, str(error))) from error
        time.sleep(2.0 ** (TRIES - 1 - left))
    raise AssertionError("not reached")


def _told(url: str, why: str) -> str:
    bare = urllib.parse.urlsplit(url)
    return (
        f"{bare.scheme}://{bare.netloc.rpartition('@')[2]}{bare.path}: {why}. These tests read NVSHMEM's headers from the package "
        "index that pip is configured for. Set DEEPEP_PATCH_OFFLINE=1 to skip them on purpose."
    )


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs.extend(value for name, value in attrs if name == "href" and value)


@cache
def files_of(project: str) -> tuple[Listed, ...]:
    """All files of a project, by the simple API (JSON, or HTML where the index has no JSON)."""
    url = f"{index_url()}/{re.sub(r'[-_.]+', '-', project).lower()}/"
    _, headers, body = _fetch(url, {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"})
    if "json" in headers.get_content_type():
        listed = json.loads(body)["files"]
        return tuple(Listed(f["filename"], urllib.parse.urljoin(url, f["url"]), f["hashes"].get("sha256")) for f in listed)
    links = _Links()
    links.feed(body.decode("utf-8", "replace"))
    found = []
    for href in links.hrefs:
        bare, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(url, href))
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        name = urllib.parse.unquote(urllib.parse.urlsplit(bare).path.rpartition("/")[2])
        found.append(Listed(name, bare, digest[1] if digest else None))
    return tuple(found)


def wheel(project: str, version: str) -> Listed:
    """The x86-64 Linux wheel of a release."""
    start = f"{project.replace('-', '_')}-{version}-"
    found = [f for f in files_of(project) if f.name.startswith(start) and f.name.endswith("x86_64.whl")]
    assert found, f"{index_url()} lists no x86-64 wheel of {project} {version}"
    return found[0]


def sdist(project: str, version: str) -> Listed:
    """The source distribution of a release."""
    wanted = re.compile(rf"{re.sub(r'[-_.]+', '[-_.]', project)}-{re.escape(version)}\.tar\.gz", re.I)
    found = [f for f in files_of(project) if wanted.fullmatch(f.name)]
    assert found, f"{index_url()} lists no source distribution of {project} {version}"
    return found[0]


class Remote(io.RawIOBase):
    """A file on a server, read by ranges of whole blocks."""

    def __init__(self, url: str) -> None:
        self.url, self.at = url, 0
        self.blocks: dict[int, bytes] = {}
        status, headers, body = _fetch(url, {"Range": f"bytes=-{BLOCK}"})
        whole = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers.get("Content-Range", ""))
        if status != 206 or whole is None:
            raise NoRanges(url)
        self.start, self.size, self.tail = int(whole[1]), int(whole[3]), body
        self.fetched = len(body)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        data = self._from(self.at)[: len(buffer)]
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)

    def _from(self, at: int) -> bytes:
        if at >= self.start:
            return self.tail[at - self.start :]
        number = at // BLOCK
        if number not in self.blocks:
            first, last = number * BLOCK, min((number + 1) * BLOCK, self.size) - 1
            status, _, body = _fetch(self.url, {"Range": f"bytes={first}-{last}"})
            if status != 206 or len(body) != last - first + 1:
                raise Unreachable(_told(self.url, f"asked for {last - first + 1} bytes, got {len(body)} with status {status}"))
            self.blocks[number] = body
            self.fetched += len(body)
        return self.blocks[number][at - number * BLOCK :]


def cache_folder() -> Path:
    """Where what was fetched is kept: DEEPEP_PATCH_CACHE, else the user's cache folder."""
    base = os.environ.get("DEEPEP_PATCH_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deepep-patch"


def _kept(name: str, fill: Any) -> Path:
    """The folder ``name`` of the cache, filled by ``fill(folder)`` if it isn't there: all of it or nothing."""
    goal = cache_folder() / name
    if not goal.is_dir():
        goal.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=goal.parent, prefix=".part-") as part:
            made = Path(part, "tree")
            made.mkdir()
            fill(made)
            try:
                made.rename(goal)
            except OSError:
                if not goal.is_dir():  # another run may have been first
                    raise
    return goal


def headers(project: str, version: str, prefix: str) -> Path | None:
    """A folder with the members of a wheel below ``prefix``.

    None where the server has no ranges and the wheel is too large to fetch whole.
    """
    listed = wheel(project, version)
    try:
        return _kept(f"headers/{listed.name.removesuffix('.whl')}", lambda folder: _unpack_members(listed, prefix, folder))
    except NoRanges:
        return None


def _unpack_members(listed: Listed, prefix: str, folder: Path) -> None:
    try:
        file: io.RawIOBase | io.BytesIO = Remote(listed.url)
    except NoRanges:
        with _open(listed.url, {}) as response:
            if int(response.headers.get("Content-Length") or LARGEST_WHOLE + 1) > LARGEST_WHOLE:
                raise
        file = io.BytesIO(checked(listed))
    started = time.monotonic()
    with zipfile.ZipFile(file) as archive:
        wanted = [i for i in archive.infolist() if i.filename.startswith(prefix) and not i.is_dir()]
        assert wanted, f"{listed.name} has nothing below {prefix}"
        for info in sorted(wanted, key=lambda i: i.header_offset):
            path = PurePosixPath(info.filename)
            assert not path.is_absolute() and ".." not in path.parts, f"{listed.name}: a member leads outside: {info.filename}"
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(info))  # read() checks the member's CRC
    fetched = file.fetched if isinstance(file, Remote) else len(file.getbuffer()) if isinstance(file, io.BytesIO) else 0
    print(f"{listed.name}: {len(wanted)} files, {fetched / 1e6:.1f} MB fetched in {time.monotonic() - started:.1f} s")


def checked(listed: Listed) -> bytes:
    """The whole file, which has the hash that the index names."""
    _, _, body = _fetch(listed.url, {})
    digest = hashlib.sha256(body).hexdigest()
    if listed.sha256 and digest != listed.sha256:
        raise Unreachable(f"{listed.name}: its SHA-256 is {digest}, the index says {listed.sha256}")
    return body


def unpacked(listed: Listed) -> Path:
    """The tree of a source distribution: its only top folder.  No code of it runs."""

    def fill(folder: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(checked(listed)), mode="r:gz") as archive:
            archive.extractall(folder, filter="data")

    folder = _kept(f"sdist/{listed.name.removesuffix('.tar.gz')}", fill)
    (top,) = folder.iterdir()
    return top


def copy_of(tree: Path, to: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(tree, to / tree.name))
