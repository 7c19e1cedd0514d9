"""Other control flow: how the queue is picked, how the turn is waited for, how the flag is asked."""

from __future__ import annotations

from tests.drift.base import FENCE, FRONTIER, GATE, LOOKUP, POST, QUEUE, SUBMIT_HEAD, SUBMIT_TOP, WAIT, edited

CAST = "reinterpret_cast<unsigned long long*>"
READY = f"{CAST}(&mvars->tx_wq.ready_head)"
PROXY = f"{CAST}(qp->tx_wq.prod_idx)"
FLAG = "state->use_async_postsend"
DECLARED = "    unsigned long long* queue;\n"
IF_ELSE = f"    if ({FLAG})\n        queue = {PROXY};\n    else\n        queue = {READY};\n"
BATCH = """\
        constexpr int kBatch = 4;
        if (kAlwaysPost or (message + 1) % kBatch == 0)
            post(qp, next);
"""
EARLY = """\
    if (state->use_async_postsend)
        return;
    constexpr int kBatch = 4;
    if (kAlwaysPost or (message + 1) % kBatch == 0)
        post(qp, next);
"""


def _flag(text: str, flag: str) -> str:
    return text.replace(FLAG, flag)


PICKING = (
    edited("queue: negated choice", (QUEUE, f"    auto queue = {CAST}(!{FLAG} ? &mvars->tx_wq.ready_head : qp->tx_wq.prod_idx);\n")),
    edited(
        "queue: `not` and parentheses", (QUEUE, f"    auto queue = {CAST}((not {FLAG}) ? &mvars->tx_wq.ready_head : qp->tx_wq.prod_idx);\n")
    ),
    edited(
        "queue: compared with true", (QUEUE, f"    auto queue = {CAST}({FLAG} == true ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);\n")
    ),
    edited(
        "queue: compared with false",
        (QUEUE, f"    auto queue = {CAST}(false == {FLAG} ? &mvars->tx_wq.ready_head : qp->tx_wq.prod_idx);\n"),
    ),
    edited(
        "queue: compared with zero", (QUEUE, f"    auto queue = {CAST}({FLAG} != 0 ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);\n")
    ),
    edited(
        "queue: nested choice",
        (
            QUEUE,
            f"    auto queue = {CAST}(!{FLAG} ? &mvars->tx_wq.ready_head : ({FLAG} ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head));\n",
        ),
    ),
    edited(
        "queue: double negation",
        (QUEUE, f"    auto queue = {CAST}(!!{FLAG} ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);\n"),
    ),
    edited(
        "queue: expected by a builtin",
        (QUEUE, f"    auto queue = {CAST}(__builtin_expect({FLAG}, 0) ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);\n"),
    ),
    edited("queue: if and else", (QUEUE, DECLARED + IF_ELSE)),
    edited(
        "queue: if and else with braces",
        (QUEUE, DECLARED + f"    if ({FLAG}) {{\n        queue = {PROXY};\n    }} else {{\n        queue = {READY};\n    }}\n"),
    ),
    edited(
        "queue: else of a negated flag, over nullptr",
        (
            QUEUE,
            f"    unsigned long long* queue = nullptr;\n    if (!{FLAG}) {{\n        queue = {READY};\n    }} else {{\n        queue = {PROXY};\n    }}\n",
        ),
    ),
    edited("queue: changed by an if", (QUEUE, f"    auto queue = {READY};\n    if ({FLAG})\n        queue = {PROXY};\n")),
    edited("queue: changed by an if, the other way", (QUEUE, f"    auto queue = {PROXY};\n    if (!{FLAG})\n        queue = {READY};\n")),
    edited(
        "queue: a switch",
        (
            QUEUE,
            DECLARED
            + f"    switch ({FLAG}) {{\n        case true:\n            queue = {PROXY};\n            break;\n        default:\n            queue = {READY};\n    }}\n",
        ),
    ),
    edited(
        "queue: a switch with numbers",
        (
            QUEUE,
            DECLARED + f"    switch ((int){FLAG}) {{\n    case 0: queue = {READY}; break;\n    case 1: queue = {PROXY}; break;\n    }}\n",
        ),
    ),
    edited(
        "queue: a lambda",
        (QUEUE, f"    auto queue = [&]() {{ return {CAST}({FLAG} ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head); }}();\n"),
    ),
    edited(
        "queue: an array of two",
        (QUEUE, f"    unsigned long long* queues[] = {{{READY}, {PROXY}}};\n    auto queue = queues[{FLAG}];\n"),
        touched=("queues",),
    ),
    edited(
        "queue: cast where it is used",
        (QUEUE, f"    auto queue = {FLAG} ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head;\n"),
        ("atomicCAS(queue,", f"atomicCAS({CAST}(queue),"),
    ),
    edited(
        "queue: given to the CAS directly",
        (QUEUE, ""),
        ("atomicCAS(queue,", f"atomicCAS({CAST}({FLAG} ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head),"),
    ),
    edited(
        "queue: the arms in locals",
        (
            QUEUE,
            f"    auto proxied = qp->tx_wq.prod_idx;\n    auto ready = &mvars->tx_wq.ready_head;\n    auto queue = {CAST}({FLAG} ? proxied : ready);\n",
        ),
        touched=("proxied", "ready"),
    ),
    edited(
        "queue: a reference to the word",
        (QUEUE, f"    auto& word = *{CAST}({FLAG} ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);\n"),
        ("atomicCAS(queue,", "atomicCAS(&word,"),
        touched=("word",),
    ),
    edited("queue: brace initialised", (QUEUE, QUEUE.replace("auto queue = ", "unsigned long long* queue{").replace(");\n", ")};\n"))),
    edited(
        "queue: copied to a second local",
        (QUEUE, QUEUE + "    auto* const turn = queue;\n"),
        ("atomicCAS(queue,", "atomicCAS(turn,"),
        touched=("turn",),
    ),
    edited(
        "queue: two waits, one for each mode",
        (QUEUE, ""),
        (
            WAIT,
            f"    if ({FLAG}) {{\n        while (atomicCAS({PROXY}, base, next) != base)\n            ;\n    }} else {{\n        while (atomicCAS({READY}, base, next) != base)\n            ;\n    }}\n",
        ),
    ),
    edited(
        "queue: two waits and the post in the else",
        (QUEUE, ""),
        (WAIT, ""),
        (
            POST,
            f"    if ({FLAG}) {{\n        while (atomicCAS({PROXY}, base, next) != base)\n            ;\n    }} else {{\n        while (atomicCAS({READY}, base, next) != base)\n            ;\n{BATCH}    }}\n",
        ),
    ),
)

