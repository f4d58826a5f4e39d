// Primitives of Hopper cards beyond tensor.cuh: barriers in shared memory that count bytes, tiles copied by
// the card itself (TMA), and products by four warps together. Each has two bodies: PTX, and its meaning on
// the host.
// Source: NVIDIA, "Parallel Thread Execution ISA", sections "mbarrier", "cp.async.bulk.tensor", "wgmma" and
// "Matrix descriptor"; the layouts' strides as in CUTLASS's mma_sm90_desc.hpp.
#pragma once
#include "number.cuh"

namespace hopper {
// A matrix whose boxes the card copies: CUtensorMap.
struct __align__(64) Map {
    u64 words[16];
};
typedef u64 Barrier;

const int BOX = 64, BOX_BYTES = BOX * BOX * 2; // a box is 64 rows of 64 bf16, 128 bytes
const int WARPS = 8;                           // warps of a block that multiply; one more starts the copies

// Index of the next of STAGES stages, and the phase of its barriers.
template <int STAGES>
struct Turn {
    u32 stage = 0, phase = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

#ifdef __CUDACC__
__device__ __forceinline__ u32 address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Initializes a barrier whose phases are 0, 1, 0, …. A phase ends when `arrivals` threads and all expected
// bytes have arrived.
__device__ __forceinline__ void init(Barrier* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialized barriers visible to the card's copies and, after the next __syncthreads, to all threads.
__device__ __forceinline__ void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_with(Barrier* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::
                 "r"(address(barrier)), "r"(bytes) : "memory");
}
// Waits until the phase has ended. All lanes of a warp call it.
__device__ __forceinline__ void wait(Barrier* barrier, u32 phase) {
    u32 ended = 0;
    while (!ended)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(ended) : "r"(address(barrier)), "r"(phase) : "memory");
}

// Begins to copy the box of a matrix that starts at this row and column. Its rows have 128 bytes; the pieces
// of 16 bytes in each are permuted by the row's number (period 8). Elements beyond the matrix are 0. The
// bytes arrive at the barrier.
__device__ __forceinline__ void copy_box(void* to, const Map& map, u32 row, u32 col, Barrier* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::
                 "r"(address(to)), "l"(&map), "r"(col), "r"(row), "r"(address(barrier)) : "memory");
}

// Lowers or raises the number of registers of a warp's threads, from now on.
template <int N>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#define HOPPER_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define HOPPER_64                                                                                             \
    HOPPER_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
              "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HOPPER_128                                                                                             \
    HOPPER_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,"  \
              "%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,"   \
              "%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define HOPPER_FOUR(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define HOPPER_FOURS(i) HOPPER_FOUR(i), HOPPER_FOUR(i + 1), HOPPER_FOUR(i + 2), HOPPER_FOUR(i + 3)
