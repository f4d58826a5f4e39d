// The twin of the CUDA driver: the functions of `driver.rs` with the same names and meanings, on the host. Kernels are
// the same sources, compiled for the host; `kernels.inc` names them, as the committed PTX does.
#include "../kernels/number.cuh"
#include <atomic>
#include <csetjmp>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <ucontext.h>
#include <unordered_map>
#include <utility>
#include <vector>
#include "sources.inc"

namespace twin {
thread_local Block block;

namespace {
const size_t STACK = 256 << 10;

// What a fiber waits for: nothing, its block, or that others do something.
enum State { READY, AT_BARRIER, ASIDE, DONE };
struct Fiber {
    jmp_buf here;
    std::vector<unsigned char> stack;
    State state = DONE;
    bool started = false;
};
struct Threads {
    std::vector<Fiber*> fibers;
    std::vector<unsigned char> hands;
    jmp_buf scheduler;
    void (*body)(void**) = nullptr;
    void** arguments = nullptr;
};
thread_local Threads threads;

void to_scheduler(Fiber& fiber) {
    if (_setjmp(fiber.here) == 0) _longjmp(threads.scheduler, 1);
}
// What every fiber runs for ever: one thread's kernel after the other.
void run_fiber() {
    for (;;) {
        unsigned me = block.thread;
        threads.body(threads.arguments);
        Fiber& fiber = *threads.fibers[me];
        fiber.state = DONE;
        to_scheduler(fiber);
    }
}
void resume(unsigned i) {
    Fiber& fiber = *threads.fibers[i];
    block.thread = i;
    if (_setjmp(threads.scheduler) != 0) return;
    if (fiber.started) _longjmp(fiber.here, 1);
    fiber.started = true;
    static thread_local ucontext_t start, back;
    getcontext(&start);
    start.uc_stack.ss_sp = fiber.stack.data();
    start.uc_stack.ss_size = fiber.stack.size();
    start.uc_link = nullptr;
    makecontext(&start, run_fiber, 0);
    swapcontext(&back, &start);
}
// Which of n is the i-th to run: forwards, backwards, or mixed by a number.
unsigned nth(unsigned i, unsigned n, int order, unsigned round) {
    if (order == 0) return i;
    if (order == 1) return n - 1 - i;
    unsigned step = 2 * ((unsigned)order * 2654435761u % 97) + 1; // odd: another order where n is a power of two
    return n & (n - 1) ? (i + (unsigned)order * 7 + round) % n : (i * step + round * 5) % n;
}
std::atomic<int> order{0};
} // namespace

void leave(State state) {
    Fiber& fiber = *threads.fibers[block.thread];
    fiber.state = state;
    to_scheduler(fiber);
}
void meet() { leave(READY); }
void meet_block() { leave(AT_BARRIER); }
void step_aside() { leave(ASIDE); }
unsigned char* hand(unsigned thread, int kind) { return &threads.hands[((size_t)thread * 2 + kind) * 64]; }

// Runs a block's threads: one warp until all of its threads wait for more than each other, then the next one.
void run_block(unsigned n) {
    unsigned warps = (n + 31) / 32, at_barrier = 0, live = n;
    for (unsigned round = 0; live > 0; round++) {
        for (unsigned w = 0; w < warps; w++) {
            unsigned first = nth(w, warps, order, round) * 32, lanes = n - first < 32 ? n - first : 32;
            for (bool ready = true; ready;) {
                ready = false;
                for (unsigned i = 0; i < lanes; i++) {
                    unsigned at = first + nth(i, lanes, order, round);
                    Fiber& fiber = *threads.fibers[at];
                    if (fiber.state != READY) continue;
                    resume(at);
                    ready |= fiber.state == READY;
                    at_barrier += fiber.state == AT_BARRIER;
                    live -= fiber.state == DONE;
                }
            }
        }
        bool all = at_barrier == live;
        if (all) at_barrier = 0;
        for (unsigned i = 0; i < n; i++) {
            State& state = threads.fibers[i]->state;
            if (state == ASIDE || (all && state == AT_BARRIER)) state = READY;
        }
    }
}

void launch(void (*body)(void**), void** arguments, dim3 blocks, unsigned n, unsigned shared) {
    auto& t = threads;
    while (t.fibers.size() < n) {
        t.fibers.push_back(new Fiber);
        t.fibers.back()->stack.resize(STACK);
    }
    t.hands.resize((size_t)((n + 31) & ~31u) * 128);
    std::vector<unsigned char> memory(shared + 1024);
    t.body = body;
    t.arguments = arguments;
    block.threads = {n, 1, 1};
    block.blocks = blocks;
    block.shared = (unsigned char*)(((uintptr_t)memory.data() + 1023) & ~(uintptr_t)1023);
    for (unsigned z = 0; z < blocks.z; z++)
        for (unsigned y = 0; y < blocks.y; y++)
            for (unsigned x = 0; x < blocks.x; x++) {
                block.index = {x, y, z};
                memset(block.shared, 0xff, shared); // what was not written is no number
                for (unsigned i = 0; i < n; i++) t.fibers[i]->state = READY;
                run_block(n);
            }
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*(A*)arguments[I]...);
}
template <class... A>
std::vector<size_t> sizes(void (*)(A...)) {
    return {sizeof(A)...};
}
template <class... A>
void apply(void (*kernel)(A...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>{});
}

