"""The vocabulary of NVSHMEM's IBGDA submit protocol.

Facts read from NVSHMEM's device headers 3.1.7 to 3.8.0 (``non_abi/device/pt-to-pt/ibgda_device.cuh``)
and its open host transport.  DeepEP must follow, in full, the protocol of the NVSHMEM that it is
compiled against; NVSHMEM's own device code is the reference.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from patcher.machine.terms import Term, place_path, value_path, walk
from patcher.source.conditions import Macro


class Version(NamedTuple):
    """A release of NVSHMEM (the vendor version)."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """``3.4.5`` as a version, or None."""
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:[.+-].*)?", text.strip())
        return cls(int(match[1]), int(match[2]), int(match[3])) if match else None

    @property
    def number(self) -> int:
        """The version as the preprocessor can compare it: 3.4.5 is 30405."""
        return self.major * 10000 + self.minor * 100 + self.patch

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    def macros(self) -> dict[str, Macro]:
        """What ``non_abi/nvshmem_version.h`` of this release defines."""
        return {
            "NVSHMEM_VENDOR_MAJOR_VERSION": Macro(str(self.major)),
            "NVSHMEM_VENDOR_MINOR_VERSION": Macro(str(self.minor)),
            "NVSHMEM_VENDOR_PATCH_VERSION": Macro(str(self.patch)),
        }


VERSION_MACROS = frozenset(Version(0, 0, 0).macros())
RELEASES = tuple(
    Version(*v)
    for v in (
        (3, 1, 7), (3, 2, 5), (3, 3, 9), (3, 3, 20), (3, 3, 24), (3, 4, 5), (3, 5, 19), (3, 5, 21), (3, 6, 5), (3, 7, 0), (3, 7, 1),
        (3, 7, 2), (3, 8, 0),
    )
)  # fmt: skip
"""The releases on PyPI (``nvidia-nvshmem-cu12``, ``-cu13``)."""

DEEPEP_MINIMUM = Version(3, 3, 9)
"""What DeepEP documents as the oldest NVSHMEM that it builds with."""

SUPPORTED = tuple(v for v in RELEASES if v >= DEEPEP_MINIMUM)

PROXY_SLOT_SINCE = Version(3, 4, 5)
"""From here ``ready_head`` orders submitters in every mode, and a proxy polls the slot at ``*tx_wq.bf``.
Before, the CAS on ``*tx_wq.prod_idx`` orders them in async mode and is what the proxy sees."""

QP_MAJOR_SINCE = Version(3, 5, 0)
"""From here RC QPs are laid out ``[QP][PE]``, and the device state is ``v2``.  Before, ``[PE][QP]``.

The first wheel that has it is 3.5.19, and DeepEP PR #696 tests for that; NVSHMEM's open source has it from 3.5.0
on (3.4.6 has not), which is what a build from source meets.
"""

READY_HEAD = "mvars.tx_wq.ready_head"
PROD_IDX = "mvars.tx_wq.prod_idx"
RESV_HEAD = "mvars.tx_wq.resv_head"
PROXY_QUEUE = "*tx_wq.prod_idx"
DOORBELL = "*tx_wq.bf"
"""Handler gpu: the doorbell register in the UAR.  CPU handlers from 3.4.5: the slot that the proxy polls."""
DOORBELL_RECORD = "*tx_wq.dbrec"
FRONTIERS = frozenset({READY_HEAD, PROD_IDX, RESV_HEAD, PROXY_QUEUE})
ORDER_QUEUES = frozenset({READY_HEAD, PROXY_QUEUE})

ASYNC_FLAG = "use_async_postsend"
NIC_ON_GPU_FLAG = "nic_buf_on_gpumem"
DEFERRAL_FIELDS = ("resv_head", "region_batch_rma_pending_qps")
"""A submission that asks these and does not post leaves posting to a later one (``num_requests_in_batch``)."""

_QP_MEMBER = re.compile(r"(?:^\*?|\.)((?:mvars\.)?tx_wq\.\w+)$")


def member(place: Term) -> str:
    """A place as a member of the QP (one of the names above), or the empty string."""
    path = place_path(place)
    match = _QP_MEMBER.search(path)
    return ("*" if path.startswith("*") else "") + match[1] if match else ""


def member_read(term: Term) -> str:
    """The QP member that a value was read from, or the empty string."""
    return member(term[1]) if term[0] == "val" else ""


def flag(term: Term, name: str) -> bool:
    """Whether ``term`` is the member ``name`` of the device state."""
    return term[0] == "val" and value_path(term).rsplit(".", 1)[-1] == name


def mentions(term: Term, name: str) -> bool:
    """Whether ``term`` reads a member ``name`` somewhere."""
    return any(t[0] == "field" and t[2] == name for t in walk(term))


def state_type_holds(condition: Term, version: Version) -> bool | None:
    """The value of a compile-time test of the device state's type (``std::is_same_v<..., ..._v1>``) for a release.

    ``nvshmemi_ibgda_device_state_t`` is ``v1`` before 3.5.0 and ``v2`` from then on.  None for other conditions.
    """
    text = " ".join(str(t[1]) for t in walk(condition) if t[0] in ("sym", "call"))
    if "is_same" not in text:
        return None
    if "device_state_v1" in text:
        return version < QP_MAJOR_SINCE
    if "device_state_v2" in text:
        return version >= QP_MAJOR_SINCE
    return None


def epoch(version: Version) -> int:
    """Which form of the protocol a release has: 0 before the proxy's slot, 1 with it, 2 with QP-major RC QPs too."""
    return (version >= PROXY_SLOT_SINCE) + (version >= QP_MAJOR_SINCE)
