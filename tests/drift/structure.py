"""Other structure: helpers split out or inlined, aliases, parameters, namespaces, files."""

from __future__ import annotations

from tests.drift.base import (
    DEVICE,
    FENCE,
    FRONTIER,
    POST,
    QUEUE,
    SUBMIT_HEAD,
    SUBMIT_TOP,
    UTILS,
    WAIT,
    Drift,
    Files,
    edited,
    replaced,
    rewritten,
    source,
)
from tests.drift.flow import CAST, FLAG
from tests.sample import sample

_POST_HEAD = "__device__ static __forceinline__ void post(nvshmemi_ibgda_device_qp_t* qp, uint64_t index) {\n"
_POST_BODY = """\
    auto mvars = &qp->mvars;
    take_lock(&mvars->post_send_lock);
    const auto posted = atomicMax(reinterpret_cast<unsigned long long*>(&mvars->tx_wq.prod_idx), index);
    if (index > posted) {
        write_doorbell_record(qp, index);
        ring_doorbell(qp, index);
    }
    give_lock(&mvars->post_send_lock);
}

"""
_RECORD = "        write_doorbell_record(qp, index);\n"
_RING = "        ring_doorbell(qp, index);\n"
_RECORD_INLINE = "        store_release(reinterpret_cast<uint32_t*>(qp->tx_wq.dbrec), __byte_perm(index & 0xffff, 0, 0x0123));\n"
_RING_INLINE = """\
        const uint32_t high = __byte_perm(qp->qpn << 8, 0, 0x0123), low = __byte_perm(index << 8, 0, 0x0123);
        store_release(reinterpret_cast<uint64_t*>(qp->tx_wq.bf), static_cast<uint64_t>(high) << 32 | low);
"""
_POST_INLINE = """\
            take_lock(&mvars->post_send_lock);
            if (next > atomicMax(reinterpret_cast<unsigned long long*>(&mvars->tx_wq.prod_idx), next)) {
                write_doorbell_record(qp, next);
                ring_doorbell(qp, next);
            }
            give_lock(&mvars->post_send_lock);
"""
_QUEUE_HELPER = f"""\
__device__ static __forceinline__ unsigned long long* queue_of(nvshmemi_ibgda_device_qp_t* qp) {{
    return {CAST}(device_state()->use_async_postsend ? qp->tx_wq.prod_idx : &qp->mvars.tx_wq.ready_head);
}}

"""
_STATELESS = SUBMIT_TOP.replace("    auto mvars = &qp->mvars;\n", "")
_CALLERS = """\

__device__ static __forceinline__ void send_all(int pe, int id, uint32_t count) {
    auto qp = find_qp(pe, id);
    const auto base = reserve(qp, count);
    submit<true>(qp, base, count);
    drain(pe, id);
}

}  // namespace sample_ep
"""


def _split_files() -> Files:
    """submit and post in a header of their own, the rest stays."""
    text = source()
    start, end = (
        text.index("__device__ static __forceinline__ void write_doorbell_record"),
        text.index("__device__ static __forceinline__ uint64_t reserve"),
    )
    moved = (
        '#pragma once\n\n#include "ibgda_state.cuh"\n\nnamespace sample_ep {\n\n'
        + text[start:end].rstrip()
        + "\n\n}  // namespace sample_ep\n"
    )
    head_end = text.index("// The queue pair that this rank")
    state = text[:head_end] + text[text.index("__device__ static __forceinline__ void take_lock") : start] + "}  // namespace sample_ep\n"
    rest = (
        '#pragma once\n\n#include "ibgda_submit.cuh"\n\nnamespace sample_ep {\n\n'
        + text[head_end : text.index("__device__ static __forceinline__ void take_lock")]
        + text[end:]
    )
    files = sample()
    return {**files, DEVICE: rest.encode(), "csrc/kernels/ibgda_submit.cuh": moved.encode(), "csrc/kernels/ibgda_state.cuh": state.encode()}