struct Kernel {
    void (*body)(void**);
    std::vector<size_t> sizes;
};
using namespace in_f32;
using namespace in_bf16;
#define TWIN(name) {#name, {[](void** arguments) { apply(&name, arguments); }, sizes(&name)}},
std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> all = {
#include "kernels.inc"
    };
    return all;
}

struct Card {
    std::mutex lock;
    std::unordered_map<u64, size_t> held;
    size_t total = 0, used = 0;
};
Card& card() {
    static Card* one = [] {
        Card* card = new Card;
        const char* bytes = getenv("EQUIPART_TWIN_MEMORY");
        card->total = bytes ? strtoull(bytes, nullptr, 10) : (size_t)8 << 30;
        return card;
    }();
    return *one;
}
} // namespace twin

using namespace twin;
typedef void* Handle;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, BAD_PTX = 218, NOT_FOUND = 500 };

extern "C" {
// Not the driver's: in which order the threads of a block run from now on.
void twinOrder(int order) { twin::order = order; }
int cuInit(unsigned) { return OK; }
int cuDriverGetVersion(int* version) { return *version = 13000, OK; }
int cuDeviceGetCount(int* count) {
    const char* cards = getenv("EQUIPART_TWIN_CARDS");
    return *count = cards ? atoi(cards) : 1, OK;
}
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, OK; }
int cuDeviceGetName(char* name, int len, int) { return strncpy(name, "the CPU's twin of a GPU", len), OK; }
int cuDeviceGetAttribute(int* value, int which, int) {
    *value = which == 75 ? 9 : which == 76 ? 0 : which == 16 ? 2 : 0;
    return OK;
}
int cuDevicePrimaryCtxRetain(Handle* context, int) { return *context = &card(), OK; }
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
int cuCtxSetCurrent(Handle) { return OK; }
int cuMemGetInfo_v2(size_t* free, size_t* total) {
    std::lock_guard<std::mutex> held(card().lock);
    return *free = card().total - card().used, *total = card().total, OK;
}
int cuMemAlloc_v2(u64* at, size_t bytes) {
    std::lock_guard<std::mutex> held(card().lock);
    if (bytes > card().total - card().used) return NO_MEMORY;
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, (bytes + 255) / 256 * 256)) return NO_MEMORY;
    card().used += bytes;
    card().held[(u64)memory] = bytes;
    return *at = (u64)memory, OK;
}
int cuMemFree_v2(u64 at) {
    std::lock_guard<std::mutex> held(card().lock);
    auto found = card().held.find(at);
    if (found == card().held.end()) return INVALID;
    card().used -= found->second;
    card().held.erase(found);
    return free((void*)at), OK;
}
int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, Handle) { return memcpy((void*)to, from, bytes), OK; }
int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, Handle) { return memcpy(to, (void*)from, bytes), OK; }
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, Handle) { return memmove((void*)to, (void*)from, bytes), OK; }
int cuMemsetD8Async(u64 at, unsigned char byte, size_t bytes, Handle) { return memset((void*)at, byte, bytes), OK; }
int cuStreamCreate(Handle* stream, unsigned) { return *stream = &card(), OK; }
int cuStreamDestroy_v2(Handle) { return OK; }
int cuStreamSynchronize(Handle) { return OK; }
int cuEventCreate(Handle* event, unsigned) { return *event = new timespec{}, OK; }
int cuEventRecord(Handle event, Handle) { return clock_gettime(CLOCK_MONOTONIC, (timespec*)event), OK; }
int cuEventSynchronize(Handle) { return OK; }
int cuEventElapsedTime(float* milliseconds, Handle from, Handle to) {
    timespec *a = (timespec*)from, *b = (timespec*)to;
    *milliseconds = (b->tv_sec - a->tv_sec) * 1e3f + (b->tv_nsec - a->tv_nsec) * 1e-6f;
    return OK;
}
int cuEventDestroy_v2(Handle event) { return delete (timespec*)event, OK; }
int cuModuleLoadDataEx(Handle* module, const void* text, unsigned n, int* options, Handle* values) {
    if (!strstr((const char*)text, ".version")) {
        for (unsigned i = 0; i < n; i++)
            if (options[i] == 5) strcpy((char*)values[i], "ptxas fatal: missing .version directive");
        return BAD_PTX;
    }
    return *module = (Handle)1, OK;
}
int cuModuleGetFunction(Handle* function, Handle, const char* name) {
    auto found = kernels().find(name);
    if (found == kernels().end()) return NOT_FOUND;
    return *function = &found->second, OK;
}
int cuModuleUnload(Handle) { return OK; }
int cuFuncSetAttribute(Handle, int, int) { return OK; }
int cuLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b, unsigned c, unsigned shared,
                   Handle, Handle* arguments, Handle*) {
    if (threads == 0 || threads > 1024 || b != 1 || c != 1 || shared > 227u << 10) return INVALID;
    twin::launch(((twin::Kernel*)function)->body, arguments, {x, y, z}, threads, shared);
    return OK;
}
// A matrix of 16-bit numbers, as `hopper::Map` of hopper.cuh has it here: where it is, columns, rows, bytes from row to
// row.
int cuTensorMapEncodeTiled(u64* map, int type, unsigned rank, void* at, const u64* dims, const u64* strides,
                           const unsigned* box, const unsigned* steps, int interleave, int swizzle, int, int fill) {
    bool known = type == 9 && rank == 2 && interleave == 0 && swizzle == 3 && fill == 0;
    bool boxes = box[0] == hopper::BOX && box[1] == hopper::BOX && steps[0] == 1 && steps[1] == 1;
    if (!known || !boxes || dims[0] == 0 || dims[1] == 0
        || (u64)at % 16 || strides[0] % 16 || (u64)map % 64)
        return INVALID;
    map[0] = (u64)at, map[1] = dims[0], map[2] = dims[1], map[3] = strides[0];
    return OK;
}
int cuGetErrorName(int error, const char** name) {
    *name = error == INVALID ? "CUDA_ERROR_INVALID_VALUE"
            : error == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == BAD_PTX ? "CUDA_ERROR_INVALID_PTX"
            : error == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_UNKNOWN";
    return OK;
}
int cuGetErrorString(int error, const char** text) {
    *text = error == INVALID ? "invalid argument"
            : error == NO_MEMORY ? "out of memory"
            : error == BAD_PTX ? "a PTX JIT compilation failed"
            : error == NOT_FOUND ? "named symbol not found" : "unknown error";
    return OK;
}
}