// Begins d[64,256] += a[64,16]·b[16,256], by four warps. Both factors are in shared memory, given by
// descriptors; a TURNED (transposed) one is contiguous along the dimension that is not K. Warp w holds rows
// 16·w and on. Of these, lane l holds, for each i, d[l / 4, 8·i + 2·(l % 4)], the next element, and the same
// two of row l / 4 + 8.
template <bool A_TURNED, bool B_TURNED>
__device__ __forceinline__ void multiply(float (&d)[32][4], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" HOPPER_128 "}, %128, %129, 1, 1, 1, %130, %131;"
                 : HOPPER_FOURS(0), HOPPER_FOURS(4), HOPPER_FOURS(8), HOPPER_FOURS(12), HOPPER_FOURS(16),
                   HOPPER_FOURS(20), HOPPER_FOURS(24), HOPPER_FOURS(28)
                 : "l"(a), "l"(b), "n"((int)A_TURNED), "n"((int)B_TURNED));
}
// Begins d[64,N] = a[64,16]·b[16,N], added to d unless FRESH. Both factors are contiguous along K, given by
// descriptors.
template <bool FRESH>
__device__ __forceinline__ void multiply_rows(float (&d)[16][4], u64 a, u64 b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" HOPPER_64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : HOPPER_FOURS(0), HOPPER_FOURS(4), HOPPER_FOURS(8), HOPPER_FOURS(12)
                 : "l"(a), "l"(b), "n"((int)!FRESH));
}
template <bool FRESH>
__device__ __forceinline__ void multiply_rows(float (&d)[8][4], u64 a, u64 b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HOPPER_32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : HOPPER_FOURS(0), HOPPER_FOURS(4)
                 : "l"(a), "l"(b), "n"((int)!FRESH));
}
// Begins d[64,N] += a[64,16]·b[16,N]: a is in registers, as pairs in the layout of `tensor::multiply`; b is
// transposed.
__device__ __forceinline__ void multiply_kept(float (&d)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" HOPPER_64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : HOPPER_FOURS(0), HOPPER_FOURS(4), HOPPER_FOURS(8), HOPPER_FOURS(12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply_kept(float (&d)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HOPPER_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : HOPPER_FOURS(0), HOPPER_FOURS(4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// Marks that finished products are in these registers: the compiler moves no read of them before the wait.
template <int N>
__device__ __forceinline__ void are_there(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) asm volatile("" : HOPPER_FOUR(n)::"memory");
}
// Barrier of four warps. Their writes to shared memory are then visible to products.
__device__ __forceinline__ void meet_for_products(u32 group) {
    asm volatile("fence.proxy.async.shared::cta;\nbar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
// Orders earlier writes to the registers of sums before the products that are begun next.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Closes a group: the products begun since the last call.
__device__ __forceinline__ void products_are_a_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all groups but the last N are done.
template <int N>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
#else
inline u32 address(const void* at) { return (u32)((const unsigned char*)at - twin::block.shared); }

struct TwinBarrier {
    uint8_t phase, arrivals, left, unused;
    int32_t bytes;
    void step() {
        if (left == 0 && bytes == 0) phase ^= 1, left = arrivals;
    }
};
inline TwinBarrier& twin_barrier(Barrier* barrier) { return *(TwinBarrier*)barrier; }
inline void init(Barrier* barrier, u32 arrivals) {
    twin_barrier(barrier) = {0, (uint8_t)arrivals, (uint8_t)arrivals, 0, 0};
}
inline void publish() {}
inline void arrive_with(Barrier* barrier, u32 bytes) {
    twin_barrier(barrier).left--;
    twin_barrier(barrier).bytes += bytes;
    twin_barrier(barrier).step();
}
inline void arrive(Barrier* barrier) { arrive_with(barrier, 0); }
inline void wait(Barrier* barrier, u32 phase) {
    for (u32 me = twin::block.thread, first = me & ~31u, all = 0; !all;) { // the lanes continue together
        *twin::hand(me, 1) = twin_barrier(barrier).phase != phase;
        twin::meet_warp();
        all = 1;
        for (u32 lane = 0; lane < 32; lane++) all &= *twin::hand(first + lane, 1);
        if (all) twin::meet_warp();
        else twin::step_aside();
    }
}
// Address of a byte whose piece of 16 bytes is permuted by its row of 128 bytes.
inline u32 permuted(u32 at) { return at ^ (at >> 7 & 7) << 4; }
inline void copy_box(void* to, const Map& map, u32 row, u32 col, Barrier* barrier) {
    u64 rows = map.words[2], cols = map.words[1], stride = map.words[3];
    for (u32 i = 0; i < BOX; i++)
        for (u32 j = 0; j < BOX; j++) {
            const uint16_t* from = (const uint16_t*)(map.words[0] + (row + i) * stride) + col + j;
            uint16_t x = row + i < rows && col + j < cols ? *from : 0;
            memcpy(twin::block.shared + permuted(address(to) + i * 128 + j * 2), &x, 2);
        }
    twin_barrier(barrier).bytes -= BOX_BYTES;
    twin_barrier(barrier).step();
}
template <int N>
void give_registers() {}
template <int N>
void take_registers() {}
// Returns element [i, k] of a factor.
template <bool TURNED>
float twin_number(u64 descriptor, u32 i, u32 k) {
    auto field = [&](int bit) { return (u32)(descriptor >> bit & 0x3fff) << 4; };
    u32 start = field(0), lead = field(16), stride = field(32);
    u32 at = TURNED ? i / 64 * lead + i % 64 * 2 + k / 8 * stride + k % 8 * 128 : i / 8 * stride + i % 8 * 128 + k * 2;
    uint16_t x;
    memcpy(&x, twin::block.shared + permuted(start + at), 2);
    return bits_to_float((u32)x << 16);
}
// Loads this thread's two rows of a factor.
template <bool TURNED>
void twin_rows(float (&left)[2][16], u64 a) {
    u32 row = twin::block.thread / 32 % 4 * 16 + twin::block.thread % 32 / 4;
    for (u32 k = 0; k < 32; k++) left[k / 16][k % 16] = twin_number<TURNED>(a, row + k / 16 * 8, k % 16);
}
// d[row and row + 8, col and col + 1, ..] += left[row, row + 8][16]·b[16, 8·N].
template <bool B_TURNED, int N>
void twin_multiply(float (&d)[N][4], const float (&left)[2][16], u64 b) {
    for (u32 i = 0; i < 2 * N; i++)
        for (u32 k = 0; k < 16; k++) {
            float right = twin_number<B_TURNED>(b, i / 2 * 8 + twin::block.thread % 4 * 2 + i % 2, k);
            d[i / 2][i % 2] += left[0][k] * right;
            d[i / 2][i % 2 + 2] += left[1][k] * right;
        }
}
template <bool A_TURNED, bool B_TURNED>
void multiply(float (&d)[32][4], u64 a, u64 b) {
    float left[2][16];
    twin_rows<A_TURNED>(left, a);
    twin_multiply<B_TURNED>(d, left, b);
}
template <bool FRESH, int N>
void multiply_rows(float (&d)[N][4], u64 a, u64 b) {
    float left[2][16];
    twin_rows<false>(left, a);
    for (u32 i = 0; i < 4 * N && FRESH; i++) d[i / 4][i % 4] = 0;
    twin_multiply<false>(d, left, b);
}
template <int N>
void multiply_kept(float (&d)[N][4], const u32 (&a)[4], u64 b) {
    u32 me = twin::block.thread, lane = me % 32;
    memcpy(twin::hand(me, 0), a, sizeof a);
    twin::meet_warp();
    float left[2][16];
    for (u32 k = 0; k < 16; k++)
        for (u32 half = 0; half < 2; half++) {
            u32 pair;
            memcpy(&pair, twin::hand(me - lane + lane / 4 * 4 + k % 8 / 2, 0) + 4 * (half + k / 8 * 2), 4);
            left[half][k] = bits_to_float(k % 2 ? pair & 0xffff0000 : pair << 16);
        }
    twin::handed(0);
    twin_multiply<true>(d, left, b);
}
template <int N>
void are_there(float (&)[N][4]) {}
inline void meet_for_products(u32) { twin::meet_group(); }
inline void products_begin() {}
inline void products_are_a_group() {}
template <int N>
void wait_for_products() {
    twin::meet_warp(); // all lanes of the warp have reached this point
}
#endif

// Descriptor for `multiply` of the boxes of a factor of 64·n by 16. The boxes lie one after another along the
// dimension that is not K. In a transposed factor the boxes' rows are K's, and each box begins `apart` bytes
// after the previous one. Bits 62 and 63: permuted as by copy_box.
template <bool TURNED>
__device__ __forceinline__ u64 descriptor(const void* boxes, u32 k, u32 apart = BOX_BYTES) {
    u64 start = address(boxes) + (TURNED ? k * 128 : k * 2), lead = TURNED ? apart : 16, stride = 1024;
    return (start & 0x3ffff) >> 4 | lead >> 4 << 16 | stride >> 4 << 32 | 1ull << 62;
}
} // namespace hopper
