// Host twin of the CUDA driver: the functions of `driver.rs` with the same names and meanings. Kernels are
// the same sources, compiled for the host; `kernels.inc` names them, as the committed PTX does.
#include "../kernels/number.cuh"
#include <atomic>
#include <algorithm>
#include <ctime>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
#include "sources.inc"

// Saves the state of one fiber and resumes another.
#if defined(__x86_64__)
asm(R"(
.text
.globl twin_switch
.type twin_switch, @function
twin_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
extern "C" void twin_switch(void** from, void** to);
typedef void* Context;
static void begin(Context& context, unsigned char* stack, size_t bytes, void (*run)()) {
    // `run` then finds its stack aligned
    void** top = (void**)(((uintptr_t)stack + bytes) & ~(uintptr_t)15) - 2;
    *top = (void*)run;
    context = top - 6; // the saved registers, with arbitrary values
}
static void go(Context& from, Context& to) { twin_switch(&from, &to); }
#else
#include <ucontext.h>
typedef ucontext_t Context;
static void begin(Context& context, unsigned char* stack, size_t bytes, void (*run)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, run, 0);
}
static void go(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

namespace twin {
Block block;

namespace {
const size_t STACK = 256 << 10;
const unsigned MOST = 1024; // threads of a block

struct Fiber {
    Context here;
    std::vector<unsigned char> stack;
    unsigned parity[2] = {0, 0}; // which of two buffers holds the data it passes to others
};
// Threads that meet: those of a block, of a warp or of a group of warps.
struct Meeting {
    unsigned live, came;
};
struct Threads {
    std::vector<Fiber*> fibers;
    unsigned at, live;                        // position of the running warp; threads that have not ended
    u32 ready[MOST / 32], waiting[MOST / 32]; // lanes of each warp that may run, that wait for others
    Meeting meetings[3][MOST / 32];
    std::vector<unsigned char> hands;
    Context scheduler;
    void (*body)(void**);
    void** arguments;
    u64 aside; // how often threads have stepped aside since the block, or a group of its warps, met
    bool stuck;
} threads;
std::mutex launching; // one block runs at a time: a card has one stream

const unsigned WIDTH[3] = {MOST, 32, 128};
Meeting& meeting(int kind, unsigned thread) { return threads.meetings[kind][thread / WIDTH[kind]]; }
void release(int kind, unsigned thread) {
    unsigned first = thread / WIDTH[kind] * WIDTH[kind] / 32, warps = (block.threads.x + 31) / 32;
    for (unsigned warp = first; warp < std::min(first + WIDTH[kind] / 32, warps); warp++)
        threads.ready[warp] |= std::exchange(threads.waiting[warp], 0);
    meeting(kind, thread).came = 0;
}
// Order in which blocks run. After each meeting it is also the order of the warps that met, each as far as it
// gets, and of their lanes: forwards or backwards. If a missing barrier does not keep two warps apart, each
// of them is first in one of the two orders.
std::atomic<bool> backwards{false};
u32 bit(unsigned thread) { return 1u << thread % 32; }
unsigned warps() { return (block.threads.x + 31) / 32; }
unsigned first_of(unsigned warp, u32 lanes) { return warp * 32 + (backwards ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes)); }
void run(Context& here, unsigned thread) {
    block.thread = thread;
    go(here, threads.fibers[thread]->here);
}
// Runs a ready lane of the next warp that has one. If none has, the block has ended or is stuck.
void next_warp(Context& here, unsigned me) {
    for (unsigned tried = 0; tried < warps(); tried++) {
        threads.at = threads.at + 1 == warps() ? 0 : threads.at + 1;
        unsigned warp = backwards ? warps() - 1 - threads.at : threads.at;
        if (!threads.ready[warp]) continue;
        unsigned other = first_of(warp, threads.ready[warp]);
        if (other != me) run(here, other);
        return;
    }
    threads.stuck = threads.live > 0;
    go(here, threads.scheduler);
}
void next(Context& here, unsigned me) {
    u32 others = threads.ready[me / 32] & ~bit(me);
    if (others) run(here, first_of(me / 32, others));
    else next_warp(here, me);
}
// Loop of every fiber, for ever: runs one thread's kernel after another.
void run_fiber() {
    for (;;) {
        threads.body(threads.arguments);
        unsigned me = block.thread;
        threads.ready[me / 32] &= ~bit(me);
        threads.live--;
        for (int kind = 0; kind < 3; kind++) { // threads that have ended are no longer waited for
            Meeting& of = meeting(kind, me);
            if (--of.live > 0 && of.came == of.live) release(kind, me);
        }
        next(threads.fibers[me]->here, me);
    }
}
} // namespace

static void meet(int kind) {
    unsigned me = block.thread;
    Context& here = threads.fibers[me]->here;
    Meeting& of = meeting(kind, me);
    if (++of.came == of.live) {
        release(kind, me);
        if (kind == 1) {
            unsigned first = first_of(me / 32, threads.ready[me / 32]);
            if (first != me) run(here, first);
            return;
        }
        threads.aside = 0;
        threads.at = warps() - 1; // the first warp in the order is next
        return next_warp(here, me);
    }
    threads.ready[me / 32] &= ~bit(me);
    threads.waiting[me / 32] |= bit(me);
    next(here, me);
}
void meet_block() { meet(0); }
void meet_warp() { meet(1); }
void meet_group() { meet(2); }
// All lanes of a warp step aside before another warp runs, so that they all look again at the same time.
void step_aside() {
    unsigned me = block.thread;
    Context& here = threads.fibers[me]->here;
    threads.stuck |= ++threads.aside > 10 * 1000 * 1000; // for ever: a step takes some thousands
    if (threads.stuck) go(here, threads.scheduler);
    u32 later = threads.ready[me / 32] & (backwards ? bit(me) - 1 : ~(bit(me) | (bit(me) - 1)));
    if (later) run(here, first_of(me / 32, later));
    else next_warp(here, me);
}
unsigned char* hand(unsigned thread, int kind) {
    unsigned side = threads.fibers[block.thread]->parity[kind] & 1;
    return &threads.hands[(((size_t)thread * 2 + kind) * 2 + side) * 64];
}
void handed(int kind) { threads.fibers[block.thread]->parity[kind]++; }

// Runs all blocks of a kernel, one after another; true if each ended. Backwards, the odd ones run first: in
// plain reverse order a sum over warps would add the same pairs.
bool launch(void (*body)(void**), void** arguments, dim3 blocks, unsigned n, unsigned shared) {
    std::lock_guard<std::mutex> held(launching);
    auto& t = threads;
    while (t.fibers.size() < n) {
        Fiber* fiber = new Fiber;
        fiber->stack.resize(STACK);
        begin(fiber->here, fiber->stack.data(), STACK, run_fiber);
        t.fibers.push_back(fiber);
    }
    t.hands.resize((size_t)MOST * 256);
    std::vector<unsigned char> memory(shared + 1024);
    t.body = body;
    t.arguments = arguments;
    block.threads = {n, 1, 1};
    block.blocks = blocks;
    block.shared = (unsigned char*)(((uintptr_t)memory.data() + 1023) & ~(uintptr_t)1023);
    u64 all = (u64)blocks.x * blocks.y * blocks.z;
    for (u64 i = 0; i < all; i++) {
        u64 number = !backwards ? i : i < all / 2 ? all / 2 * 2 - 1 - 2 * i : 2 * (all - 1 - i);
        block.index = {unsigned(number % blocks.x), unsigned(number / blocks.x % blocks.y), unsigned(number / blocks.x / blocks.y)};
        memset(block.shared, 0xff, shared); // what is not written is NaN
        for (int kind = 0; kind < 3; kind++)
            for (unsigned first = 0; first < n; first += WIDTH[kind])
                t.meetings[kind][first / WIDTH[kind]] = {std::min(WIDTH[kind], n - first), 0};
        for (unsigned warp = 0; warp < MOST / 32; warp++)
            t.ready[warp] = warp < n / 32 ? ~0u : warp == n / 32 ? bit(n) - 1 : 0, t.waiting[warp] = 0;
        t.live = n;
        t.at = warps() - 1;
        t.stuck = false;
        t.aside = 0;
        next_warp(t.scheduler, MOST);
        if (t.stuck) { // waiting fibers are abandoned; a card that has failed runs no more
            t.fibers.clear();
            return false;
        }
    }
    return true;
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
thread_local int passing = -1; // how many more events pass that this thread records; -1: all
// This thread's current context; the handle of a card's stream is the same.
thread_local Handle current = nullptr;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, NO_CONTEXT = 201, BAD_PTX = 218, NOT_FOUND = 500, NOT_READY = 600, STUCK = 719 };

extern "C" {
// Not a function of the driver: sets the order in which blocks and threads run from now on.
void twinOrder(int backwards) { twin::backwards = backwards; }
// Not a function of the driver: sets how many of the events that this thread records from now on pass; -1:
// all.
void twinEvents(int many) { passing = many; }
// The numbers of the visible cards: of all, those of CUDA_VISIBLE_DEVICES up to the first that is invalid.
static std::vector<int> visible() {
    const char *cards = getenv("EQUIPART_TWIN_CARDS"), *listed = getenv("CUDA_VISIBLE_DEVICES");
    std::vector<int> numbers;
    const int all = cards ? atoi(cards) : 1;
    if (!listed)
        for (int card = 0; card < all; ++card) numbers.push_back(card);
    for (char* end = nullptr; listed; listed = *end == ',' ? end + 1 : nullptr) {
        const long card = strtol(listed, &end, 10);
        if (end == listed || card < 0 || card >= all) break;
        numbers.push_back((int)card);
    }
    return numbers;
}
int cuInit(unsigned) { return visible().empty() ? NO_DEVICE : OK; }
int cuDriverGetVersion(int* version) { return *version = 13000, OK; }
int cuDeviceGetCount(int* count) { return *count = (int)visible().size(), OK; }
int cuDeviceGet(int* device, int ordinal) { return *device = visible()[ordinal], OK; }
int cuDeviceGetPCIBusId(char* id, int len, int device) { return snprintf(id, len, "0000:%02x:00.0", device + 1), OK; }
int cuDeviceGetName(char* name, int len, int) { return strncpy(name, "the CPU's twin of a GPU", len), OK; }
int cuDeviceGetAttribute(int* value, int which, int) {
    *value = which == 75 ? 9 : which == 76 ? 0 : which == 16 ? 2 : 0;
    return OK;
}
int cuDevicePrimaryCtxRetain(Handle* context, int device) { return *context = (Handle)(size_t)(device + 1), OK; }
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
int cuCtxSetCurrent(Handle context) { return current = context, OK; }
int cuMemGetInfo_v2(size_t* free, size_t* total) {
    std::lock_guard<std::mutex> held(card().lock);
    return *free = card().total - card().used, *total = card().total, OK;
}
int cuMemAlloc_v2(u64* at, size_t bytes) {
    if (!current) return NO_CONTEXT;
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
// Checks that a stream is that of this thread's current context.
int on(Handle stream) { return stream && stream == current ? OK : NO_CONTEXT; }
int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, Handle s) { return memcpy((void*)to, from, bytes), on(s); }
int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, Handle s) { return memcpy(to, (void*)from, bytes), on(s); }
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, Handle s) { return memmove((void*)to, (void*)from, bytes), on(s); }
int cuMemsetD8Async(u64 at, unsigned char byte, size_t bytes, Handle s) { return memset((void*)at, byte, bytes), on(s); }
int cuStreamCreate(Handle* stream, unsigned) { return *stream = current, current ? OK : NO_CONTEXT; }
int cuStreamDestroy_v2(Handle) { return OK; }
int cuStreamSynchronize(Handle stream) { return on(stream); }
int cuStreamWaitEvent(Handle stream, Handle, unsigned) { return on(stream); }
int cuMemHostAlloc(Handle* at, size_t bytes, unsigned) { return (*at = malloc(bytes)) ? OK : NO_MEMORY; }
int cuMemFreeHost(Handle at) { return free(at), OK; }
int cuEventCreate(Handle* event, unsigned) { return *event = new timespec{}, OK; }
int cuEventRecord(Handle event, Handle stream) {
    clock_gettime(CLOCK_MONOTONIC, (timespec*)event);
    if (passing == 0) ((timespec*)event)->tv_sec = -1;
    passing -= passing > 0;
    return on(stream);
}
int cuEventQuery(Handle event) { return ((timespec*)event)->tv_sec < 0 ? NOT_READY : OK; }
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
// CUlaunchConfig, with which a launch's attributes change nothing here: kernels run one after another.
struct LaunchConfig {
    unsigned blocks[3], threads[3], shared;
    Handle stream;
    void* attributes;
    unsigned count;
};
int cuLaunchKernelEx(const LaunchConfig* how, Handle function, Handle* arguments, Handle*) {
    if (on(how->stream)) return NO_CONTEXT;
    const unsigned *threads = how->threads, *blocks = how->blocks;
    if (threads[0] == 0 || threads[0] > 1024 || threads[1] != 1 || threads[2] != 1 || how->shared > 227u << 10) return INVALID;
    dim3 all = {blocks[0], blocks[1], blocks[2]};
    return twin::launch(((twin::Kernel*)function)->body, arguments, all, threads[0], how->shared) ? OK : STUCK;
}
// A matrix of 16-bit elements, as `hopper::Map` of hopper.cuh holds it here: address, columns, rows, bytes
// from row to row.
int cuTensorMapEncodeTiled(u64* map, int type, unsigned rank, void* at, const u64* dims, const u64* strides,
                           const unsigned* box, const unsigned* steps, int interleave, int swizzle, int, int fill) {
    bool known = type == 9 && rank == 2 && interleave == 0 && swizzle == 3 && fill == 0;
    bool shaped = box[0] == hopper::BOX && box[1] == hopper::BOX && steps[0] == 1 && steps[1] == 1 && dims[0] && dims[1];
    if (!known || !shaped || (u64)at % 16 || strides[0] % 16 || (u64)map % 64) return INVALID;
    map[0] = (u64)at, map[1] = dims[0], map[2] = dims[1], map[3] = strides[0];
    return OK;
}
int cuGetErrorName(int error, const char** name) {
    *name = error == INVALID ? "CUDA_ERROR_INVALID_VALUE"
            : error == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == BAD_PTX ? "CUDA_ERROR_INVALID_PTX"
            : error == STUCK ? "CUDA_ERROR_LAUNCH_FAILED"
            : error == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_UNKNOWN";
    return OK;
}
int cuGetErrorString(int error, const char** text) {
    *text = error == INVALID ? "invalid argument"
            : error == NO_MEMORY ? "out of memory"
            : error == BAD_PTX ? "a PTX JIT compilation failed"
            : error == STUCK ? "threads of a block wait for others that never come to the same barrier"
            : error == NOT_FOUND ? "named symbol not found" : "unknown error";
    return OK;
}
}
