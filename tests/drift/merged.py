"""Trees that have a part of the fixes already, or all of them, in other spellings; and trees without an async mode."""

from __future__ import annotations

from tests.drift.base import FENCE, FRONTIER, GATE, LOOKUP, POST, QUEUE, SUBMIT_HEAD, WAIT, edited
from tests.drift.flow import CAST, FLAG

_SINCE_SLOT = "NVSHMEM_VENDOR_MAJOR_VERSION > 3 || (NVSHMEM_VENDOR_MAJOR_VERSION == 3 && NVSHMEM_VENDOR_MINOR_VERSION >= 4)"
_SINCE_QP = "NVSHMEM_VENDOR_MAJOR_VERSION > 3 || (NVSHMEM_VENDOR_MAJOR_VERSION == 3 && NVSHMEM_VENDOR_MINOR_VERSION >= 5)"
_READY = f"    auto queue = {CAST}(&mvars->tx_wq.ready_head);\n"
_PUBLISH = f"        atomicMax_system({CAST}(qp->tx_wq.bf), next);\n"
_ADVANCE = f"        atomicMax({CAST}(&mvars->tx_wq.prod_idx), next);\n"
_PUBLISHES = POST.replace(f"    if (!{FLAG}) {{\n", f"    if ({FLAG}) {{\n{_PUBLISH}    }} else {{\n")
_COMPLETE = POST.replace(f"    if (!{FLAG}) {{\n", f"    if ({FLAG}) {{\n{_ADVANCE}{_PUBLISH}    }} else {{\n")
_PROXY_POST = f"""\
__device__ static __forceinline__ void proxy_post(nvshmemi_ibgda_device_qp_t* qp, uint64_t idx) {{
    const unsigned long long was = atomicMax({CAST}(&qp->mvars.tx_wq.prod_idx), idx);
    if (idx > was)
        atomicMax_system({CAST}(qp->tx_wq.bf), idx);
}}

"""
_BY_HELPER = POST.replace(f"    if (!{FLAG}) {{\n", f"    if ({FLAG}) {{\n        proxy_post(qp, next);\n    }} else {{\n")
_QUIET_READY = "    const uint64_t index = load_relaxed(&qp->mvars.tx_wq.ready_head);\n"
_QUIET_BOTH = f"#if {_SINCE_SLOT}\n{_QUIET_READY}#else\n{FRONTIER}#endif\n"
_QUEUE_BOTH = f"#if {_SINCE_SLOT}\n{_READY}#else\n{QUEUE}#endif\n"
_GUARDED_POST = f"#if {_SINCE_SLOT}\n{_BY_HELPER}#else\n{POST}#endif\n"
_BY_QP = "    return &state->globalmem.rcs[id % per_peer * nvshmemi_device_state_d.npes + pe];\n"
_LOOKUP_BOTH = f"#if {_SINCE_QP}\n{_BY_QP}#else\n{LOOKUP}#endif\n"
_NIC = (
    (FENCE, "    if (state->nic_buf_on_gpumem)\n        __threadfence();\n    else\n        __threadfence_system();\n"),
    (
        "        write_doorbell_record(qp, index);\n",
        "        fence_nic();\n        write_doorbell_record(qp, index);\n        fence_nic();\n",
    ),
    (
        "__device__ static __forceinline__ void write_doorbell_record(",
        """\
__device__ static __forceinline__ void fence_nic() {
    if (device_state()->nic_buf_on_gpumem) {
        __threadfence();
    } else {
        __threadfence_system();
    }
}

__device__ static __forceinline__ void write_doorbell_record(""",
    ),
)
_UPSTREAM = {"submit-order": "upstream"}
_DONE = dict.fromkeys(("nic-fence-scope", "post-cas-fence", "quiet-frontier", "rc-layout", "submit-order"), "upstream")
_LAYOUT_DONE = {r: {"rc-layout": "upstream"} for r in ("all", "3.3.24", "3.8.0")}
_FENCE_DONE = {r: {"post-cas-fence": "upstream"} for r in ("all", "3.3.24", "3.8.0")}
_NIC_DONE = {r: {"nic-fence-scope": "upstream"} for r in ("all", "3.3.24", "3.8.0")}
_NO_MODE = {"3.3.24": {"submit-order": "needed", "quiet-frontier": "needed"}, "3.8.0": {"quiet-frontier": "upstream"}}

