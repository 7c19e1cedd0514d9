"""Other names: locals, parameters, functions, files."""

from __future__ import annotations

from tests.drift.base import DEVICE, UTILS, Drift, Files, renamed, replaced, rewritten, source
from tests.sample import sample

_LOCALS = {"queue": "head_ptr", "state": "gda", "mvars": "mv", "next": "new_head", "base": "first", "count": "n_wqes", "posted": "seen"}
_PARAMETERS = {"qp": "channel", "pe": "rank", "id": "lane", "message": "msg_idx", "index": "producer", "cq": "completions", "lock": "word"}
_FUNCTIONS = {
    "submit": "commit_wqes", "post": "kick", "ring_doorbell": "hit_bf", "write_doorbell_record": "write_dbr", "take_lock": "enter",
    "give_lock": "leave", "find_qp": "qp_of", "device_state": "gda_state", "drain": "flush_peer", "wait_completion": "poll_cqe",
    "reserve": "grab_slots",
}  # fmt: skip
_HELPERS = {"fence_cta": "order_block", "load_relaxed": "peek", "store_release": "put_rel", "store_relaxed": "put_na"}
_CAMEL = {
    "queue": "readyQueue", "state": "ibgdaState", "mvars": "managementVars", "next": "newIndex", "base": "baseIndex", "qp": "queuePair",
    "device_state": "getDeviceState", "submit": "submitRequests", "post": "postSend", "fence_cta": "fenceCta", "pe": "dstPe",
    "id": "qpIndex", "per_peer": "qpsPerPeer",
}  # fmt: skip


def _helpers_renamed() -> Files:
    files = sample()
    return {**files, DEVICE: renamed(source(), _HELPERS).encode(), UTILS: renamed(files[UTILS].decode(), _HELPERS).encode()}


def _camel() -> Files:
    files = sample()
    return {**files, DEVICE: renamed(source(), _CAMEL).encode(), UTILS: renamed(files[UTILS].decode(), _CAMEL).encode()}


def _file_renamed() -> Files:
    files = sample()
    text = replaced(files.pop(DEVICE).decode(), ('"utils.cuh"', '"../utils.cuh"'))
    return {**files, "csrc/kernels/legacy/gda_send.hpp": text.encode()}


def _everything_renamed() -> Files:
    files = sample()
    names = {**_LOCALS, **_PARAMETERS, **_FUNCTIONS, **_HELPERS, "sample_ep": "other_ep"}
    text = replaced(renamed(files.pop(DEVICE).decode(), names), ('"utils.cuh"', '"low_level.h"'))
    return {"src/transport/gda.inl": text.encode(), "src/transport/low_level.h": renamed(files[UTILS].decode(), names).encode()}


DRIFTS = (
    rewritten("names: locals", lambda t: renamed(t, _LOCALS)),
    rewritten("names: parameters", lambda t: renamed(t, _PARAMETERS)),
    rewritten("names: functions", lambda t: renamed(t, _FUNCTIONS)),
    Drift("names: helpers of the other header", _helpers_renamed),
    Drift("names: camel case", _camel),
    Drift("names: file moved and renamed", _file_renamed),
    Drift("names: all of them, files too", _everything_renamed),
    rewritten("names: submit and post swapped", lambda t: renamed(t, {"submit": "post", "post": "submit"})),
    rewritten("names: base and next swapped", lambda t: renamed(t, {"base": "next", "next": "base"})),
    rewritten(
        "names: misleading, queue is called prod_idx_ptr", lambda t: renamed(t, {"queue": "prod_idx_ptr", "mvars": "ready_head_owner"})
    ),
    rewritten("names: pe and id swapped", lambda t: renamed(t, {"pe": "id", "id": "pe"})),
)