WAITING = (
    edited(
        "wait: do-while", (WAIT, "    uint64_t old;\n    do {\n        old = atomicCAS(queue, base, next);\n    } while (old != base);\n")
    ),
    edited("wait: do-while, empty", (WAIT, "    do {\n    } while (atomicCAS(queue, base, next) != base);\n")),
    edited(
        "wait: for ever, break", (WAIT, "    for (;;) {\n        if (atomicCAS(queue, base, next) == base)\n            break;\n    }\n")
    ),
    edited(
        "wait: while true, break",
        (
            WAIT,
            "    while (true) {\n        const auto old = atomicCAS(queue, base, next);\n        if (old == base) {\n            break;\n        }\n    }\n",
        ),
    ),
    edited(
        "wait: while 1, continue",
        (WAIT, "    while (1) {\n        if (atomicCAS(queue, base, next) != base)\n            continue;\n        break;\n    }\n"),
    ),
    edited("wait: for with a condition", (WAIT, "    for (; atomicCAS(queue, base, next) != base;)\n        ;\n")),
    edited(
        "wait: for with an old value", (WAIT, "    for (uint64_t old = next; old != base; old = atomicCAS(queue, base, next))\n        ;\n")
    ),
    edited("wait: compared the other way round", (WAIT, "    while (base != atomicCAS(queue, base, next))\n        ;\n")),
    edited("wait: not equal by negation", (WAIT, "    while (!(atomicCAS(queue, base, next) == base))\n        ;\n")),
    edited("wait: not_eq", (WAIT, "    while (atomicCAS(queue, base, next) not_eq base)\n        ;\n")),
    edited(
        "wait: assigned in the condition",
        (WAIT, "    unsigned long long old;\n    while ((old = atomicCAS(queue, base, next)) != base)\n        ;\n"),
    ),
    edited("wait: sleeps", (WAIT, "    while (atomicCAS(queue, base, next) != base)\n        __nanosleep(32);\n")),
    edited("wait: goto", (WAIT, "again:\n    if (atomicCAS(queue, base, next) != base)\n        goto again;\n")),
    edited(
        "wait: traps after a while",
        (
            WAIT,
            "    uint32_t tries = 0;\n    while (atomicCAS(queue, base, next) != base) {\n        if (++tries == 1u << 30)\n            __trap();\n    }\n",
        ),
    ),
    edited("wait: system scope", (WAIT, "    while (atomicCAS_system(queue, base, next) != base)\n        ;\n")),
    edited(
        "wait: the sum in the call",
        ("    const uint64_t next = base + count;\n", ""),
        (WAIT, "    while (atomicCAS(queue, base, base + count) != base)\n        ;\n"),
        ("post(qp, next);\n    }\n}", "post(qp, base + count);\n    }\n}"),
    ),
    edited(
        "wait: the sum made in two steps", ("    const uint64_t next = base + count;\n", "    uint64_t next = base;\n    next += count;\n")
    ),
    edited(
        "wait: values of the atomics' type",
        (
            "    const uint64_t next = base + count;\n",
            "    const auto from = static_cast<unsigned long long>(base);\n    const auto next = from + count;\n",
        ),
        (WAIT, "    while (atomicCAS(queue, from, next) != from)\n        ;\n"),
    ),
    edited(
        "wait: by a helper given the queue",
        (
            SUBMIT_HEAD,
            """\
__device__ static __forceinline__ void wait_turn(unsigned long long* word, unsigned long long from, unsigned long long to) {
    while (atomicCAS(word, from, to) != from)
        ;
}

"""
            + SUBMIT_HEAD,
        ),
        (WAIT, "    wait_turn(queue, base, next);\n"),
        touched=("wait_turn",),
    ),
    edited(
        "wait: by a helper that picks the queue",
        (
            SUBMIT_HEAD,
            f"""\
__device__ static __forceinline__ void wait_turn(nvshmemi_ibgda_device_qp_t* qp, uint64_t base, uint64_t next) {{
    auto state = device_state();
    auto mvars = &qp->mvars;
{QUEUE}{WAIT}}}

"""
            + SUBMIT_HEAD,
        ),
        (QUEUE, ""),
        (WAIT, "    wait_turn(qp, base, next);\n"),
        touched=("wait_turn",),
    ),
    edited(
        "wait: by a helper that tries once",
        (
            SUBMIT_HEAD,
            """\
__device__ static __forceinline__ bool try_turn(unsigned long long* word, uint64_t from, uint64_t to) {
    return atomicCAS(word, from, to) == from;
}

"""
            + SUBMIT_HEAD,
        ),
        (WAIT, "    while (!try_turn(queue, base, next))\n        ;\n"),
        touched=("try_turn",),
    ),
    edited(
        "wait: by a lambda",
        (WAIT, "    const auto taken = [&] { return atomicCAS(queue, base, next) == base; };\n    while (!taken())\n        ;\n"),
        touched=("taken",),
    ),
    edited(
        "wait: by inline assembly",
        (
            WAIT,
            """\
    unsigned long long old;
    do {
        asm volatile("atom.cas.relaxed.gpu.global.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(queue), "l"(base), "l"(next) : "memory");
    } while (old != base);
""",
        ),
    ),
)

