"""Other layout: line endings, indentation, braces, comments, parentheses, casts, macros."""

from __future__ import annotations

import re

from tests.drift.base import (
    FENCE,
    FRONTIER,
    GATE,
    LOOKUP,
    POST,
    QUEUE,
    SUBMIT_HEAD,
    SUBMIT_TOP,
    WAIT,
    edited,
    encoded,
    rewritten,
)

_LURES = """\
/* The queue was once taken like this:
 *
 *     auto queue = &qp->mvars.tx_wq.ready_head;
 *     while (atomicCAS(queue, base, next) != base) { __threadfence_system(); }
 *     atomicMax_system(qp->tx_wq.bf, next);
 * }
 */
"""
_DEAD = """\
#if 0
    // An older form
    while (atomicCAS(reinterpret_cast<unsigned long long*>(&qp->mvars.tx_wq.ready_head), base, next) != base) { break; }
    atomicMax_system(reinterpret_cast<unsigned long long*>(qp->tx_wq.bf), next);
#endif
"""


def _two_spaces(text: str) -> str:
    return re.sub(r"^(?: {4})+", lambda m: m[0].replace("    ", "  "), text, flags=re.M)


def _tabs(text: str) -> str:
    return re.sub(r"^(?: {4})+", lambda m: m[0].replace("    ", "\t"), text, flags=re.M)


def _allman(text: str) -> str:
    return re.sub(r"^( *)(.*\S) \{$", r"\1\2\n\1{", text, flags=re.M)


def _one_line(text: str) -> str:
    """Each function but submit and drain as one line."""
    parts = re.split(r"(?m)^(?=template|__device__|// |\}  //)", text)
    return "".join(p if "//" in p else " ".join(p.split()) + "\n\n" if p.startswith("__device__") else p for p in parts)


def _submit_in_one_line(text: str) -> str:
    start, end = text.index(SUBMIT_HEAD), text.index("__device__ static __forceinline__ uint64_t reserve")
    return text[:start] + " ".join(re.sub(r"//[^\n]*", "", text[start:end]).split()) + "\n\n" + text[end:]


def _joined(text: str) -> str:
    """The statements of submit on few lines."""
    start, end = text.index(SUBMIT_TOP), text.index("__device__ static __forceinline__ uint64_t reserve")
    body = re.sub(r"//[^\n]*\n\s*", "", text[start:end])
    return text[:start] + re.sub(r";\n\s*(?=[a-zA-Z])", "; ", body) + text[end:]


def _specifier_macro(text: str) -> str:
    head = "#define EP_DEVICE __device__ static __forceinline__\n\n"
    start = text.index("namespace sample_ep")
    return text[:start] + head + text[start:].replace("__device__ static __forceinline__ ", "EP_DEVICE ")


def _trailing_space(text: str) -> str:
    return re.sub(r"(?m)([;{}])$", r"\1  ", text)


