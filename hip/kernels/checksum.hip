// A checksum of memory that may be taken in any order and in parts: state that came from several donors is checked by
// adding up their sums.
//
// Memory is words of eight bytes, little end first, the last one filled with zeros. The sum, modulo 2^64, of each word
// mixed with its number: a bit that flips, a word that is missing, and two that changed places all change it. Splitmix's
// mixing does the rest. The length is mixed in by the host, which also adds parts.
#include "device.h"

static __device__ inline uint64_t mix(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

static __device__ inline uint64_t mixed(uint64_t word, uint64_t number) {
    return mix(word ^ mix((number + 1) * 0x9e3779b97f4a7c15u));
}

// `first` is the number of the first word: where a part begins in the whole.
ROOST_KERNEL(roost_checksum, const uint8_t *memory, uint64_t bytes, uint64_t first, unsigned long long *sum) {
    uint64_t words = bytes / 8, mine = 0;
    if (is_wide(memory)) {
        const Wide *wides = reinterpret_cast<const Wide *>(memory);
        for (uint64_t i = thread_number(); i < words / 2; i += thread_count()) {
            Wide wide = wides[i];
            mine += mixed(wide.words[0] | (uint64_t)wide.words[1] << 32, first + 2 * i);
            mine += mixed(wide.words[2] | (uint64_t)wide.words[3] << 32, first + 2 * i + 1);
        }
        if (words % 2 && thread_number() == 0) {
            Wide wide = {};
            __builtin_memcpy(&wide, memory + 8 * (words - 1), 8);
            mine += mixed(wide.words[0] | (uint64_t)wide.words[1] << 32, first + words - 1);
        }
    } else {
        for (uint64_t i = thread_number(); i < words; i += thread_count()) {
            uint64_t word = 0;
            for (uint32_t j = 0; j < 8; j++) word |= (uint64_t)memory[8 * i + j] << (8 * j);
            mine += mixed(word, first + i);
        }
    }
    if (bytes % 8 && thread_number() == 0) {
        uint64_t word = 0;
        for (uint32_t j = 0; j < bytes % 8; j++) word |= (uint64_t)memory[8 * words + j] << (8 * j);
        mine += mixed(word, first + words);
    }
    // One addition a block: thousands of threads at one address would wait for each other.
    __shared__ unsigned long long sums[ROOST_THREADS];
    sums[threadIdx.x] = mine;
    __syncthreads();
    for (uint32_t width = ROOST_THREADS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(sum, sums[0]);
}