ASKING = (
    edited(
        "flag: in a bool",
        (QUEUE, f"    bool asynchronous = {FLAG};\n" + _flag(QUEUE, "asynchronous")),
        (GATE, "    if (!asynchronous) {\n"),
    ),
    edited(
        "flag: in a const auto",
        (QUEUE, f"    const auto asynchronous = {FLAG};\n" + _flag(QUEUE, "asynchronous")),
        (GATE, "    if (!asynchronous) {\n"),
    ),
    edited(
        "flag: in a reference",
        (QUEUE, f"    const auto& asynchronous = {FLAG};\n" + _flag(QUEUE, "asynchronous")),
        (GATE, "    if (!asynchronous) {\n"),
    ),
    edited(
        "flag: negated in a local",
        (QUEUE, f"    const bool by_gpu = !{FLAG};\n    auto queue = {CAST}(by_gpu ? &mvars->tx_wq.ready_head : qp->tx_wq.prod_idx);\n"),
        (GATE, "    if (by_gpu) {\n"),
    ),
    edited(
        "flag: in an int", (QUEUE, f"    const int mode = {FLAG} ? 1 : 0;\n" + _flag(QUEUE, "mode == 1")), (GATE, "    if (mode == 0) {\n")
    ),
    edited(
        "flag: by a helper",
        (
            SUBMIT_HEAD,
            "__device__ static __forceinline__ bool is_async() {\n    return device_state()->use_async_postsend;\n}\n\n" + SUBMIT_HEAD,
        ),
        (QUEUE, _flag(QUEUE, "is_async()")),
        (GATE, "    if (!is_async()) {\n"),
        ("    auto state = device_state();\n    auto mvars = &qp->mvars;\n    const", "    auto mvars = &qp->mvars;\n    const"),
    ),
    edited(
        "flag: by a helper given the state",
        (
            SUBMIT_HEAD,
            "__device__ static __forceinline__ bool is_async(const nvshmemi_ibgda_device_state_t* s) { return s->use_async_postsend; }\n\n"
            + SUBMIT_HEAD,
        ),
        (QUEUE, _flag(QUEUE, "is_async(state)")),
        (GATE, "    if (!is_async(state)) {\n"),
    ),
    edited(
        "flag: by a predicate for the other mode",
        (
            SUBMIT_HEAD,
            "__device__ static __forceinline__ bool rings_itself() { return not device_state()->use_async_postsend; }\n\n" + SUBMIT_HEAD,
        ),
        (QUEUE, f"    auto queue = {CAST}(rings_itself() ? &mvars->tx_wq.ready_head : qp->tx_wq.prod_idx);\n"),
        (GATE, "    if (rings_itself()) {\n"),
    ),
    edited(
        "flag: state by reference",
        (SUBMIT_TOP, SUBMIT_TOP.replace("auto state = device_state()", "auto& state = *device_state()")),
        (QUEUE, _flag(QUEUE, "state.use_async_postsend")),
        (GATE, "    if (!state.use_async_postsend) {\n"),
    ),
    edited(
        "flag: state by const reference",
        (SUBMIT_TOP, SUBMIT_TOP.replace("auto state = device_state()", "const nvshmemi_ibgda_device_state_t& state = *device_state()")),
        (QUEUE, _flag(QUEUE, "state.use_async_postsend")),
        (GATE, "    if (!state.use_async_postsend) {\n"),
    ),
    edited(
        "flag: of the global itself",
        (SUBMIT_TOP, SUBMIT_TOP.replace("    auto state = device_state();\n", "")),
        (QUEUE, _flag(QUEUE, "nvshmemi_ibgda_device_state_d.use_async_postsend")),
        (GATE, "    if (!nvshmemi_ibgda_device_state_d.use_async_postsend) {\n"),
    ),
    edited(
        "flag: of the global by ::",
        (SUBMIT_TOP, SUBMIT_TOP.replace("    auto state = device_state();\n", "")),
        (QUEUE, _flag(QUEUE, "::nvshmemi_ibgda_device_state_d.use_async_postsend")),
        (GATE, "    if (!::nvshmemi_ibgda_device_state_d.use_async_postsend) {\n"),
    ),
    edited(
        "flag: state by a call each time",
        (SUBMIT_TOP, SUBMIT_TOP.replace("    auto state = device_state();\n", "")),
        (QUEUE, _flag(QUEUE, "device_state()->use_async_postsend")),
        (GATE, "    if (!device_state()->use_async_postsend) {\n"),
    ),
    edited(
        "flag: state as a parameter",
        (SUBMIT_HEAD, SUBMIT_HEAD.replace("(nvshmemi", "(nvshmemi_ibgda_device_state_t* state, nvshmemi")),
        (SUBMIT_TOP, SUBMIT_TOP.replace("    auto state = device_state();\n", "")),
    ),
    edited("post: early return", (POST, EARLY)),
    edited("post: early return, braces", (POST, EARLY.replace("postsend)\n        return;", "postsend) {\n        return;\n    }"))),
    edited("post: an empty if and an else", (POST, f"    if ({FLAG}) {{\n        // the proxy does it\n    }} else {{\n{BATCH}    }}\n")),
    edited(
        "post: one condition",
        (
            POST,
            f"    constexpr int kBatch = 4;\n    if (!{FLAG} && (kAlwaysPost || (message + 1) % kBatch == 0))\n        post(qp, next);\n",
        ),
    ),
    edited(
        "post: two ifs without braces",
        (POST, f"    if (!{FLAG})\n        if (kAlwaysPost or (message + 1) % 4 == 0)\n            post(qp, next);\n"),
    ),
    edited(
        "post: if constexpr",
        (
            POST,
            f"    if (!{FLAG}) {{\n        if constexpr (kAlwaysPost) {{\n            post(qp, next);\n        }} else if ((message + 1) % 4 == 0) {{\n            post(qp, next);\n        }}\n    }}\n",
        ),
    ),
    edited(
        "post: the batch decided first",
        (POST, f"    const bool due = kAlwaysPost or (message + 1) % 4 == 0;\n    if (due and not {FLAG})\n        post(qp, next);\n"),
    ),
    edited(
        "post: a switch",
        (
            POST,
            f"    switch ({FLAG}) {{\n        case true: break;\n        case false:\n            if (kAlwaysPost or (message + 1) % 4 == 0)\n                post(qp, next);\n    }}\n",
        ),
    ),
    edited("submit: nothing to do for no entries", (SUBMIT_TOP, "    if (count == 0)\n        return;\n" + SUBMIT_TOP)),
    edited("submit: the fence first", (FENCE, ""), (SUBMIT_TOP, FENCE + SUBMIT_TOP)),
    edited("submit: a fence by membar", (FENCE, '    asm volatile("membar.gl;" ::: "memory");\n'), touched=("membar",)),
    edited(
        "submit: a fence by fence.acq_rel", (FENCE, '    asm volatile("fence.acq_rel.gpu;" ::: "memory");\n'), touched=("fence.acq_rel",)
    ),
    edited(
        "submit: a fence by libcu++",
        (FENCE, "    cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_device);\n"),
        touched=("atomic_thread_fence",),
    ),
    edited(
        "submit: a fence by a helper",
        (SUBMIT_HEAD, "__device__ static __forceinline__ void fence_gpu() {\n    __threadfence();\n}\n\n" + SUBMIT_HEAD),
        (
            SUBMIT_TOP + "\n    // The entries of the work queue must be written before others may post them\n" + FENCE,
            SUBMIT_TOP + "    fence_gpu();\n",
        ),
        touched=("fence_gpu",),
    ),
    edited("submit: the fence under a condition that the caller knows", (FENCE, "    if (count > 0)\n        __threadfence();\n")),
)

