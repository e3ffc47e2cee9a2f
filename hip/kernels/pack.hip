// Many tensors into one bucket, and out of it again: as bytes, or with another format on the other side.
#include "device.h"

// A tensor and its place in the bucket, in elements. Tensors lie in the bucket in the order of the list; what lies between
// two of them is left as it is.
struct Piece {
    void *tensor;
    uint64_t start;
    uint64_t count;
};

// The last piece that begins at or before a place; the first one when none does.
static __device__ inline uint32_t piece_at(const Piece *pieces, uint32_t count, uint64_t place) {
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (pieces[middle].start <= place) low = middle;
        else high = middle;
    }
    return low;
}

struct Bytes {
    typedef uint8_t Bits;
};

// One element after another from `from` to `to`, shared out among a block's threads. Where both sides are aligned alike,
// sixteen bytes at a time.
template <class From, class To> struct Move {
    static __device__ inline void run(const typename From::Bits *from, typename To::Bits *to, uint64_t count, float scale) {
        uint64_t done = 0;
        // The narrower side's vector sets the step, the wider side moves several in it.
        constexpr uint64_t step = Vector<From>::Count > Vector<To>::Count ? Vector<From>::Count : Vector<To>::Count;
        if (is_wide(from) && is_wide(to)) {
            uint64_t steps = count / step;
            for (uint64_t i = threadIdx.x; i < steps; i += blockDim.x) {
                float numbers[step];
                for (uint64_t j = 0; j < step; j += Vector<From>::Count) {
                    Vector<From> vector = Vector<From>::load(from + i * step + j);
                    for (uint64_t k = 0; k < Vector<From>::Count; k++) numbers[j + k] = From::load(vector.lanes[k]);
                }
                for (uint64_t j = 0; j < step; j += Vector<To>::Count) {
                    Vector<To> vector;
                    for (uint64_t k = 0; k < Vector<To>::Count; k++) vector.lanes[k] = To::store(numbers[j + k] * scale);
                    vector.store(to + i * step + j);
                }
            }
            done = steps * step;
        }
        for (uint64_t i = done + threadIdx.x; i < count; i += blockDim.x) to[i] = To::store(From::load(from[i]) * scale);
    }
};

template <> struct Move<Bytes, Bytes> {
    static __device__ inline void run(const uint8_t *from, uint8_t *to, uint64_t count, float) {
        uint64_t head = 0, steps = 0;
        if ((((uintptr_t)from ^ (uintptr_t)to) & 15) == 0) {
            head = (16 - ((uintptr_t)from & 15)) & 15;
            if (head > count) head = count;
            steps = (count - head) / 16;
            for (uint64_t i = threadIdx.x; i < steps; i += blockDim.x)
                reinterpret_cast<Wide *>(to + head)[i] = reinterpret_cast<const Wide *>(from + head)[i];
        } else if ((((uintptr_t)from ^ (uintptr_t)to) & 3) == 0) {
            head = (4 - ((uintptr_t)from & 3)) & 3;
            if (head > count) head = count;
            uint64_t words = (count - head) / 4;
            for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
                reinterpret_cast<uint32_t *>(to + head)[i] = reinterpret_cast<const uint32_t *>(from + head)[i];
            steps = words / 4;
            for (uint64_t i = head + words * 4 + threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
            for (uint64_t i = threadIdx.x; i < head; i += blockDim.x) to[i] = from[i];
            return;
        }
        for (uint64_t i = threadIdx.x; i < head; i += blockDim.x) to[i] = from[i];
        for (uint64_t i = head + steps * 16 + threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
    }
};

// Elements of the bucket that a block does before it looks for more.
enum { CHUNK = 1 << 14 };

// Each block takes every so many-th chunk of the bucket and the pieces in it. `Pack` says which side is written.
template <class Tensor, class Bucket, bool Pack>
static __device__ inline void move_all(const Piece *pieces, uint32_t count, typename Bucket::Bits *bucket, uint64_t elements, float scale) {
    uint64_t chunks = (elements + CHUNK - 1) / CHUNK;
    for (uint64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        uint64_t begin = chunk * CHUNK, end = begin + CHUNK < elements ? begin + CHUNK : elements;
        for (uint32_t i = piece_at(pieces, count, begin); i < count && pieces[i].start < end; i++) {
            Piece piece = pieces[i];
            uint64_t from = piece.start > begin ? piece.start : begin;
            uint64_t to = piece.start + piece.count < end ? piece.start + piece.count : end;
            if (from >= to) continue;
            typename Tensor::Bits *tensor = (typename Tensor::Bits *)piece.tensor + (from - piece.start);
            if (Pack) Move<Tensor, Bucket>::run(tensor, bucket + from, to - from, scale);
            else Move<Bucket, Tensor>::run(bucket + from, tensor, to - from, scale);
        }
    }
}

#define ROOST_MOVE(name, OfTensor, OfBucket, Pack)                                                                      \
    ROOST_KERNEL(name, const Piece *pieces, uint32_t count, OfBucket::Bits *bucket, uint64_t elements, float scale) {   \
        move_all<OfTensor, OfBucket, Pack>(pieces, count, bucket, elements, scale);                                     \
    }
#define ROOST_BOTH(ours, Ours, theirs, Theirs)                                                                          \
    ROOST_MOVE(roost_pack_##ours##_to_##theirs, Ours, Theirs, true)                                                     \
    ROOST_MOVE(roost_unpack_##theirs##_to_##ours, Ours, Theirs, false)

ROOST_BOTH(bytes, Bytes, bytes, Bytes)
ROOST_BOTH(f32, F32, f32, F32)
ROOST_BOTH(f32, F32, bf16, Bf16)
ROOST_BOTH(f32, F32, f16, F16)
ROOST_BOTH(bf16, Bf16, f32, F32)
ROOST_BOTH(bf16, Bf16, bf16, Bf16)
ROOST_BOTH(f16, F16, f32, F32)
ROOST_BOTH(f16, F16, f16, F16)
