"""Shapes that are not mended: each must end blocked, with a reason that names the place."""

from __future__ import annotations

from tests.drift.base import FENCE, POST, QUEUE, SUBMIT_HEAD, WAIT, Drift, edited
from tests.drift.flow import CAST, FLAG

_PUBLISH = f"    if ({FLAG})\n        atomicMax_system({CAST}(qp->tx_wq.bf), next);\n"

ALL = ("all", "3.3.24", "3.8.0")
NEW = ("all", "3.8.0")
DRIFTS: tuple[tuple[Drift, str, tuple[str, ...]], ...] = (
    (
        edited(
            "a pointer constructed in brackets, which the grammar takes for a function",
            (QUEUE, QUEUE.replace("auto queue = ", "unsigned long long* const queue(").replace(");\n", "));\n")),
        ),
        "not understood",
        ALL,
    ),
    (
        edited(
            "the wait gives up after a while",
            (WAIT, "    for (int i = 0; i < 1000; ++i) {\n        if (atomicCAS(queue, base, next) == base)\n            break;\n    }\n"),
        ),
        "can end without it",
        ALL,
    ),
    (
        edited(
            "the wait gives up by the clock",
            (
                WAIT,
                '    const auto start = clock64();\n    while (atomicCAS(queue, base, next) != base) {\n        if (clock64() - start > 1000000) {\n            printf("timeout\\n");\n            break;\n        }\n    }\n',
            ),
        ),
        "can end without it",
        ALL,
    ),
    (
        edited(
            "the wait gives up in its condition",
            (WAIT, "    int left = 1000;\n    while (atomicCAS(queue, base, next) != base and --left > 0)\n        ;\n"),
        ),
        "can end without it",
        ALL,
    ),
    (
        edited(
            "the wait gives up in its condition, of a for",
            (WAIT, "    for (int i = 0; i < 1000 && atomicCAS(queue, base, next) != base; ++i)\n        ;\n"),
        ),
        "can end without it",
        ALL,
    ),
    (
        edited(
            "the wait gives up in its condition, of a do",
            (WAIT, "    int i = 0;\n    do {\n    } while (atomicCAS(queue, base, next) != base && i++ < 1000);\n"),
        ),
        "can end without it",
        ALL,
    ),
    (
        edited(
            "the wait gives up by the clock, in its condition",
            (
                WAIT,
                "    const auto limit = clock64() + 1000000;\n    while (atomicCAS(queue, base, next) != base and clock64() < limit)\n        ;\n",
            ),
        ),
        "can end without it",
        ALL,
    ),
    (
        edited(
            "the wait gives up in a helper, and nobody asks",
            (
                SUBMIT_HEAD,
                """\
__device__ static __forceinline__ bool wait_turn(unsigned long long* word, uint64_t from, uint64_t to) {
    for (int i = 0; i < 1000; ++i)
        if (atomicCAS(word, from, to) == from)
            return true;
    return false;
}

"""
                + SUBMIT_HEAD,
            ),
            (WAIT, "    wait_turn(queue, base, next);\n"),
        ),
        "",
        ALL,
    ),
    (
        edited(
            "the wait is over when the queue is ahead",
            (WAIT, "    while (atomicCAS(queue, base, next) < base)\n        ;\n"),
        ),
        "",
        ALL,
    ),
    (edited("the CAS is tried once", (WAIT, "    atomicCAS(queue, base, next);\n")), "not understood", ALL),
    (
        edited(
            "a second turn on another member",
            (WAIT, WAIT + f"    while (atomicCAS({CAST}(&mvars->tx_wq.ready_slot), base, next) != base)\n        ;\n"),
        ),
        "ready_slot",
        ALL,
    ),
    (
        edited(
            "a second turn on another member, before",
            (WAIT, f"    while (atomicCAS({CAST}(&mvars->tx_wq.ready_slot), base, next) != base)\n        ;\n" + WAIT),
        ),
        "ready_slot",
        ALL,
    ),
    (
        edited("the queue is given to a function without a definition", (WAIT, "    vendor_wait(queue, base, next);\n")),
        "comes nearest",
        ALL,
    ),
    (
        edited("the queue is given to a function without a definition too", (WAIT, WAIT + "    vendor_notify(queue, next);\n")),
        "vendor_notify",
        ALL,
    ),
    (
        edited(
            "the publish stands before the CAS", (QUEUE, f"    auto queue = {CAST}(&mvars->tx_wq.ready_head);\n"), (WAIT, _PUBLISH + WAIT)
        ),
        "before",
        NEW,
    ),
    (
        edited(
            "the publish stands before the fence",
            (QUEUE, f"    auto queue = {CAST}(&mvars->tx_wq.ready_head);\n"),
            (FENCE, _PUBLISH + FENCE),
        ),
        "before",
        NEW,
    ),
    (
        edited(
            "publishes an index of its own",
            (QUEUE, f"    auto queue = {CAST}(&mvars->tx_wq.ready_head);\n"),
            (POST, _PUBLISH.replace("next", "next + 1") + POST),
        ),
        "not by max",
        NEW,
    ),
    (
        edited(
            "publishes by exchange",
            (QUEUE, f"    auto queue = {CAST}(&mvars->tx_wq.ready_head);\n"),
            (POST, _PUBLISH.replace("atomicMax_system", "atomicExch_system") + POST),
        ),
        "exch",
        NEW,
    ),
    (edited("code in submit that does not parse", (QUEUE, QUEUE + "    queue <- @ base $$ ] ) ;\n")), "", ALL),
    (
        edited(
            "a macro without a definition that opens a block",
            (
                POST,
                "    EP_IF_GPU(state) {\n        constexpr int kBatch = 4;\n        if (kAlwaysPost or (message + 1) % kBatch == 0)\n            post(qp, next);\n    } EP_ELSE {\n        EP_END\n    }\n",
            ),
        ),
        "",
        ALL,
    ),
    (
        edited(
            "a macro without a definition that takes a statement",
            (WAIT, "    EP_RETRY(64) while (atomicCAS(queue, base, next) != base)\n        ;\n"),
        ),
        "",
        ALL,
    ),
    (edited("the queue comes from a function without a definition", (QUEUE, "    auto queue = vendor_queue(qp);\n")), "", ALL),
    (
        edited(
            "inline assembly that is not understood takes the queue",
            (WAIT, '    asm volatile("vendor.wait.u64 [%0], %1;" ::"l"(queue), "l"(next));\n' + WAIT),
        ),
        "",
        ALL,
    ),
    (edited("the doorbell rings before the turn", (WAIT, "    ring_doorbell(qp, next);\n" + WAIT)), "", ALL),
)
