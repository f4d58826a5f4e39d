// Router of experts: the experts of each token, and their gates. One warp per row; lane l has the experts l,
// l + 32, …
#include "hash.cuh"
#include "sum.cuh"

namespace router {
// `RouterTerms` of the kernels crate.
struct Terms {
    u32 chosen, sigmoid, normalize, groups, best;
    float scale;
};
// Noise added to scores; none if there are no tokens.
struct Noise {
    List tokens;
    u64 first, salt;
    float std;
};

__device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }
__device__ __forceinline__ u32 warp() { return threadIdx.x / 32; }
__device__ __forceinline__ u64 first_row() { return (u64)blockIdx.x * (blockDim.x / 32); }

__device__ __forceinline__ u64 largest(u64 x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x = max(x, __shfl_xor_sync(~0u, x, lanes));
    return x;
}

// Sort key; experts with larger keys are chosen earlier: those with the higher score, then the lower number.
// NaN is last.
__device__ __forceinline__ u64 key(float score, u32 number) {
    u32 bits = score == 0 ? 0 : float_to_bits(score);
    u32 rising = score != score ? 0 : bits & 0x80000000 ? ~bits : bits | 0x80000000;
    return (u64)rising << 32 | (u32)~number;
}

// Returns the index of the segment that holds a token (the number of segments if none does); sets `place` to
// its position there.
__device__ __forceinline__ u32 locate(List tokens, u64 token, u64& place) {
    const Segment* segments = (const Segment*)tokens.at;
    u32 i = 0, n = tokens.len / 4;
    while (i < n && token >= segments[i].len) token -= segments[i++].len;
    place = token;
    return i;
}

// Key of each group's score: its best expert's score, or the sum of its two best sigmoids.
__device__ __forceinline__ void of_groups(u64* keys, const float* scores, u32 experts, const Terms& by) {
    u32 each = experts / by.groups;
#pragma unroll 1
    for (u32 g = lane(); g < by.groups; g += 32) {
        u64 first = 0, second = 0; // no key
        for (u32 e = g * each; e < (g + 1) * each; e++) {
            u64 of = key(scores[e], e);
            second = of > first ? first : of > second ? of : second;
            first = of > first ? of : first;
        }
        float score = scores[(u32)~first];
        if (by.sigmoid && each > 1) score += scores[(u32)~second];
        keys[g] = key(score, g);
    }
}
} // namespace router

// chosen[B·k]: of every row the experts with the highest scores (of the best groups, if there are groups). A
// score is logits[B,E] or its sigmoid, plus bias[1,E] and noise. Shared memory of a warp: a key per group, a
// score per expert.
template <class T>
__device__ void choose(List chosen, View<float> logits, View<T> bias, router::Noise noise, router::Terms by) {
    using namespace router;
    SHARED(u64, shared);
    u64 row = first_row() + warp();
    u32 experts = logits.cols;
    u64* groups = shared + warp() * (u64)(by.groups + (experts + 1) / 2);
    float* scores = (float*)(groups + by.groups);
    if (row >= logits.rows) return;
    Segment own = {0, 0, 0, 0};
    u64 place = 0;
    if (noise.tokens.at) own = ((const Segment*)noise.tokens.at)[locate(noise.tokens, noise.first + row, place)];
#pragma unroll 1
    for (u32 e = lane(); e < experts; e += 32) {
        float score = by.sigmoid ? sigmoid(logits(row, e)) : logits(row, e);
        if (bias.at) score += wide(bias(0, e));
        if (noise.tokens.at)
            score += noise.std * normal(element(noise.salt, own.sequence, own.position + place, e));
        scores[e] = score;
    }
    __syncwarp();
    u64 least = 0;
    if (by.groups) {
        of_groups(groups, scores, experts, by);
        __syncwarp();
        least = ~0ull;
        for (u32 i = 0; i < by.best; i++) {
            u64 best = 0;
#pragma unroll 1
            for (u32 g = lane(); g < by.groups; g += 32)
                if (groups[g] < least && groups[g] > best) best = groups[g];
            least = largest(best);
        }
    }
    u32 each = by.groups ? experts / by.groups : experts;
    u64 last = ~0ull;
    for (u32 i = 0; i < by.chosen; i++) {
        u64 best = 0;
#pragma unroll 1
        for (u32 e = lane(); e < experts; e += 32) {
            if (by.groups && (e / each >= by.groups || groups[e / each] < least)) continue;
            u64 of = key(scores[e], e);
            if (of < last && of > best) best = of;
        }
        last = largest(best);
        if (lane() == 0) ((u32*)chosen.at)[row * by.chosen + i] = ~(u32)last;
    }
}
BOTH(choose, PARAMS(List chosen, View<float> logits, View<T> bias, router::Noise noise, router::Terms by),
     chosen, logits, bias, noise, by)

namespace router {
// A row of logits with its log-sum-exp.
template <class T>
struct Row {
    View<T> logits;
    u64 row;
    float lse;
    u32 sigmoids;
    __device__ __forceinline__ float softmax(u32 e) const { return expf(wide(logits(row, e)) - lse); }
    // P, from which an expert's gate is computed.
    __device__ __forceinline__ float score(u32 e) const {
        return sigmoids ? sigmoid(wide(logits(row, e))) : softmax(e);
    }
    // Σ f(e) over all experts; every lane gets it.
    template <class F>
    __device__ __forceinline__ float all(F f) const {
        float sum = 0;
#pragma unroll 1
        for (u32 e = lane(); e < logits.cols; e += 32) sum += f(e);
        return warp_sum(sum);
    }
    // Σ P over the chosen experts; every lane gets it.
    __device__ __forceinline__ float of(const u32* chosen, u32 k) const {
        float sum = 0;
#pragma unroll 1
        for (u32 i = lane(); i < k; i += 32) sum += score(chosen[i]);
        return warp_sum(sum);
    }
};
} // namespace router