DRIFTS = (
    rewritten("layout: two spaces", _two_spaces),
    rewritten("layout: tabs", _tabs),
    rewritten("layout: Allman braces", _allman),
    rewritten("layout: one-line functions", _one_line, touched=("ring_doorbell", "write_doorbell_record")),
    rewritten("layout: submit in one line", _submit_in_one_line, touched=("template",)),
    rewritten("layout: several statements on a line", _joined, touched=("auto state", "constexpr", "kBatch")),
    rewritten("layout: white space at ends of lines", _trailing_space),
    edited("layout: semicolon of the wait on its line", (WAIT, "    while (atomicCAS(queue, base, next) != base);\n")),
    edited(
        "layout: semicolon of the wait on the next line, not indented", (WAIT, "    while (atomicCAS(queue, base, next) != base)\n    ;\n")
    ),
    edited("layout: wait with empty braces", (WAIT, "    while (atomicCAS(queue, base, next) != base) {}\n")),
    edited("layout: wait with empty braces on two lines", (WAIT, "    while (atomicCAS(queue, base, next) != base) {\n    }\n")),
    edited(
        "layout: braces everywhere",
        (WAIT, "    while (atomicCAS(queue, base, next) != base) {\n        ;\n    }\n"),
        (
            "        if (kAlwaysPost or (message + 1) % kBatch == 0)\n            post(qp, next);\n",
            "        if (kAlwaysPost or (message + 1) % kBatch == 0) {\n            post(qp, next);\n        }\n",
        ),
        ("    if (*cq->cons_idx >= index)\n        return;\n", "    if (*cq->cons_idx >= index) {\n        return;\n    }\n"),
    ),
    edited(
        "layout: no braces where there can be none",
        (
            "    if (index > posted) {\n        write_doorbell_record(qp, index);\n        ring_doorbell(qp, index);\n    }\n",
            "    if (index > posted)\n        write_doorbell_record(qp, index), ring_doorbell(qp, index);\n",
        ),
        touched=("ring_doorbell",),
    ),
    edited(
        "layout: a statement continued with backslashes",
        (QUEUE, QUEUE.replace("(state", "( \\\n        state").replace(" ? ", " \\\n        ? ")),
    ),
    edited(
        "layout: the queue over many lines",
        (QUEUE, QUEUE.replace("(state", "(\n        state").replace(" ? ", "\n            ? ").replace(" : ", "\n            : ")),
    ),
    edited(
        "layout: two declarations in one statement",
        (QUEUE, QUEUE.replace("auto queue", "unsigned long long *unused = nullptr, *queue")),
        touched=("unused",),
    ),
    encoded("bytes: CRLF", lambda b: b.replace(b"\n", b"\r\n")),
    encoded("bytes: BOM", lambda b: b"\xef\xbb\xbf" + b),
    encoded("bytes: BOM and CRLF and tabs", lambda b: b"\xef\xbb\xbf" + _tabs(b.decode()).encode().replace(b"\n", b"\r\n")),
    encoded("bytes: no newline at the end", lambda b: b.rstrip(b"\n")),
    encoded(
        "bytes: Latin-1 in comments",
        lambda b: b.replace(b"// Wait for", b"// f\xfcr Geb\xfchr \xa9: wait for").replace(
            b"// The GPU posts", b"/* \xe9\xe8 */ // The GPU posts"
        ),
    ),
    encoded("bytes: Latin-1 beside each statement", lambda b: b.replace(b";\n\n", b";  // \xb5\xdf\n\n")),
    encoded("bytes: a form feed and a NUL in a comment", lambda b: b.replace(b"// The queue pair", b"\x0c// \x00 The queue pair")),
    edited(
        "comments: in the choice of the queue",
        (QUEUE, QUEUE.replace(" ? ", " /* CPU proxy */ ? /* its index */ ").replace(" : ", " /* else */ : /* ours */ ")),
    ),
    edited(
        "comments: line comments in the choice of the queue",
        (QUEUE, QUEUE.replace(" ? ", "  // with a proxy\n        ? ").replace(" : ", "  // its ?: queue\n        : ")),
    ),
    edited(
        "comments: between the wait and its semicolon",
        (
            WAIT,
            "    while (atomicCAS(queue, base, next) != base)\n        /* spin */  // atomicCAS(queue, next, base)\n        ;  // won\n",
        ),
    ),
    edited(
        "comments: in the arguments of the CAS",
        (WAIT, "    while (atomicCAS(/* address */ queue, /* old */ base, /* new, */ next) /* was */ != base)\n        ;\n"),
    ),
    edited(
        "comments: lures round submit",
        (SUBMIT_HEAD, _LURES + SUBMIT_HEAD),
        (FENCE, "    // atomicCAS(queue, base, next) __threadfence_system();\n" + FENCE),
    ),
    edited("comments: quotes and braces that do not balance", (FENCE, "    // don't { \"post\n    /* isn't } here ( */\n" + FENCE)),
    edited("comments: code behind the wait is commented out", (WAIT, WAIT + "    // __threadfence_system();\n    /* fence_cta(); */\n")),
    edited("comments: an older form in #if 0", (WAIT, _DEAD + WAIT)),
    edited(
        "comments: after each statement of submit",
        (QUEUE, QUEUE.replace(";\n", ";  // ready_head or prod_idx\n")),
        (FENCE, FENCE.replace(";\n", "; /* gpu */\n")),
        (WAIT, WAIT.replace(";\n", ";  // turn\n")),
    ),
    edited(
        "comments: a block comment ends on the line of the wait",
        (WAIT, "    /* in\n       order */ while (atomicCAS(queue, base, next) != base)\n        ;\n"),
        touched=("order",),
    ),
    edited(
        "comments: in the index of the lookup",
        (LOOKUP, "    return &state->globalmem.rcs[/* peer */ pe * per_peer + /* lane */ id % per_peer];  // rcs[id]\n"),
    ),
    edited(
        "comments: in the frontier",
        (FRONTIER, FRONTIER.replace(" ? ", " /* async? */ ? ").replace(" : ", "\n        // ready_head : prod_idx\n        : ")),
    ),
    edited(
        "parentheses: everywhere",
        (
            QUEUE,
            "    auto queue = (reinterpret_cast<unsigned long long*>(((state->use_async_postsend)) ? ((qp)->tx_wq.prod_idx) : (&((mvars)->tx_wq.ready_head))));\n",
        ),
        (WAIT, "    while (((atomicCAS((queue), (base), (next))) != (base)))\n        ;\n"),
        (GATE, "    if ((!(state->use_async_postsend))) {\n"),
    ),
    edited(
        "parentheses: members by (*p)",
        ("    auto mvars = &qp->mvars;\n    const uint64_t next", "    auto mvars = &((*qp).mvars);\n    const uint64_t next"),
        (QUEUE, QUEUE.replace("state->", "(*state).").replace("qp->", "(*qp).").replace("mvars->", "(*mvars).")),
    ),
    edited(
        "casts: C style",
        (QUEUE, "    auto queue = (unsigned long long*)(state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);\n"),
    ),
    edited(
        "casts: C style, long long int",
        (
            QUEUE,
            "    unsigned long long int* queue = (unsigned long long int*)(state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);\n",
        ),
    ),
    edited(
        "casts: one in each arm",
        (
            QUEUE,
            "    auto queue = state->use_async_postsend ? (unsigned long long*)qp->tx_wq.prod_idx : (unsigned long long*)&mvars->tx_wq.ready_head;\n",
        ),
    ),
    edited(
        "casts: by void",
        (
            QUEUE,
            "    auto queue = static_cast<unsigned long long*>(static_cast<void*>(state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head));\n",
        ),
    ),
    edited(
        "casts: const_cast round",
        (
            QUEUE,
            "    auto queue = const_cast<unsigned long long*>(reinterpret_cast<const unsigned long long*>(state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head));\n",
        ),
    ),
    edited(
        "casts: of the values",
        (
            WAIT,
            "    while (atomicCAS(queue, static_cast<unsigned long long>(base), (unsigned long long)next) != (unsigned long long)(base))\n        ;\n",
        ),
    ),
    edited(
        "casts: functional",
        (WAIT, "    while (atomicCAS(queue, u64(base), u64(next)) != u64{base})\n        ;\n"),
        (
            "namespace sample_ep {\n\n__device__ static __forceinline__ nvshmemi_ibgda_device_state_t*",
            "namespace sample_ep {\n\nusing u64 = unsigned long long;\n\n__device__ static __forceinline__ nvshmemi_ibgda_device_state_t*",
        ),
    ),
    edited(
        "casts: to an alias",
        ("    const uint64_t next = base + count;\n", "    using word = unsigned long long;\n    const uint64_t next = base + count;\n"),
        (QUEUE, QUEUE.replace("unsigned long long*", "word*")),
    ),
    edited(
        "casts: a macro for the type",
        (SUBMIT_HEAD, "#define U64P(x) reinterpret_cast<unsigned long long*>(x)\n\n" + SUBMIT_HEAD),
        (QUEUE, "    auto queue = U64P(state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);\n"),
    ),
    edited(
        "casts: an object-like macro for the type",
        (SUBMIT_HEAD, "#define WORD unsigned long long\n\n" + SUBMIT_HEAD),
        (QUEUE, QUEUE.replace("unsigned long long*", "WORD*")),
    ),
    edited(
        "casts: the flag to bool",
        (QUEUE, QUEUE.replace("state->use_async_postsend", "static_cast<bool>(state->use_async_postsend)")),
        (GATE, "    if (!bool(state->use_async_postsend)) {\n"),
    ),
    edited(
        "macros: the spin",
        (SUBMIT_HEAD, "#define SPIN_UNTIL(condition) \\\n    while (!(condition))       \\\n        ;\n\n" + SUBMIT_HEAD),
        (WAIT, "    SPIN_UNTIL(atomicCAS(queue, base, next) == base);\n"),
    ),
    edited(
        "macros: the spin by do-while(0)",
        (SUBMIT_HEAD, "#define SPIN_WHILE(condition) do { while (condition) {} } while (0)\n\n" + SUBMIT_HEAD),
        (WAIT, "    SPIN_WHILE(atomicCAS(queue, base, next) != base);\n"),
    ),
    edited(
        "macros: the whole wait",
        (SUBMIT_HEAD, "#define WAIT_TURN(q, from, to) while (atomicCAS((q), (from), (to)) != (from)) {}\n\n" + SUBMIT_HEAD),
        (WAIT, "    WAIT_TURN(queue, base, next)\n"),
    ),
    edited(
        "macros: the whole wait, with a semicolon",
        (SUBMIT_HEAD, "#define WAIT_TURN(q, from, to) while (atomicCAS((q), (from), (to)) != (from))\n\n" + SUBMIT_HEAD),
        (WAIT, "    WAIT_TURN(queue, base, next);\n"),
    ),
    edited(
        "macros: the fence",
        (SUBMIT_HEAD, "#define EP_FENCE() __threadfence()\n\n" + SUBMIT_HEAD),
        (FENCE, "    EP_FENCE();\n"),
        touched=("EP_FENCE",),
    ),
    edited(
        "macros: the fence, object-like",
        (SUBMIT_HEAD, "#define WQE_FENCE __threadfence()\n\n" + SUBMIT_HEAD),
        (FENCE, "    WQE_FENCE;\n"),
        touched=("WQE_FENCE",),
    ),
    edited(
        "macros: the flag",
        (SUBMIT_HEAD, "#define IS_ASYNC(s) ((s)->use_async_postsend)\n\n" + SUBMIT_HEAD),
        (QUEUE, QUEUE.replace("state->use_async_postsend", "IS_ASYNC(state)")),
        (GATE, "    if (!IS_ASYNC(state)) {\n"),
    ),
    edited(
        "macros: the number of messages",
        (SUBMIT_HEAD, "#define POST_BATCH 4\n\n" + SUBMIT_HEAD),
        ("        constexpr int kBatch = 4;\n", ""),
        ("% kBatch", "% POST_BATCH"),
    ),
    edited(
        "macros: a guard round the functions",
        ("namespace sample_ep {\n\n__device__", "#ifndef EP_HOST_ONLY\n\nnamespace sample_ep {\n\n__device__"),
        ("}  // namespace sample_ep\n", "}  // namespace sample_ep\n\n#endif  // EP_HOST_ONLY\n"),
    ),
    edited("macros: a switch of their own round the post", (POST, "#ifndef EP_NEVER_POST\n" + POST + "#endif\n")),
    rewritten("macros: one for the specifiers", _specifier_macro),
    rewritten(
        "specifiers: static inline and noinline",
        lambda t: t.replace("__device__ static __forceinline__ void", "static __device__ __noinline__ void").replace(
            "__device__ static __forceinline__", "static inline __device__"
        ),
    ),
    rewritten(
        "specifiers: attributes",
        lambda t: t.replace(
            "__device__ static __forceinline__ void", "[[maybe_unused]] __device__ static __attribute__((always_inline)) void"
        ).replace("__device__ static __forceinline__", "[[nodiscard]] __device__ inline"),
    ),
    rewritten(
        "specifiers: restrict, const, east const",
        lambda t: t.replace(
            "void submit(nvshmemi_ibgda_device_qp_t* qp, uint64_t base, uint32_t count",
            "void submit(nvshmemi_ibgda_device_qp_t* __restrict__ const qp, uint64_t const base, uint32_t const count",
        ),
    ),
    rewritten(
        "specifiers: trailing return types and noexcept",
        lambda t: re.sub(r"__forceinline__ void (\w+)\(([^)]*)\) \{", r"__forceinline__ auto \1(\2) noexcept -> void {", t),
    ),
)
