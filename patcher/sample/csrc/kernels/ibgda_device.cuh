#pragma once

#include <nvshmem.h>
#include <device_host_transport/nvshmem_common_ibgda.h>

#include "utils.cuh"

namespace sample_ep {

__device__ static __forceinline__ nvshmemi_ibgda_device_state_t* device_state() {
    return &nvshmemi_ibgda_device_state_d;
}

// The queue pair that this rank has with peer `pe`
__device__ static __forceinline__ nvshmemi_ibgda_device_qp_t* find_qp(int pe, int id) {
    auto state = device_state();
    const auto per_peer = state->num_rc_per_pe * state->num_devices_initialized;
    return &state->globalmem.rcs[pe * per_peer + id % per_peer];
}

__device__ static __forceinline__ void take_lock(int* lock) {
    while (atomicCAS(lock, 0, 1) != 0)
        ;
    fence_cta();
}

__device__ static __forceinline__ void give_lock(int* lock) {
    fence_cta();
    store_relaxed(lock, 0);
}

__device__ static __forceinline__ void write_doorbell_record(nvshmemi_ibgda_device_qp_t* qp, uint64_t index) {
    store_release(reinterpret_cast<uint32_t*>(qp->tx_wq.dbrec), __byte_perm(index & 0xffff, 0, 0x0123));
}

__device__ static __forceinline__ void ring_doorbell(nvshmemi_ibgda_device_qp_t* qp, uint64_t index) {
    const uint32_t high = __byte_perm(qp->qpn << 8, 0, 0x0123), low = __byte_perm(index << 8, 0, 0x0123);
    store_release(reinterpret_cast<uint64_t*>(qp->tx_wq.bf), static_cast<uint64_t>(high) << 32 | low);
}

__device__ static __forceinline__ void post(nvshmemi_ibgda_device_qp_t* qp, uint64_t index) {
    auto mvars = &qp->mvars;
    take_lock(&mvars->post_send_lock);
    const auto posted = atomicMax(reinterpret_cast<unsigned long long*>(&mvars->tx_wq.prod_idx), index);
    if (index > posted) {
        write_doorbell_record(qp, index);
        ring_doorbell(qp, index);
    }
    give_lock(&mvars->post_send_lock);
}

template <bool kAlwaysPost>
__device__ static __forceinline__ void submit(nvshmemi_ibgda_device_qp_t* qp, uint64_t base, uint32_t count, int message = 0) {
    auto state = device_state();
    auto mvars = &qp->mvars;
    const uint64_t next = base + count;

    // The entries of the work queue must be written before others may post them
    __threadfence();

    auto queue = reinterpret_cast<unsigned long long*>(state->use_async_postsend ? qp->tx_wq.prod_idx : &mvars->tx_wq.ready_head);

    // Wait for the submitters of earlier entries
    while (atomicCAS(queue, base, next) != base)
        ;

    // The GPU posts, four messages at a time
    if (!state->use_async_postsend) {
        constexpr int kBatch = 4;
        if (kAlwaysPost or (message + 1) % kBatch == 0)
            post(qp, next);
    }
}

__device__ static __forceinline__ uint64_t reserve(nvshmemi_ibgda_device_qp_t* qp, uint32_t count) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(&qp->mvars.tx_wq.resv_head), static_cast<unsigned long long>(count));
}

__device__ static __forceinline__ void wait_completion(nvshmemi_ibgda_device_cq_t* cq, uint64_t index) {
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
}

// Wait until all that was submitted to `pe` is done
__device__ static __forceinline__ void drain(int pe, int id) {
    auto qp = find_qp(pe, id);
    auto state = device_state();
    const uint64_t index = state->use_async_postsend ? load_relaxed(qp->tx_wq.prod_idx) : load_relaxed(&qp->mvars.tx_wq.ready_head);
    wait_completion(qp->tx_wq.cq, index);
}

}  // namespace sample_ep