PARTS = (
    edited("merged: only the order", (QUEUE, _READY), states={"3.3.24": {"submit-order": "needed"}}),
    edited("merged: only the order, by a condition of the version", (QUEUE, _QUEUE_BOTH)),
    edited(
        "merged: order and publish, prod_idx left behind",
        (QUEUE, _READY),
        (POST, _PUBLISHES),
        states={"all": {"submit-order": "partial"}, "3.3.24": {"submit-order": "needed"}, "3.8.0": {"submit-order": "partial"}},
        publishes=0,
    ),
    edited(
        "merged: the same at GPU scope",
        (QUEUE, _READY),
        (POST, _PUBLISHES.replace("_system", "")),
        states={"3.3.24": {"submit-order": "needed"}},
        publishes=1,
    ),
    edited(
        "merged: publish in an early return",
        (QUEUE, _READY),
        (
            POST,
            f"    if ({FLAG}) {{\n{_PUBLISH}        return;\n    }}\n    if (kAlwaysPost or (message + 1) % 4 == 0)\n        post(qp, next);\n",
        ),
        states={"all": {"submit-order": "partial"}, "3.3.24": {"submit-order": "needed"}, "3.8.0": {"submit-order": "partial"}},
        publishes=0,
    ),
    edited(
        "merged: publish without the order",
        (POST, _PUBLISHES),
        states={"all": {"submit-order": "partial"}, "3.3.24": {"submit-order": "needed"}, "3.8.0": {"submit-order": "partial"}},
        publishes=0,
    ),
    edited(
        "merged: advance without the publish",
        (QUEUE, _READY),
        (POST, POST.replace(f"    if (!{FLAG}) {{\n", f"    if ({FLAG}) {{\n{_ADVANCE}    }} else {{\n")),
        states={"all": {"submit-order": "partial"}, "3.3.24": {"submit-order": "needed"}, "3.8.0": {"submit-order": "partial"}},
    ),
    edited(
        "merged: complete, as NVSHMEM does it",
        (SUBMIT_HEAD, _PROXY_POST + SUBMIT_HEAD),
        (QUEUE, _READY),
        (POST, _BY_HELPER),
        states={"3.3.24": {"submit-order": "needed"}, "3.8.0": _UPSTREAM},
        publishes=0,
    ),
    edited(
        "merged: complete, in line",
        (QUEUE, _READY),
        (POST, _COMPLETE),
        states={"3.3.24": {"submit-order": "needed"}, "3.8.0": _UPSTREAM},
        publishes=0,
    ),
    edited(
        "merged: complete, by the version macros",
        (SUBMIT_HEAD, _PROXY_POST + SUBMIT_HEAD),
        (QUEUE, _QUEUE_BOTH),
        (POST, _GUARDED_POST),
        states={"all": _UPSTREAM, "3.8.0": _UPSTREAM},
        publishes=0,
    ),
    edited(
        "merged: complete, by a macro of its own",
        (
            "namespace sample_ep {\n\n__device__",
            f"#if {_SINCE_SLOT}\n#define EP_PROXY_SLOT 1\n#else\n#define EP_PROXY_SLOT 0\n#endif\n\nnamespace sample_ep {{\n\n__device__",
        ),
        (SUBMIT_HEAD, "#if EP_PROXY_SLOT\n" + _PROXY_POST + "#endif\n" + SUBMIT_HEAD),
        (QUEUE, f"#if EP_PROXY_SLOT\n{_READY}#else\n{QUEUE}#endif\n"),
        (POST, f"#if EP_PROXY_SLOT\n{_BY_HELPER}#else\n{POST}#endif\n"),
        states={"all": _UPSTREAM, "3.8.0": _UPSTREAM},
        publishes=0,
    ),
    edited(
        "merged: complete, the queue by a negative test",
        (SUBMIT_HEAD, _PROXY_POST + SUBMIT_HEAD),
        (QUEUE, f"#if !({_SINCE_SLOT})\n{QUEUE}#else\n{_READY}#endif\n"),
        (WAIT, WAIT + f"#if {_SINCE_SLOT}\n    if ({FLAG})\n        proxy_post(qp, next);\n#endif\n"),
        states={"all": _UPSTREAM, "3.8.0": _UPSTREAM},
        publishes=0,
    ),
    edited(
        "merged: quiet, by the version macros",
        (FRONTIER, _QUIET_BOTH),
        states={"all": {"quiet-frontier": "upstream"}, "3.8.0": {"quiet-frontier": "upstream"}},
    ),
    edited(
        "merged: quiet, new releases only",
        (FRONTIER, _QUIET_READY),
        states={"3.3.24": {"quiet-frontier": "needed"}, "3.8.0": {"quiet-frontier": "upstream"}},
    ),
    edited("merged: the fence after the CAS", (WAIT, WAIT + "    fence_cta();\n"), states=_FENCE_DONE),
    edited("merged: a fence of CUDA's after the CAS", (WAIT, WAIT + "    __threadfence_block();\n"), states=_FENCE_DONE),
    edited(
        "merged: a fence in the body of the wait helper",
        (
            SUBMIT_HEAD,
            "__device__ static __forceinline__ void turn(unsigned long long* word, uint64_t from, uint64_t to) {\n    while (atomicCAS(word, from, to) != from) {\n    }\n    fence_cta();\n}\n\n"
            + SUBMIT_HEAD,
        ),
        (WAIT, "    turn(queue, base, next);\n"),
        states=_FENCE_DONE,
        touched=("turn",),
    ),
    edited("merged: fences for the NIC", *_NIC, states=_NIC_DONE),
    edited(
        "merged: the fence before the CAS by a choice",
        (FENCE, "    state->nic_buf_on_gpumem ? __threadfence() : __threadfence_system();\n"),
        states={r: {"nic-fence-scope": "partial"} for r in ("all", "3.3.24", "3.8.0")},
    ),
    edited(
        "merged: layout by the type of the state",
        (
            "namespace sample_ep {\n\n__device__",
            """\
#include <type_traits>

namespace sample_ep {

template <typename State>
__device__ static __forceinline__ auto slot_of(State* state, int pe, int id, int per_peer) {
    if constexpr (std::is_same_v<State, nvshmemi_ibgda_device_state_v1>)
        return &state->globalmem.rcs[pe * per_peer + id % per_peer];
    else
        return &state->globalmem.rcs[id % per_peer * nvshmemi_device_state_d.npes + pe];
}

__device__""",
        ),
        (LOOKUP, "    return slot_of(state, pe, id, per_peer);\n"),
        states=_LAYOUT_DONE,
    ),
    edited(
        "merged: layout by the type, decltype",
        ("namespace sample_ep {\n\n__device__", "#include <type_traits>\n\nnamespace sample_ep {\n\n__device__"),
        (
            LOOKUP,
            f"""\
    if constexpr (std::is_same_v<std::remove_pointer_t<decltype(state)>, nvshmemi_ibgda_device_state_v1>) {{
    {LOOKUP}    }} else {{
    {_BY_QP}    }}
""",
        ),
        states=_LAYOUT_DONE,
    ),
    edited("merged: layout by the version macros", (LOOKUP, _LOOKUP_BOTH), states=_LAYOUT_DONE),
    edited(
        "merged: layout by the version macros, one expression",
        (
            LOOKUP,
            f"""\
    return &state->globalmem.rcs[
#if {_SINCE_QP}
        pe + nvshmemi_device_state_d.npes * (id % per_peer)
#else
        id % per_peer + per_peer * pe
#endif
    ];
""",
        ),
        states=_LAYOUT_DONE,
    ),
    edited(
        "merged: layout by a constant",
        (
            LOOKUP,
            f"""\
#if {_SINCE_QP}
    constexpr bool kByQp = true;
#else
    constexpr bool kByQp = false;
#endif
    return &state->globalmem.rcs[kByQp ? id % per_peer * nvshmemi_device_state_d.npes + pe : pe * per_peer + id % per_peer];
""",
        ),
        states=_LAYOUT_DONE,
    ),
    edited(
        "merged: layout by strides",
        (
            LOOKUP,
            f"""\
#if {_SINCE_QP}
    const int by_pe = 1, by_lane = nvshmemi_device_state_d.npes;
#else
    const int by_pe = per_peer, by_lane = 1;
#endif
    return state->globalmem.rcs + by_pe * pe + (id % per_peer) * by_lane;
""",
        ),
        states=_LAYOUT_DONE,
    ),
    edited(
        "merged: layout of new releases, everywhere",
        (LOOKUP, _BY_QP),
        states={"3.3.24": {"rc-layout": "needed"}, "3.8.0": {"rc-layout": "upstream"}},
    ),
    edited(
        "merged: everything",
        (SUBMIT_HEAD, _PROXY_POST + SUBMIT_HEAD),
        (QUEUE, _QUEUE_BOTH),
        (WAIT, WAIT + "    fence_cta();\n"),
        (POST, _GUARDED_POST),
        (FRONTIER, _QUIET_BOTH),
        (LOOKUP, _LOOKUP_BOTH),
        *_NIC,
        states={"all": _DONE, "3.3.24": _DONE, "3.8.0": _DONE},
        publishes=0,
    ),
)

