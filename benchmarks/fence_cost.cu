// What the fence before a submission costs, by scope: a warp writes a message of a token's size, synchronises, and
// one lane fences and then swaps an index, as the submit path does.  Prints cycles of the fence alone and
// nanoseconds per message for the whole, medians over blocks, for several numbers of blocks and message sizes.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 benchmarks/fence_cost.cu -o fence_cost && ./fence_cost
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                      \
    do {                                                                                 \
        cudaError_t status = (call);                                                     \
        if (status != cudaSuccess) {                                                     \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
            std::exit(1);                                                                \
        }                                                                                \
    } while (0)

enum Scope { kNone, kGpu, kSystem };

template <Scope kScope>
__global__ void send(int4* buffer, unsigned long long* index, long long* cycles, int vectors, int messages) {
    const int lane = threadIdx.x;
    int4* mine = buffer + static_cast<size_t>(blockIdx.x) * vectors;
    long long spent = 0;
    for (int message = 0; message < messages; ++message) {
        for (int i = lane; i < vectors; i += 32)
            mine[i] = make_int4(message, i, lane, blockIdx.x);
        __syncwarp();
        if (lane == 0) {
            const long long start = clock64();
            if (kScope == kGpu)
                __threadfence();
            else if (kScope == kSystem)
                __threadfence_system();
            spent += clock64() - start;
            atomicCAS(index + blockIdx.x, message, message + 1);
        }
        __syncwarp();
    }
    if (lane == 0)
        cycles[blockIdx.x] = spent / messages;
}

template <Scope kScope>
void measure(const char* name, int blocks, int bytes, int messages) {
    const int vectors = bytes / sizeof(int4);
    int4* buffer;
    unsigned long long* index;
    long long* cycles;
    CHECK(cudaMalloc(&buffer, static_cast<size_t>(blocks) * bytes));
    CHECK(cudaMalloc(&index, blocks * sizeof(*index)));
    CHECK(cudaMalloc(&cycles, blocks * sizeof(*cycles)));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    std::vector<long long> fence(blocks);
    for (int run = 0; run < 7; ++run) {
        CHECK(cudaMemset(index, 0, blocks * sizeof(*index)));
        CHECK(cudaEventRecord(begin));
        send<kScope><<<blocks, 32>>>(buffer, index, cycles, vectors, messages);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float milliseconds;
        CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
        if (run > 1)
            times.push_back(milliseconds * 1e6f / messages);
    }
    CHECK(cudaMemcpy(fence.data(), cycles, blocks * sizeof(long long), cudaMemcpyDeviceToHost));
    std::nth_element(fence.begin(), fence.begin() + blocks / 2, fence.end());
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    std::printf("%-7s %4d blocks %6d bytes: fence %6lld cycles, message %8.0f ns\n", name, blocks, bytes, fence[blocks / 2],
                times[times.size() / 2]);
    CHECK(cudaFree(buffer));
    CHECK(cudaFree(index));
    CHECK(cudaFree(cycles));
}

int main() {
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    std::printf("%s, %d SMs\n", properties.name, properties.multiProcessorCount);
    for (int blocks : {1, 24, 132, 528})
        for (int bytes : {256, 7168, 14336}) {
            measure<kNone>("none", blocks, bytes, 2000);
            measure<kGpu>("gpu", blocks, bytes, 2000);
            measure<kSystem>("system", blocks, bytes, 2000);
        }
    return 0;
}
