// Rows of numbers as eight-bit codes with one scale a row, and back.
#include "device.h"

// The largest of the block's numbers, which are finite and not negative. Whole numbers of the same order are compared, so
// that no rule about NaN comes into it.
static __device__ inline uint32_t largest_of_block(uint32_t bits) {
    __shared__ uint32_t seen[ROOST_THREADS];
    seen[threadIdx.x] = bits;
    __syncthreads();
    for (uint32_t width = ROOST_THREADS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width && seen[threadIdx.x + width] > seen[threadIdx.x]) seen[threadIdx.x] = seen[threadIdx.x + width];
        __syncthreads();
    }
    uint32_t most = seen[0];
    __syncthreads();
    return most;
}

template <class Format> static __device__ inline uint32_t finite_size(typename Format::Bits element) {
    uint32_t size = bits_of(Format::load(element)) & 0x7fffffffu;
    return size < 0x7f800000u ? size : 0;
}

// What a code is worth: the row's largest finite number becomes the largest code. A row of zeros, infinities and NaN has
// the scale 1; none is below the smallest normal number, whose inverse is still finite.
template <bool Fnuz> static __device__ inline float scale_for(uint32_t largest) {
    if (largest == 0) return 1.0f;
    float scale = float_of(largest) / E4m3<Fnuz>::largest();
    return scale < float_of(1u << 23) ? float_of(1u << 23) : scale;
}

// A row is `columns` long and begins `stride` elements after the one before it; codes lie close. With `given`, scales are
// read instead of computed.
template <class Format, bool Fnuz>
static __device__ inline void quantise(const typename Format::Bits *numbers, uint64_t rows, uint64_t columns, uint64_t stride,
                                       uint8_t *codes, float *scales, uint32_t given) {
    for (uint64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const typename Format::Bits *from = numbers + row * stride;
        uint8_t *to = codes + row * columns;
        uint64_t wide = is_wide(from) ? columns / Vector<Format>::Count : 0, done = wide * Vector<Format>::Count;
        float scale;
        if (given) {
            scale = scales[row];
        } else {
            uint32_t largest = 0;
            for (uint64_t i = threadIdx.x; i < wide; i += blockDim.x) {
                Vector<Format> vector = Vector<Format>::load(from + i * Vector<Format>::Count);
                for (uint64_t j = 0; j < Vector<Format>::Count; j++) {
                    uint32_t size = finite_size<Format>(vector.lanes[j]);
                    if (size > largest) largest = size;
                }
            }
            for (uint64_t i = done + threadIdx.x; i < columns; i += blockDim.x) {
                uint32_t size = finite_size<Format>(from[i]);
                if (size > largest) largest = size;
            }
            scale = scale_for<Fnuz>(largest_of_block(largest));
            if (threadIdx.x == 0) scales[row] = scale;
        }
        float inverse = 1.0f / scale;
        // Four codes are one store; a row that is not aligned for that goes byte by byte.
        if (((uintptr_t)to & 3) != 0) wide = done = 0;
        for (uint64_t i = threadIdx.x; i < wide; i += blockDim.x) {
            Vector<Format> vector = Vector<Format>::load(from + i * Vector<Format>::Count);
            for (uint64_t j = 0; j < Vector<Format>::Count; j += 4) {
                uint32_t word = 0;
                for (uint32_t k = 0; k < 4; k++)
                    word |= (uint32_t)E4m3<Fnuz>::store(Format::load(vector.lanes[j + k]) * inverse) << (8 * k);
                *reinterpret_cast<uint32_t *>(to + i * Vector<Format>::Count + j) = word;
            }
        }
        for (uint64_t i = done + threadIdx.x; i < columns; i += blockDim.x)
            to[i] = E4m3<Fnuz>::store(Format::load(from[i]) * inverse);
    }
}

template <class Format, bool Fnuz>
static __device__ inline void dequantise(const uint8_t *codes, const float *scales, uint64_t rows, uint64_t columns, uint64_t stride,
                                         typename Format::Bits *numbers) {
    for (uint64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const uint8_t *from = codes + row * columns;
        typename Format::Bits *to = numbers + row * stride;
        float scale = scales[row];
        bool aligned = is_wide(to) && ((uintptr_t)from & 3) == 0;
        uint64_t wide = aligned ? columns / Vector<Format>::Count : 0, done = wide * Vector<Format>::Count;
        for (uint64_t i = threadIdx.x; i < wide; i += blockDim.x) {
            Vector<Format> vector;
            for (uint64_t j = 0; j < Vector<Format>::Count; j += 4) {
                uint32_t word = *reinterpret_cast<const uint32_t *>(from + i * Vector<Format>::Count + j);
                for (uint32_t k = 0; k < 4; k++)
                    vector.lanes[j + k] = Format::store(E4m3<Fnuz>::load((uint8_t)(word >> (8 * k))) * scale);
            }
            vector.store(to + i * Vector<Format>::Count);
        }
        for (uint64_t i = done + threadIdx.x; i < columns; i += blockDim.x)
            to[i] = Format::store(E4m3<Fnuz>::load(from[i]) * scale);
    }
}

#define ROOST_FP8(format, Format, kind, Fnuz)                                                                           \
    ROOST_KERNEL(roost_quantise_##format##_##kind, const Format::Bits *numbers, uint64_t rows, uint64_t columns,        \
                 uint64_t stride, uint8_t *codes, float *scales, uint32_t given) {                                      \
        quantise<Format, Fnuz>(numbers, rows, columns, stride, codes, scales, given);                                   \
    }                                                                                                                   \
    ROOST_KERNEL(roost_dequantise_##format##_##kind, const uint8_t *codes, const float *scales, uint64_t rows,          \
                 uint64_t columns, uint64_t stride, Format::Bits *numbers) {                                            \
        dequantise<Format, Fnuz>(codes, scales, rows, columns, stride, numbers);                                        \
    }

ROOST_FP8(f32, F32, ocp, false)
ROOST_FP8(bf16, Bf16, ocp, false)
ROOST_FP8(f16, F16, ocp, false)
ROOST_FP8(f32, F32, fnuz, true)
ROOST_FP8(bf16, Bf16, fnuz, true)
ROOST_FP8(f16, F16, fnuz, true)
