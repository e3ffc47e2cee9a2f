// What every kernel uses: who a thread is, loads of any alignment, conversions between the number formats.
//
// The sources are compiled three ways, with the same bits as the result: by HIP for AMD's cards, by nvcc for NVIDIA's, and
// as plain C++ by the tests (host.h). So they use no more of HIP than host.h has, are compiled with -ffp-contract=off,
// and convert between formats with integers of their own: HIP's fp8 type compiles to a trap on gfx942.
#pragma once

#include <stdint.h>

#if defined(ROOST_ON_HOST)
#include "host.h"
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <hip/hip_runtime.h>
#endif

// Every kernel is started with this many threads a block, and any number of blocks.
enum { ROOST_THREADS = 256 };
#if !defined(ROOST_ON_HOST)
#define ROOST_KERNEL(name, ...) extern "C" __global__ void __launch_bounds__(ROOST_THREADS) name(__VA_ARGS__)
#endif

static __device__ inline uint64_t thread_number() { return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ inline uint64_t thread_count() { return (uint64_t)gridDim.x * blockDim.x; }

union Word {
    float number;
    uint32_t bits;
};
static __device__ inline uint32_t bits_of(float number) { Word word; word.number = number; return word.bits; }
static __device__ inline float float_of(uint32_t bits) { Word word; word.bits = bits; return word.number; }

// Formats of numbers in memory. The host names them by these digits.
struct F32 {
    typedef uint32_t Bits;
    static __device__ inline float load(Bits bits) { return float_of(bits); }
    static __device__ inline Bits store(float number) { return bits_of(number); }
};

struct Bf16 {
    typedef uint16_t Bits;
    static __device__ inline float load(Bits bits) { return float_of((uint32_t)bits << 16); }
    static __device__ inline Bits store(float number) {
        uint32_t bits = bits_of(number);
        // Rounding would carry a NaN's last bits into infinity.
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
        return (Bits)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
    }
};

struct F16 {
    typedef uint16_t Bits;
    static __device__ inline float load(Bits half) {
        uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 0x1f, fraction = half & 0x3ff;
        if (exponent == 0x1f) return float_of(sign | 0x7f800000u | fraction << 13);
        if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
        // Below the normal numbers a step is 2^-24; the product is exact.
        float tiny = (float)fraction * float_of(103u << 23);
        return float_of(sign | bits_of(tiny));
    }
    static __device__ inline Bits store(float number) {
        uint32_t bits = bits_of(number), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffffu;
        if (size > 0x7f800000u) return (Bits)(sign | 0x7e00 | (size >> 13 & 0x3ff));
        if (size >= 0x477ff000u) return (Bits)(sign | 0x7c00); // 65520 and all above round to infinity
        if (size >= 0x38800000u) return (Bits)(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13));
        if (size < 0x33000000u) return (Bits)sign; // below half of the smallest
        uint32_t fraction = (size & 0x7fffffu) | 0x800000u, shift = 126 - (size >> 23);
        uint32_t half = 1u << (shift - 1);
        return (Bits)(sign | ((fraction + half - 1 + (fraction >> shift & 1)) >> shift));
    }
};

// Eight bits with four of exponent and three of fraction. OCP: bias 7, up to 448, NaN is 0x7f and 0xff. FNUZ, which the
// matrix units of gfx942 read: bias 8, up to 240, one zero, NaN in place of its negative.
template <bool Fnuz> struct E4m3 {
    static constexpr int Bias = Fnuz ? 8 : 7;
    static constexpr uint32_t Most = Fnuz ? 0x43700000u : 0x43e00000u; // 240, 448
    static __device__ inline float largest() { return float_of(Most); }

    // To the nearest, ties to even. Finite numbers beyond the largest become the largest; infinity and NaN become NaN, so
    // that a gradient that has burst is still seen at the other end.
    static __device__ inline uint8_t store(float number) {
        uint32_t bits = bits_of(number), sign = bits >> 24 & 0x80, size = bits & 0x7fffffffu;
        if (size >= 0x7f800000u) return Fnuz ? 0x80 : (uint8_t)(sign | 0x7f);
        if (size > Most) size = Most;
        uint32_t code;
        if (size >= (uint32_t)(128 - Bias) << 23) {
            code = (size - ((uint32_t)(127 - Bias) << 23) + 0x7ffffu + (size >> 20 & 1)) >> 20;
        } else {
            // Below the normal numbers a step is 2^(1 - Bias - 3). Adding 1.5 * 2^23 steps leaves their count, rounded.
            float shifter = float_of((uint32_t)(127 + 23 + 1 - Bias - 3) << 23 | 0x400000u);
            code = bits_of(float_of(size) + shifter) & 0xff;
        }
        if (Fnuz && code == 0) return 0;
        return (uint8_t)(sign | code);
    }
    static __device__ inline float load(uint8_t code) {
        uint32_t sign = (uint32_t)(code & 0x80) << 24, exponent = code >> 3 & 0xf, fraction = code & 7;
        if (Fnuz ? code == 0x80 : (code & 0x7f) == 0x7f) return float_of(0x7fc00000u | sign);
        if (exponent) return float_of(sign | (exponent + 127 - Bias) << 23 | fraction << 20);
        float tiny = (float)fraction * float_of((uint32_t)(127 + 1 - Bias - 3) << 23);
        return float_of(sign | bits_of(tiny));
    }
};

// Sixteen bytes at a time where the address allows it: the widest load that the cards have.
struct alignas(16) Wide {
    uint32_t words[4];
};
static __device__ inline bool is_wide(const void *address) { return ((uintptr_t)address & 15) == 0; }

// Elements that are loaded and stored together.
template <class Format, uint64_t N> struct alignas(N * sizeof(typename Format::Bits)) Lanes {
    typedef typename Format::Bits Bits;
    static constexpr uint64_t Count = N;
    Bits lanes[N];
    static __device__ inline Lanes load(const Bits *from) { return *reinterpret_cast<const Lanes *>(from); }
    __device__ inline void store(Bits *to) const { *reinterpret_cast<Lanes *>(to) = *this; }
    static __device__ inline bool fits(const Bits *address) { return (uintptr_t)address % sizeof(Lanes) == 0; }
};
template <class Format> using Vector = Lanes<Format, 16 / sizeof(typename Format::Bits)>;