def _quiet_elsewhere() -> Files:
    text = source()
    start, end = text.index("__device__ static __forceinline__ void wait_completion"), text.index("}  // namespace sample_ep")
    moved = '#pragma once\n\n#include "ibgda_device.cuh"\n\nnamespace sample_ep {\n\n' + text[start:end] + "}  // namespace sample_ep\n"
    return {**sample(), DEVICE: (text[:start] + text[end:]).encode(), "csrc/kernels/quiet.cuh": moved.encode()}


def _helpers_in_second_header() -> Files:
    text = source()
    start, end = text.index("__device__ static __forceinline__ void write_doorbell_record"), text.index(_POST_HEAD)
    moved = (
        '#pragma once\n\n#include <device_host_transport/nvshmem_common_ibgda.h>\n\n#include "utils.cuh"\n\nnamespace sample_ep {\n\n'
        + text[start:end]
        + "}  // namespace sample_ep\n"
    )
    rest = replaced(text[:start] + text[end:], ('#include "utils.cuh"\n', '#include "doorbell.cuh"\n#include "utils.cuh"\n'))
    return {**sample(), DEVICE: rest.encode(), "csrc/kernels/doorbell.cuh": moved.encode()}


def _all_in_one() -> Files:
    files = sample()
    utils = files.pop(UTILS).decode()
    body = utils[utils.index("namespace sample_ep {") :]
    return {**files, DEVICE: replaced(source(), ('#include "utils.cuh"\n\n', "#include <cstdint>\n\n" + body + "\n")).encode()}


def _two_copies() -> Files:
    """The same file twice, as where an old kernel folder is kept."""
    files = sample()
    return {**files, "csrc/kernels/legacy/ibgda_device.cuh": files[DEVICE], "csrc/kernels/legacy/utils.cuh": files[UTILS]}


