// Shared by attention on Hopper cards, forward and backward: tiles of tokens in shared memory, and loops over
// the tiles that see each other.
#pragma once
#include "attention.cuh"
#include "hopper.cuh"

namespace hopper {
// ROWS rows of one head's D features in shared memory: boxes one below another, then side by side.
template <u32 ROWS, u32 D>
struct Tile {
    static const u32 DOWN = ROWS / BOX, BYTES = ROWS * D * 2;
    static __device__ __forceinline__ u32 box(u32 row, u32 feature) { return (feature / BOX * DOWN + row / BOX) * BOX_BYTES; }
    // Starts the card's copy of the tile. One thread calls it.
    static __device__ __forceinline__ void fetch(unsigned char* to, const Map& map, u32 row, u32 col, Barrier* there) {
        for (u32 i = 0; i < DOWN * D / BOX; i++)
            copy_box(to + i * BOX_BYTES, map, row + i % DOWN * BOX, col + i / DOWN * BOX, there);
    }
    // Descriptors of the tile as a factor: along features, from this row and feature on; or along rows, from
    // this row on.
    static __device__ __forceinline__ u64 along_features(const unsigned char* at, u32 row, u32 feature) {
        return descriptor<false>(at + box(row, feature), feature % BOX);
    }
    static __device__ __forceinline__ u64 along_rows(const unsigned char* at, u32 row) {
        return descriptor<true>(at + box(row, 0), row % BOX, DOWN * BOX_BYTES);
    }
    // Begins d = (64 rows of this tile, from `row` on)·(all rows of another)ᵀ.
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
    // Begins d += x·(all rows of this tile).
    static __device__ __forceinline__ void add(float (&d)[D / 8][4], const u32 (&x)[ROWS / 16][4], const unsigned char* at) {
#pragma unroll
        for (u32 i = 0; i < ROWS; i += 16) multiply_kept(d, x[i / 16], along_rows(at, i));
    }
    // Zeroes the tile's rows from n on: the rows after a span may hold NaN, and NaN times 0 is NaN. A group
    // of four warps calls it.
    static __device__ __forceinline__ void clear(unsigned char* at, u32 n) {
        for (u32 e = n * 8 + threadIdx.x % 128; e < ROWS * 8; e += 128)
            for (u32 f = 0; f < D; f += BOX) ((uint4*)(at + box(e / 8, f)))[e % (8 * BOX)] = uint4{0, 0, 0, 0};
    }
};

// Iterates over the spans that have rows in a tile: query rows, or key rows if OF_KEYS. All lanes of a warp
// call it together.
template <bool OF_KEYS>
struct Spans {
    List spans;
    u32 row, rows; // the tile's first row, and its number of rows
    u32 at = 0, left = 0;
    Span span = {};
    // The span's rows that are in the tile. Row i of the span is row i + before of the tile, modulo 2^32.
    u32 first = 0, last = 0, before = 0;

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
    // Sets bit i if row `mine` + 8·i of the tile, i below 2, belongs to a span.
    __device__ __forceinline__ u32 touched(u32 mine) {
        u32 bits = 0;
        for (*this = {spans, row, rows}; next();)
            for (u32 i = 0; i < 2; i++) bits |= (u32)(mine + 8 * i - before - first <= last - first) << i;
        return bits;
    }
};

// Iterates over tiles of KEYS keys that some queries of a query tile see, span by span.
template <u32 KEYS>
struct Walk {
    const Attend& a;
    Spans<false> tile;
    Seen seen = {};
    u32 block = 0, n = 0; // the key tile's first key, and its number of keys

    // Advances to the next key tile; false if there is none.
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
    // True if every row of the query tile is a query that sees all KEYS keys.
    __device__ __forceinline__ bool whole() const {
        return n == KEYS && tile.last - tile.first + 1 == tile.rows &&
               all_see(a, tile.span, tile.first, tile.last, block, block + n - 1);
    }
};
} // namespace hopper