NO_MODE = (
    edited("no async mode: never asked", (QUEUE, _READY), (GATE, "    {\n"), (FRONTIER, _QUIET_READY), states=_NO_MODE),
    edited(
        "no async mode: posts plainly",
        (QUEUE, _READY),
        (POST, "    constexpr int kBatch = 4;\n    if (kAlwaysPost or (message + 1) % kBatch == 0)\n        post(qp, next);\n"),
        (FRONTIER, _QUIET_READY),
        states=_NO_MODE,
    ),
    edited("no async mode: posts always", (QUEUE, _READY), (POST, "    post(qp, next);\n"), (FRONTIER, _QUIET_READY), states=_NO_MODE),
    edited(
        "no async mode: queue in the call, no state in sight",
        (QUEUE, ""),
        ("atomicCAS(queue,", f"atomicCAS({CAST}(&mvars->tx_wq.ready_head),"),
        (GATE, "    {\n"),
        (FRONTIER, _QUIET_READY),
        ("    auto state = device_state();\n    auto mvars = &qp->mvars;\n    const", "    auto mvars = &qp->mvars;\n    const"),
        states=_NO_MODE,
    ),
    edited(
        "no async mode: C casts, no mvars",
        (QUEUE, ""),
        ("    auto mvars = &qp->mvars;\n    const", "    const"),
        ("atomicCAS(queue,", "atomicCAS((unsigned long long*)&qp->mvars.tx_wq.ready_head,"),
        (GATE, "    {\n"),
        (FRONTIER, _QUIET_READY),
        states=_NO_MODE,
    ),
)

DRIFTS = (*PARTS, *NO_MODE)
