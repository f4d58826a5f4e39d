// Host twin of NCCL: the functions of `nccl.rs` with the same names and meanings, for ranks that are threads
// of one process and communicators that do not block. A collective runs, in rank order, when the last rank
// has called it. Until then the ranks' communicators are in progress; for ever if one rank calls something
// else, as on cards.
//
// Faults by size: with 13 ranks there is no network; a sum of 4001 elements fails, which only the second
// status query reports; a sum of 4003 never completes.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace {
enum { OK = 0, SYSTEM = 2, INVALID = 4, REMOTE = 6, IN_PROGRESS = 7 };
enum Kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV };
const size_t NO_NETWORK = 13, BREAKS = 4001, NEVER = 4003;

struct Op {
    Kind kind;
    const void* give;
    void* take;
    size_t count;
    int type, how, peer; // peer: the root, or the other rank
    bool done;
    bool same(const Op& o) const {
        return kind == o.kind && count == o.count && type == o.type && how == o.how && peer == o.peer;
    }
};
struct World;
struct Comm {
    World* world;
    size_t rank;
    bool broken, told; // a sum failed; a status query has passed since without reporting it
    std::deque<std::vector<Op>> groups; // requested and not done
};
struct World {
    std::vector<Comm*> ranks;
    size_t came, left;
};
std::mutex lock; // guards everything below
std::map<uint64_t, World*> worlds;
uint64_t ids;
thread_local int depth;
thread_local std::vector<std::pair<Comm*, Op>> asked;

size_t size_of(int type) { return type == 1 ? 1 : type == 9 ? 2 : 4; }
float read(const void* at, size_t i, int type) {
    if (type == 7) return ((const float*)at)[i];
    uint32_t bits = (uint32_t)((const uint16_t*)at)[i] << 16;
    float x;
    return memcpy(&x, &bits, 4), x;
}
void write(void* at, size_t i, int type, float x) {
    if (type == 7) {
        ((float*)at)[i] = x;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1); // to nearest, ties to even
    ((uint16_t*)at)[i] = x != x ? 0x7fc0 : rounded >> 16;
}
// Reduces `count` elements of all ranks' windows, from `at` on.
void reduce(const std::vector<Op*>& ops, size_t at, size_t count, void* take) {
    int type = ops[0]->type, how = ops[0]->how;
    for (size_t i = 0; i < count; i++) {
        float sum = read(ops[0]->give, at + i, type);
        for (size_t r = 1; r < ops.size(); r++) {
            float x = read(ops[r]->give, at + i, type);
            sum = how == 0 ? sum + x : sum > x ? sum : x;
        }
        write(take, i, type, sum);
    }
}
// Performs a collective that all ranks have called.
void collective(const std::vector<Op*>& ops) {
    Op& first = *ops[0];
    size_t n = ops.size(), bytes = first.count * size_of(first.type), all = first.kind == REDUCE_SCATTER ? n : 1;
    std::vector<unsigned char> result(std::max(all, n) * bytes);
    if (first.kind == ALL_GATHER)
        for (size_t r = 0; r < n; r++) memcpy(&result[r * bytes], ops[r]->give, bytes);
    else if (first.kind == BROADCAST)
        memcpy(result.data(), ops[first.peer]->give, bytes);
    else
        reduce(ops, 0, all * first.count, result.data());
    for (size_t r = 0; r < n; r++) {
        Op& op = *ops[r];
        op.done = true;
        if (op.kind == ALL_GATHER) memcpy(op.take, result.data(), n * bytes);
        else if (op.kind == REDUCE_SCATTER) memcpy(op.take, &result[r * bytes], bytes);
        else if (op.kind != REDUCE || (size_t)op.peer == r) memcpy(op.take, result.data(), bytes);
    }
}
Op* next(Comm* comm) { // the first op of the rank's first group that is not done, unless it is a message
    if (comm->groups.empty()) return nullptr;
    for (Op& op : comm->groups.front())
        if (!op.done) return op.kind < SEND ? &op : nullptr;
    return nullptr;
}
Op* message(Comm* comm, Kind kind, size_t peer) {
    if (comm->groups.empty()) return nullptr;
    for (Op& op : comm->groups.front())
        if (!op.done && op.kind == kind && (size_t)op.peer == peer) return &op;
    return nullptr;
}
bool messages(World* world) {
    bool moved = false;
    for (Comm* from : world->ranks)
        for (Comm* to : world->ranks) {
            Op *send = message(from, SEND, to->rank), *recv = message(to, RECV, from->rank);
            if (!send || !recv || send->count != recv->count || send->type != recv->type) continue;
            memcpy(recv->take, send->give, send->count * size_of(send->type));
            moved = send->done = recv->done = true;
        }
    return moved;
}
// Performs everything that can be done.
void progress(World* world) {
    if (world->came < world->ranks.size()) return;
    for (bool moved = true; moved;) {
        moved = messages(world);
        std::vector<Op*> ops;
        for (Comm* comm : world->ranks) ops.push_back(next(comm));
        bool all = std::all_of(ops.begin(), ops.end(), [&](Op* op) { return op && ops[0] && op->same(*ops[0]); });
        bool sum = all && ops[0]->kind == ALL_REDUCE;
        if (sum && ops[0]->count == BREAKS)
            for (Comm* comm : world->ranks) comm->broken = true;
        if (all && !(sum && ops[0]->count == NEVER)) {
            collective(ops);
            moved = true;
        }
        for (Comm* comm : world->ranks)
            while (!comm->groups.empty() && std::all_of(comm->groups.front().begin(), comm->groups.front().end(),
                                                        [](Op& op) { return op.done; }))
                comm->groups.pop_front();
    }
}
int ask(Comm* comm, Op op) {
    if (depth == 0) return INVALID; // a rank alone would wait for the others
    return asked.push_back({comm, op}), OK;
}
int leave(Comm* comm) {
    std::lock_guard<std::mutex> held(lock);
    World* world = comm->world;
    comm->groups.clear();
    if (++world->left == world->came) {
        for (Comm* of : world->ranks) delete of;
        delete world;
    }
    return OK;
}
} // namespace