// of[B,k]: gates of the chosen experts; lse[B,1]: the log-sum-exp of each row of logits[B,E].
template <class T>
__device__ void gates(View<T> of, View<T> lse, View<T> logits, List chosen, router::Terms by) {
    using namespace router;
    u64 at = first_row() + warp();
    if (at >= logits.rows) return;
    Row<T> row = {logits, at, 0, by.sigmoid};
    float m = -INFINITY;
#pragma unroll 1
    for (u32 e = lane(); e < logits.cols; e += 32) m = fmaxf(m, wide(logits(at, e)));
    m = warp_max(m);
    row.lse = m + logf(row.all([&](u32 e) { return expf(wide(logits(at, e)) - m); }));
    if (lane() == 0) lse(at, 0) = narrow<T>(row.lse);
    const u32* own = chosen.at + at * by.chosen;
    float factor = by.scale;
    if (by.normalize) factor *= 1 / row.of(own, by.chosen);
#pragma unroll 1
    for (u32 i = lane(); i < by.chosen; i += 32) of(at, i) = narrow<T>(factor * row.score(own[i]));
}
BOTH(gates, PARAMS(View<T> of, View<T> lse, View<T> logits, List chosen, router::Terms by), of, lse, logits, chosen, by)

// loss[1,1] = Σ over rows of z·lse² + Σ over experts of P̂ times weights[sequences,E]. Rows without a token
// contribute nothing.
template <class T>
__device__ void router_loss(View<T> loss, View<T> logits, View<T> lse, View<T> weights, List tokens, u64 first,
                            View<T> z, u32 sigmoids) {
    using namespace router;
    float sum = 0;
    u64 step = (u64)gridDim.x * (blockDim.x / 32);
    for (u64 from = first_row(); from < logits.rows; from += step) {
        u64 at = from + warp(), place;
        u32 sequence = at < logits.rows ? locate(tokens, first + at, place) : tokens.len / 4;
        bool counts = sequence < tokens.len / 4;
        if (!counts) at = from, sequence = 0; // all warps take the same number of steps
        Row<T> row = {logits, at, wide(lse(at, 0)), sigmoids};
        float weighed = row.all([&](u32 e) { return wide(weights(sequence, e)) * row.score(e); });
        float scores = row.all([&](u32 e) { return row.score(e); });
        if (sigmoids) weighed *= 1 / scores;
        if (counts && lane() == 0) sum += weighed + wide(z(0, 0)) * row.lse * row.lse;
    }
    sums::launch(sum, [&](float sum) { loss(0, 0) = narrow<T>(sum); });
}
BOTH(router_loss, PARAMS(View<T> loss, View<T> logits, View<T> lse, View<T> weights, List tokens, u64 first, View<T> z,
     u32 sigmoids), loss, logits, lse, weights, tokens, first, z, sigmoids)

// dlogits[B,E] of the gates, and of the loss if there are weights. Shared memory of a warp: dP of every
// expert.
template <class T>
__device__ void router_backward(View<T> dlogits, View<float> logits, View<float> lse, View<float> dgates, List chosen,
                                View<float> weights, List tokens, u64 first, View<float> z, router::Terms by) {
    using namespace router;
    SHARED(float, shared);
    u64 at = first_row() + warp();
    u32 experts = logits.cols;
    float* dp = shared + warp() * (u64)experts;
    if (at >= logits.rows) return;
    Row<float> row = {logits, at, lse(at, 0), by.sigmoid};
    const u32* own = chosen.at + at * by.chosen;
#pragma unroll 1
    for (u32 e = lane(); e < experts; e += 32) dp[e] = 0;
    __syncwarp();
    float share = by.normalize ? 1 / row.of(own, by.chosen) : 1;
#pragma unroll 1
    for (u32 i = lane(); i < by.chosen; i += 32) {
        // Computed from differences: what all gates have in common contributes exactly 0.
        float dg = dgates(at, i), apart = 0;
#pragma unroll 1
        for (u32 j = 0; by.normalize && j < by.chosen; j++) apart += row.score(own[j]) * (dg - dgates(at, j));
        dp[own[i]] += by.scale * (by.normalize ? share * share * apart : dg);
    }
    __syncwarp();
    float through_lse = 0;
    if (weights.at) {
        u64 place;
        u32 sequence = locate(tokens, first + at, place);
        through_lse = 2 * z(0, 0) * row.lse;
        float share = by.sigmoid ? 1 / row.all([&](u32 e) { return row.score(e); }) : 1;
        float mean = share * row.all([&](u32 e) { return weights(sequence, e) * row.score(e); });
#pragma unroll 1
        for (u32 e = lane(); e < experts; e += 32)
            dp[e] += by.sigmoid ? share * (weights(sequence, e) - mean) : weights(sequence, e);
    }
    float around = row.all([&](u32 e) { return dp[e] * row.score(e); });
#pragma unroll 1
    for (u32 e = lane(); e < experts; e += 32) {
        float p = row.score(e), d = by.sigmoid ? dp[e] * p * (1 - p) : p * (dp[e] - around);
        dlogits(at, e) = narrow<T>(d + through_lse * row.softmax(e));
    }
}
BOTH(router_backward, PARAMS(View<T> dlogits, View<float> logits, View<float> lse, View<float> dgates, List chosen,
     View<float> weights, List tokens, u64 first, View<float> z, router::Terms by),
     dlogits, logits, lse, dgates, chosen, weights, tokens, first, z, by)