DRIFTS = (
    edited("structure: mvars inlined", (SUBMIT_TOP, _STATELESS), (QUEUE, QUEUE.replace("mvars->", "qp->mvars."))),
    edited(
        "structure: mvars by reference",
        (SUBMIT_TOP, SUBMIT_TOP.replace("auto mvars = &", "auto& mvars = ")),
        (QUEUE, QUEUE.replace("mvars->", "mvars.")),
    ),
    edited(
        "structure: the work queue's variables by reference",
        (SUBMIT_TOP, SUBMIT_TOP.replace("auto mvars = &qp->mvars", "auto& wq = qp->mvars.tx_wq")),
        (QUEUE, QUEUE.replace("mvars->tx_wq.", "wq.")),
    ),
    edited(
        "structure: the work queue by reference too",
        (SUBMIT_TOP, SUBMIT_TOP.replace("auto mvars = &qp->mvars", "auto& vars = qp->mvars.tx_wq;\n    const auto& wq = qp->tx_wq")),
        (QUEUE, QUEUE.replace("mvars->tx_wq.", "vars.").replace("qp->tx_wq.", "wq.")),
    ),
    edited(
        "structure: typed pointer to mvars", (SUBMIT_TOP, SUBMIT_TOP.replace("auto mvars", "nvshmemi_ibgda_device_qp_management_t* mvars"))
    ),
    edited(
        "structure: QP by reference",
        (SUBMIT_HEAD, SUBMIT_HEAD.replace("qp_t* qp", "qp_t& qp")),
        (SUBMIT_TOP, SUBMIT_TOP.replace("qp->", "qp.")),
        (QUEUE, QUEUE.replace("qp->", "qp.")),
        ("post(qp, next);\n    }\n}", "post(&qp, next);\n    }\n}"),
    ),
    edited(
        "structure: QP in a second local",
        (SUBMIT_TOP, SUBMIT_TOP.replace("    auto mvars = &qp->", "    auto* const pair = qp;\n    auto mvars = &pair->")),
        (QUEUE, QUEUE.replace("qp->", "pair->")),
    ),
    edited(
        "structure: QP looked up in submit",
        (SUBMIT_HEAD, SUBMIT_HEAD.replace("nvshmemi_ibgda_device_qp_t* qp,", "int pe, int id,")),
        (SUBMIT_TOP, "    auto qp = find_qp(pe, id);\n" + SUBMIT_TOP),
    ),
    edited(
        "structure: queue by a helper",
        (SUBMIT_HEAD, _QUEUE_HELPER + SUBMIT_HEAD),
        (QUEUE, "    auto queue = queue_of(qp);\n"),
        (SUBMIT_TOP, _STATELESS),
    ),
    edited(
        "structure: queue by a helper, in the call",
        (SUBMIT_HEAD, _QUEUE_HELPER + SUBMIT_HEAD),
        (QUEUE, ""),
        (SUBMIT_TOP, _STATELESS),
        ("atomicCAS(queue,", "atomicCAS(queue_of(qp),"),
    ),
    edited(
        "structure: queue by a helper with an if",
        (
            SUBMIT_HEAD,
            f"""\
__device__ static __forceinline__ unsigned long long* queue_of(nvshmemi_ibgda_device_qp_t* qp) {{
    if (device_state()->use_async_postsend)
        return {CAST}(qp->tx_wq.prod_idx);
    return {CAST}(&qp->mvars.tx_wq.ready_head);
}}

"""
            + SUBMIT_HEAD,
        ),
        (QUEUE, "    auto queue = queue_of(qp);\n"),
        touched=("queue_of",),
    ),
    edited("structure: doorbell record inlined", (_RECORD, _RECORD_INLINE)),
    edited("structure: doorbell inlined", (_RING, _RING_INLINE)),
    edited("structure: both doorbells inlined", (_RECORD, _RECORD_INLINE), (_RING, _RING_INLINE)),
    edited(
        "structure: post inlined",
        (_POST_HEAD + _POST_BODY, ""),
        ("            post(qp, next);\n", "        {\n" + _POST_INLINE + "        }\n"),
    ),
    edited(
        "structure: post and doorbells inlined",
        (_POST_HEAD + _POST_BODY, ""),
        (
            "            post(qp, next);\n",
            "        {\n"
            + _POST_INLINE.replace("write_doorbell_record(qp, next)", _RECORD_INLINE.strip().rstrip(";").replace("index", "next")).replace(
                "                ring_doorbell(qp, next);\n", _RING_INLINE.replace("index", "next").replace("        ", "                ")
            )
            + "        }\n",
        ),
    ),
    edited(
        "structure: both doorbells in one helper",
        (
            _POST_HEAD,
            "__device__ static __forceinline__ void notify(nvshmemi_ibgda_device_qp_t* qp, uint64_t index) {\n    write_doorbell_record(qp, index);\n    ring_doorbell(qp, index);\n}\n\n"
            + _POST_HEAD,
        ),
        (_RECORD + _RING, "        notify(qp, index);\n"),
        touched=("notify",),
    ),
    edited(
        "structure: batch in a helper",
        (
            SUBMIT_HEAD,
            "template <bool kAlwaysPost>\n__device__ static __forceinline__ void post_in_batches(nvshmemi_ibgda_device_qp_t* qp, uint64_t next, int message) {\n    if (kAlwaysPost or (message + 1) % 4 == 0)\n        post(qp, next);\n}\n\n"
            + SUBMIT_HEAD,
        ),
        (POST, f"    if (!{FLAG})\n        post_in_batches<kAlwaysPost>(qp, next, message);\n"),
    ),
    edited(
        "structure: the whole post decision in a helper",
        (
            SUBMIT_HEAD,
            "template <bool kAlwaysPost>\n__device__ static __forceinline__ void maybe_post(nvshmemi_ibgda_device_qp_t* qp, uint64_t next, int message) {\n    auto state = device_state();\n"
            + POST
            + "}\n\n"
            + SUBMIT_HEAD,
        ),
        (POST, "    maybe_post<kAlwaysPost>(qp, next, message);\n"),
    ),
    edited(
        "structure: no template",
        (SUBMIT_HEAD, SUBMIT_HEAD.replace("template <bool kAlwaysPost>\n", "").replace("int message = 0", "int message, bool always")),
        ("kAlwaysPost or", "always or"),
    ),
    edited(
        "structure: more template parameters",
        (
            SUBMIT_HEAD,
            SUBMIT_HEAD.replace(
                "template <bool kAlwaysPost>", "template <bool kAlwaysPost, int kBatch = 4, typename Index = uint64_t>"
            ).replace("uint64_t base", "Index base"),
        ),
        ("        constexpr int kBatch = 4;\n", ""),
    ),
    edited(
        "structure: more parameters",
        (
            SUBMIT_HEAD,
            SUBMIT_HEAD.replace(
                "int message = 0",
                "int message = 0,\n                                               [[maybe_unused]] int lane = 0, void* user = nullptr",
            ),
        ),
    ),
    edited(
        "structure: parameters in another order",
        (
            SUBMIT_HEAD,
            SUBMIT_HEAD.replace(
                "nvshmemi_ibgda_device_qp_t* qp, uint64_t base, uint32_t count",
                "uint32_t count, uint64_t base, nvshmemi_ibgda_device_qp_t* qp",
            ),
        ),
    ),
    edited(
        "structure: next as a parameter",
        (SUBMIT_HEAD, SUBMIT_HEAD.replace("uint32_t count", "uint64_t next")),
        ("    const uint64_t next = base + count;\n", ""),
    ),
    edited(
        "structure: submit returns next",
        (SUBMIT_HEAD, SUBMIT_HEAD.replace("void submit", "uint64_t submit")),
        (POST, POST + "    return next;\n"),
    ),
    edited(
        "structure: early return and a value",
        (SUBMIT_HEAD, SUBMIT_HEAD.replace("void submit", "uint64_t submit")),
        (
            POST,
            f"    if ({FLAG})\n        return next;\n    if (kAlwaysPost or (message + 1) % 4 == 0)\n        post(qp, next);\n    return next;\n",
        ),
    ),
    edited(
        "structure: submit reserves",
        (
            SUBMIT_HEAD,
            "__device__ static __forceinline__ uint64_t reserve(nvshmemi_ibgda_device_qp_t* qp, uint32_t count);\n\n"
            + SUBMIT_HEAD.replace("uint64_t base, ", ""),
        ),
        (SUBMIT_TOP, "    const uint64_t base = reserve(qp, count);\n" + SUBMIT_TOP),
    ),
    edited(
        "structure: two submit functions",
        (
            "__device__ static __forceinline__ uint64_t reserve",
            f"""\
__device__ static __forceinline__ void submit_one(nvshmemi_ibgda_device_qp_t* pair, uint64_t slot) {{
    auto gda = device_state();
    __threadfence();
    auto head = {CAST}(gda->use_async_postsend ? pair->tx_wq.prod_idx : &pair->mvars.tx_wq.ready_head);
    while (atomicCAS(head, slot, slot + 1) != slot)
        ;
    if (!gda->use_async_postsend)
        post(pair, slot + 1);
}}

__device__ static __forceinline__ uint64_t reserve""",
        ),
        publishes=2,
    ),
    rewritten("structure: a caller in the same file", lambda t: replaced(t, ("\n}  // namespace sample_ep\n", _CALLERS))),
    rewritten(
        "structure: nested namespaces",
        lambda t: replaced(
            t,
            ("namespace sample_ep {\n\n__device__", "namespace sample_ep {\nnamespace transport::ibgda {\n\n__device__"),
            ("}  // namespace sample_ep", "}  // namespace transport::ibgda\n}  // namespace sample_ep"),
        ),
    ),
    rewritten(
        "structure: an anonymous namespace",
        lambda t: replaced(
            t,
            ("namespace sample_ep {\n\n__device__", "namespace sample_ep {\nnamespace {\n\n__device__"),
            ("}  // namespace sample_ep", "}\n}  // namespace sample_ep"),
        ),
    ),
    rewritten(
        "structure: members of a struct",
        lambda t: replaced(
            t,
            ("namespace sample_ep {\n\n__device__", "namespace sample_ep {\n\nstruct Sender {\n\n__device__"),
            ("}  // namespace sample_ep", "};\n\n}  // namespace sample_ep"),
        ),
    ),
    rewritten(
        "structure: calls qualified",
        lambda t: replaced(t, ("            post(qp, next);", "            sample_ep::post(qp, next);")).replace(
            "auto state = device_state()", "auto state = ::sample_ep::device_state()"
        ),
    ),
    rewritten(
        "structure: declared before defined",
        lambda t: replaced(
            t, ("namespace sample_ep {\n\n__device__", "namespace sample_ep {\n\n" + _POST_HEAD.rstrip("{ \n") + ";\n\n__device__")
        ),
    ),
    rewritten(
        "structure: extern C++ round",
        lambda t: replaced(
            t,
            ("namespace sample_ep {\n\n__device__", 'extern "C++" {\nnamespace sample_ep {\n\n__device__'),
            ("}  // namespace sample_ep", "}  // namespace sample_ep\n}"),
        ),
    ),
    rewritten(
        "structure: device_state inlined everywhere",
        lambda t: replaced(
            t,
            (
                "__device__ static __forceinline__ nvshmemi_ibgda_device_state_t* device_state() {\n    return &nvshmemi_ibgda_device_state_d;\n}\n\n",
                "",
            ),
        ).replace("device_state();", "&nvshmemi_ibgda_device_state_d;"),
    ),
    rewritten(
        "structure: device_state with an alias for its type",
        lambda t: replaced(
            t,
            (
                "namespace sample_ep {\n\n__device__ static __forceinline__ nvshmemi_ibgda_device_state_t*",
                "namespace sample_ep {\n\nusing State = nvshmemi_ibgda_device_state_t;\nusing Pair = nvshmemi_ibgda_device_qp_t;\n\n__device__ static __forceinline__ State*",
            ),
        ).replace("nvshmemi_ibgda_device_qp_t*", "Pair*"),
    ),
    Drift("structure: submit in another header", _split_files),
    Drift("structure: quiet in another header", _quiet_elsewhere),
    Drift("structure: doorbells in another header", _helpers_in_second_header),
    Drift("structure: everything in one header", _all_in_one),
    Drift("structure: two copies of the file", _two_copies, publishes=2),
    edited(
        "structure: fence helper unused elsewhere",
        (
            "__device__ static __forceinline__ void take_lock(int* lock) {\n    while (atomicCAS(lock, 0, 1) != 0)\n        ;\n    fence_cta();\n",
            "__device__ static __forceinline__ void take_lock(int* lock) {\n    while (atomicCAS(lock, 0, 1) != 0)\n        ;\n    __threadfence_block();\n",
        ),
    ),
    edited(
        "structure: queue and frontier share a helper",
        (
            SUBMIT_HEAD,
            """\
__device__ static __forceinline__ uint64_t* order_word(nvshmemi_ibgda_device_qp_t* qp) {
    return device_state()->use_async_postsend ? qp->tx_wq.prod_idx : &qp->mvars.tx_wq.ready_head;
}

"""
            + SUBMIT_HEAD,
        ),
        (QUEUE, f"    auto queue = {CAST}(order_word(qp));\n"),
        (FRONTIER, "    const uint64_t index = load_relaxed(order_word(qp));\n"),
        touched=("order_word",),
    ),
    edited(
        "structure: fence, wait and post in three helpers",
        (
            SUBMIT_HEAD,
            f"""\
__device__ static __forceinline__ void flush_entries() {{
    __threadfence();
}}

__device__ static __forceinline__ void await_turn(nvshmemi_ibgda_device_qp_t* qp, uint64_t base, uint64_t next) {{
    auto state = device_state();
    auto mvars = &qp->mvars;
{QUEUE}{WAIT}}}

template <bool kAlwaysPost>
__device__ static __forceinline__ void hand_over(nvshmemi_ibgda_device_qp_t* qp, uint64_t next, int message) {{
    auto state = device_state();
{POST}}}

"""
            + SUBMIT_HEAD,
        ),
        (SUBMIT_TOP, "    const uint64_t next = base + count;\n"),
        (FENCE, "    flush_entries();\n"),
        (QUEUE, ""),
        (WAIT, "    await_turn(qp, base, next);\n"),
        (POST, "    hand_over<kAlwaysPost>(qp, next, message);\n"),
        touched=("flush_entries", "await_turn", "hand_over"),
    ),
)