struct Id {
    uint64_t number[16];
};

#ifndef TWIN_VERSION
#define TWIN_VERSION 21803
#endif

extern "C" {
int ncclGetVersion(int* version) { return *version = TWIN_VERSION, OK; }
int ncclGetUniqueId(Id* id) {
    std::lock_guard<std::mutex> held(lock);
    return id->number[0] = ++ids, OK;
}
int ncclCommInitRankConfig(Comm** comm, int n, Id id, int rank, void*) {
    std::lock_guard<std::mutex> held(lock);
    if (n == (int)NO_NETWORK) return SYSTEM;
    World*& world = worlds[id.number[0]];
    if (!world) world = new World{std::vector<Comm*>(n), 0, 0};
    *comm = world->ranks[rank] = new Comm{world, (size_t)rank, false, false, {}};
    if (++world->came == (size_t)n) worlds.erase(id.number[0]);
    return IN_PROGRESS;
}
int ncclCommFinalize(Comm*) { return IN_PROGRESS; }
int ncclCommDestroy(Comm* comm) { return leave(comm); }
int ncclCommAbort(Comm* comm) { return leave(comm); }
int ncclCommGetAsyncError(Comm* comm, int* error) {
    std::lock_guard<std::mutex> held(lock);
    bool busy = comm->world->came < comm->world->ranks.size() || !comm->groups.empty();
    *error = comm->told ? REMOTE : busy ? IN_PROGRESS : OK;
    comm->told = comm->broken;
    return OK;
}
const char* ncclGetErrorString(int error) {
    return error == SYSTEM ? "unhandled system error"
           : error == INVALID ? "invalid argument"
           : error == REMOTE ? "remote process exited or there was a network error" : "unknown result code";
}
#ifndef TWIN_WITHOUT_LAST_ERROR
const char* ncclGetLastError(Comm*) { return ""; }
#endif
int ncclGroupStart() { return depth++, OK; }
int ncclGroupEnd() {
    if (depth == 0) return INVALID;
    if (--depth > 0) return OK;
    std::lock_guard<std::mutex> held(lock);
    std::map<Comm*, std::vector<Op>> groups;
    for (auto& [comm, op] : asked) groups[comm].push_back(op);
    asked.clear();
    for (auto& [comm, ops] : groups) comm->groups.push_back(std::move(ops));
    for (auto& [comm, ops] : groups) progress(comm->world);
    return IN_PROGRESS;
}
int ncclAllReduce(const void* give, void* take, size_t n, int type, int how, Comm* comm, void*) {
    return ask(comm, {ALL_REDUCE, give, take, n, type, how, 0, false});
}
int ncclReduce(const void* give, void* take, size_t n, int type, int how, int root, Comm* comm, void*) {
    return ask(comm, {REDUCE, give, take, n, type, how, root, false});
}
int ncclReduceScatter(const void* give, void* take, size_t n, int type, int how, Comm* comm, void*) {
    return ask(comm, {REDUCE_SCATTER, give, take, n, type, how, 0, false});
}
int ncclAllGather(const void* give, void* take, size_t n, int type, Comm* comm, void*) {
    return ask(comm, {ALL_GATHER, give, take, n, type, 0, 0, false});
}
int ncclBroadcast(const void* give, void* take, size_t n, int type, int root, Comm* comm, void*) {
    return ask(comm, {BROADCAST, give, take, n, type, 0, root, false});
}
int ncclSend(const void* give, size_t n, int type, int peer, Comm* comm, void*) {
    return ask(comm, {SEND, give, nullptr, n, type, 0, peer, false});
}
int ncclRecv(void* take, size_t n, int type, int peer, Comm* comm, void*) {
    return ask(comm, {RECV, nullptr, take, n, type, 0, peer, false});
}
}
