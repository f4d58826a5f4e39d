// What attention on Hopper cards has, forward and backward: tiles of tokens in shared memory, and which of them meet.
#pragma once
#include "attention.cuh"
#include "hopper.cuh"

namespace hopper {
// ROWS rows of one head's D features in shared memory: boxes one below the other, then side by side.
template <u32 ROWS, u32 D>
struct Tile {
    static const u32 DOWN = ROWS / BOX, BYTES = ROWS * D * 2;
    static __device__ __forceinline__ u32 box(u32 row, u32 feature) { return (feature / BOX * DOWN + row / BOX) * BOX_BYTES; }
    // Has the card copy it; by one thread.
    static __device__ __forceinline__ void fetch(unsigned char* to, const Map& map, u32 row, u32 col, Barrier* there) {
        for (u32 i = 0; i < DOWN * D / BOX; i++)
            copy_box(to + i * BOX_BYTES, map, row + i % DOWN * BOX, col + i / DOWN * BOX, there);
    }
    // As a factor along features, from this row and feature on; and as one along rows, from this row on.
    static __device__ __forceinline__ u64 along_features(const unsigned char* at, u32 row, u32 feature) {
        return descriptor<false>(at + box(row, feature), feature % BOX);
    }
    static __device__ __forceinline__ u64 along_rows(const unsigned char* at, u32 row) {
        return descriptor<true>(at + box(row, 0), row % BOX, DOWN * BOX_BYTES);
    }
    // Begins d = (64 rows of it, from this one on)·(all rows of another)ᵀ.
    template <class Other, int N>
    static __device__ __forceinline__ void multiply(float (&d)[N][4], const unsigned char* at, u32 row,
                                                    const unsigned char* other) {
#pragma unroll
        for (u32 i = 0; i < D; i += 16) {
            u64 a = along_features(at, row, i), b = Other::along_features(other, 0, i);
            if (i == 0) multiply_rows<true>(d, a, b);
            else multiply_rows<false>(d, a, b);
        }
    }
    // Begins d += x·(all of it).
    static __device__ __forceinline__ void add(float (&d)[D / 8][4], const u32 (&x)[ROWS / 16][4], const unsigned char* at) {
#pragma unroll
        for (u32 i = 0; i < ROWS; i += 16) multiply_kept(d, x[i / 16], along_rows(at, i));
    }
    // Makes its rows from n on zeros, since what follows a span may be no number, even times 0; by a group of four
    // warps.
    static __device__ __forceinline__ void clear(unsigned char* at, u32 n) {
        for (u32 e = n * 8 + threadIdx.x % 128; e < ROWS * 8; e += 128)
            for (u32 f = 0; f < D; f += BOX) ((uint4*)(at + box(e / 8, f)))[e % (8 * BOX)] = uint4{0, 0, 0, 0};
    }
};

// Goes over the spans that have rows of a tile, rows of queries or of keys; all lanes of a warp together.
template <bool OF_KEYS>
struct Spans {
    List spans;
    u32 row, rows; // the tile's
    u32 at = 0, left = 0;
    Span span = {};
    u32 first = 0, last = 0, before = 0; // the span's that are of the tile; number i is row i + before of it, beyond 2^32

    __device__ __forceinline__ bool next() {
        while (!left) {
            if (at >= spans.len / 8) return false;
            u32 i = at + threadIdx.x % 32;
            const u32* of = spans.at + 8 * (u64)i + 4 * OF_KEYS;
            bool here = i < spans.len / 8 && of[0] < row + rows && of[0] + of[1] > row;
            left = __ballot_sync(~0u, here), at += 32;
        }
        span = span_of(spans, at - 32 + __ffs(left) - 1), left &= left - 1;
        Segment of = OF_KEYS ? span.key : span.query;
        before = of.row - row, first = minus(row, of.row), last = min(row + rows - of.row, of.len) - 1;
        return true;
    }
    // Bit i: whether row `mine` + 8·i of the tile, i below 2, is of a span.
    __device__ __forceinline__ u32 touched(u32 mine) {
        u32 bits = 0;
        for (*this = {spans, row, rows}; next();)
            for (u32 i = 0; i < 2; i++) bits |= (u32)(mine + 8 * i - before - first <= last - first) << i;
        return bits;
    }
};

// Blocks of KEYS keys that some of a tile's queries see, span by span.
template <u32 KEYS>
struct Walk {
    const Attend& a;
    Spans<false> tile;
    Seen seen = {};
    u32 block = 0, n = 0; // the block's first key, and how many it has

    // Goes to the next block, if there is one.
    __device__ __forceinline__ bool next() {
        if (block < seen.to) block = seen.next(block, KEYS);
        while (block >= seen.to) {
            if (!tile.next()) return false;
            seen = seen_by_some(a, tile.span, tile.first, tile.last);
            block = seen.begin();
        }
        n = seen.count(block, KEYS);
        return true;
    }
    // Whether each of the tile's rows is a query that sees all KEYS.
    __device__ __forceinline__ bool whole() const {
        return n == KEYS && tile.last - tile.first + 1 == tile.rows &&
               all_see(a, tile.span, tile.first, tile.last, block, block + n - 1);
    }
};
} // namespace hopper
