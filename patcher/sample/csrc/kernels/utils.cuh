#pragma once

#include <cstdint>

namespace sample_ep {

__device__ __forceinline__ void fence_cta() {
    asm volatile("fence.acq_rel.cta;" ::: "memory");
}

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* ptr) {
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(ptr));
    return value;
}

__device__ __forceinline__ uint16_t load_relaxed(const uint16_t* ptr) {
    uint16_t value;
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(value) : "l"(ptr));
    return value;
}

__device__ __forceinline__ void store_relaxed(const int* ptr, int value) {
    asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(ptr), "r"(value));
}

__device__ __forceinline__ void store_release(const uint32_t* ptr, uint32_t value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(ptr), "r"(value));
}

__device__ __forceinline__ void store_release(const uint64_t* ptr, uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(ptr), "l"(value));
}

}  // namespace sample_ep
