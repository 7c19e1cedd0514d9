"""CUDA's built-in functions that order or touch memory (CUDA C++ Programming Guide, "Memory Fence
Functions", "Atomic Functions"), and those that only pass a value on."""

from __future__ import annotations

import re

from patcher.machine.events import Scope

FENCES = {"__threadfence_block": Scope.CTA, "__threadfence": Scope.GPU, "__threadfence_system": Scope.SYS}
BARRIERS = frozenset({"__syncwarp", "__syncthreads", "__barrier_sync", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or"})
TRAPS = frozenset({"__trap", "trap", "abort", "exit", "__builtin_trap", "__builtin_unreachable", "__builtin_abort"})
IGNORED = frozenset({"printf", "EP_STATIC_ASSERT", "static_assert", "__nanosleep", "__builtin_assume", "__builtin_unused"})
ASSERTIONS = frozenset({"assert", "EP_DEVICE_ASSERT"})
FIRST_ARGUMENT = frozenset(
    {
        "likely", "unlikely", "__builtin_expect", "move", "forward", "as_const", "addressof", "__ldg", "__ldcg", "__ldcv", "__ldlu",
        "__cvta_generic_to_global", "reinterpret_cast", "static_cast", "const_cast", "dynamic_cast", "bit_cast", "ACCESS_ONCE",
        "READ_ONCE",
    }
)  # fmt: skip
SHUFFLES = frozenset({"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"})
_ATOMIC = re.compile(r"atomic(CAS|Max|Min|Add|Sub|Exch|And|Or|Xor|Inc|Dec)(_block|_system)?$")
_SUFFIX = {None: Scope.GPU, "_block": Scope.CTA, "_system": Scope.SYS}
_METHODS = {"fetch_max": "max", "fetch_min": "min", "fetch_add": "add", "fetch_sub": "sub", "fetch_or": "or", "fetch_and": "and",
            "exchange": "exch", "compare_exchange_strong": "cas", "compare_exchange_weak": "cas"}  # fmt: skip
_TYPE_NAME = re.compile(
    r"(?:(?:u?int(?:\d+|ptr|_fast\d+|_least\d+)?|size|ptrdiff|__be\d+|__u\d+)(?:_t)?|unsigned|signed|int|long|short|char|bool|float|double|dim3)$"
)


def atomic(name: str) -> tuple[str, Scope] | None:
    """The kind and scope of a CUDA atomic function."""
    match = _ATOMIC.match(name)
    return (match[1].lower(), _SUFFIX[match[2]]) if match else None


def method(name: str) -> str | None:
    """The read-modify-write that a member of ``cuda::atomic_ref`` is."""
    return _METHODS.get(name)


def thread_scope(text: str) -> Scope:
    """The scope in the text of a ``cuda::atomic_ref`` type or a fence's argument (libcu++: default system)."""
    for word, scope in (("thread_scope_block", Scope.CTA), ("thread_scope_device", Scope.GPU), ("thread_scope_system", Scope.SYS)):
        if word in text:
            return scope
    return Scope.SYS


def is_type_name(name: str) -> bool:
    """Whether ``name(x)`` is a conversion."""
    return _TYPE_NAME.match(name.removeprefix("std::")) is not None or name.startswith(("unsigned ", "signed ", "long "))