DRAINING = (
    edited(
        "quiet: negated choice",
        (
            FRONTIER,
            "    const uint64_t index = !state->use_async_postsend ? load_relaxed(&qp->mvars.tx_wq.ready_head) : load_relaxed(qp->tx_wq.prod_idx);\n",
        ),
    ),
    edited(
        "quiet: choice in the argument",
        (
            FRONTIER,
            "    const uint64_t index = load_relaxed(state->use_async_postsend ? qp->tx_wq.prod_idx : &qp->mvars.tx_wq.ready_head);\n",
        ),
    ),
    edited(
        "quiet: if and else",
        (
            FRONTIER,
            "    uint64_t index;\n    if (state->use_async_postsend)\n        index = load_relaxed(qp->tx_wq.prod_idx);\n    else\n        index = load_relaxed(&qp->mvars.tx_wq.ready_head);\n",
        ),
    ),
    edited(
        "quiet: changed by an if",
        (
            FRONTIER,
            "    uint64_t index = load_relaxed(&qp->mvars.tx_wq.ready_head);\n    if (state->use_async_postsend) {\n        index = load_relaxed(qp->tx_wq.prod_idx);\n    }\n",
        ),
    ),
    edited(
        "quiet: address in a local",
        (
            FRONTIER,
            "    const uint64_t* frontier = state->use_async_postsend ? qp->tx_wq.prod_idx : &qp->mvars.tx_wq.ready_head;\n    const uint64_t index = load_relaxed(frontier);\n",
        ),
        touched=("frontier",),
    ),
    edited(
        "quiet: two waits",
        (
            FRONTIER + "    wait_completion(qp->tx_wq.cq, index);\n",
            "    if (state->use_async_postsend)\n        wait_completion(qp->tx_wq.cq, load_relaxed(qp->tx_wq.prod_idx));\n    else\n        wait_completion(qp->tx_wq.cq, load_relaxed(&qp->mvars.tx_wq.ready_head));\n",
        ),
        touched=("wait_completion",),
    ),
    edited(
        "quiet: given to the wait directly",
        (
            FRONTIER + "    wait_completion(qp->tx_wq.cq, index);\n",
            "    wait_completion(qp->tx_wq.cq, state->use_async_postsend ? load_relaxed(qp->tx_wq.prod_idx) : load_relaxed(&qp->mvars.tx_wq.ready_head));\n",
        ),
        touched=("wait_completion",),
    ),
    edited(
        "quiet: by a helper",
        (
            "// Wait until all that was submitted",
            """\
__device__ static __forceinline__ uint64_t frontier_of(nvshmemi_ibgda_device_qp_t* qp) {
    return device_state()->use_async_postsend ? load_relaxed(qp->tx_wq.prod_idx) : load_relaxed(&qp->mvars.tx_wq.ready_head);
}

// Wait until all that was submitted""",
        ),
        (FRONTIER, "    const uint64_t index = frontier_of(qp);\n"),
        ("    auto qp = find_qp(pe, id);\n    auto state = device_state();\n", "    auto qp = find_qp(pe, id);\n"),
        touched=("frontier_of",),
    ),
    edited(
        "quiet: volatile read",
        (
            FRONTIER,
            "    const uint64_t index = state->use_async_postsend ? *static_cast<volatile uint64_t*>(qp->tx_wq.prod_idx) : *static_cast<volatile uint64_t*>(&qp->mvars.tx_wq.ready_head);\n",
        ),
    ),
    edited(
        "quiet: poll loop as while",
        (
            "    uint16_t done;\n    do {\n        done = __byte_perm(load_relaxed(&entry->wqe_counter), 0, 0x4401);\n    } while (static_cast<uint16_t>(static_cast<uint16_t>(index) - done - static_cast<uint16_t>(2)) < size);\n",
            "    while (true) {\n        const uint16_t done = __byte_perm(load_relaxed(&entry->wqe_counter), 0, 0x4401);\n        if (static_cast<uint16_t>(static_cast<uint16_t>(index) - done - static_cast<uint16_t>(2)) >= size)\n            break;\n    }\n",
        ),
    ),
    edited(
        "quiet: poll inlined",
        (
            FRONTIER + "    wait_completion(qp->tx_wq.cq, index);\n",
            FRONTIER
            + """\
    auto cq = qp->tx_wq.cq;
    const auto entry = static_cast<mlx5_cqe64*>(cq->cqe);
    const uint32_t size = cq->ncqes;
    fence_cta();
    if (*cq->cons_idx >= index)
        return;
    uint16_t done;
    do {
        done = __byte_perm(load_relaxed(&entry->wqe_counter), 0, 0x4401);
    } while (static_cast<uint16_t>(static_cast<uint16_t>(index) - done - static_cast<uint16_t>(2)) < size);
    *cq->cons_idx = index;
    fence_cta();
""",
        ),
    ),
)

LOOKING_UP = (
    edited("lookup: pointer arithmetic", (LOOKUP, "    return state->globalmem.rcs + (pe * per_peer + id % per_peer);\n")),
    edited(
        "lookup: index in a local",
        (LOOKUP, "    const auto slot = pe * per_peer + id % per_peer;\n    return &state->globalmem.rcs[slot];\n"),
        touched=("slot",),
    ),
    edited("lookup: array in a local", (LOOKUP, "    auto rcs = state->globalmem.rcs;\n    return &rcs[pe * per_peer + id % per_peer];\n")),
    edited(
        "lookup: QP in a local",
        (LOOKUP, "    auto* found = &state->globalmem.rcs[pe * per_peer + id % per_peer];\n    return found;\n"),
        touched=("found",),
    ),
    edited(
        "lookup: count inlined",
        ("    const auto per_peer = state->num_rc_per_pe * state->num_devices_initialized;\n", ""),
        (
            LOOKUP,
            "    return &state->globalmem.rcs[pe * state->num_rc_per_pe * state->num_devices_initialized + id % (state->num_rc_per_pe * state->num_devices_initialized)];\n",
        ),
    ),
    edited("lookup: terms in other order", (LOOKUP, "    return &state->globalmem.rcs[id % per_peer + per_peer * pe];\n")),
    edited(
        "lookup: the global itself",
        (
            "    auto state = device_state();\n    const auto per_peer = state->num_rc_per_pe * state->num_devices_initialized;\n" + LOOKUP,
            "    const auto& s = nvshmemi_ibgda_device_state_d;\n    const auto per_peer = s.num_rc_per_pe * s.num_devices_initialized;\n    return &s.globalmem.rcs[pe * per_peer + id % per_peer];\n",
        ),
    ),
    edited(
        "lookup: lane in a local",
        (LOOKUP, "    const int lane = id % per_peer;\n    return &state->globalmem.rcs[pe * per_peer + lane];\n"),
        touched=("lane",),
    ),
    edited(
        "lookup: reference",
        (
            "    auto state = device_state();\n    const auto per_peer",
            "    auto& gm = device_state()->globalmem;\n    auto state = device_state();\n    const auto per_peer",
        ),
        (LOOKUP, LOOKUP.replace("state->globalmem.rcs", "gm.rcs")),
    ),
)

DRIFTS = (*PICKING, *WAITING, *ASKING, *DRAINING, *LOOKING_UP)
