// A stand-in for librccl and libnccl: real bytes between processes, over shared memory, on the host's own addresses. What
// it shows is that the binding and the logic above it are right; nothing about speed.
//
// A communicator that does not block hands its calls to a thread and says "in progress" until they are done. Like the
// real ones, a call whose peer has died waits for ever, until an abort. Faults come from ROOST_STANDIN, read when a
// communicator is made: "hang=3" (the third operation never ends), "fail=2:3" (the second returns code 3), "slow=50" (ms
// before every operation), "hang_call=2" (the call of the second does not return), "hang_init=1", "hang_abort=1".
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 32, SLOT = 1 << 18, MAIL = 1 << 14 };
enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL, INVALID, USAGE, REMOTE, IN_PROGRESS };

struct mail { _Atomic uint32_t bytes; char data[MAIL]; };
struct segment {
    _Atomic uint64_t arrived[RANKS];
    int colour[RANKS], key[RANKS];
    struct mail mail[RANKS][RANKS];
    char slots[RANKS][SLOT];
};
struct job { int kind, type, op, root, colour, key; const char *from; char *to; size_t count; struct comm **made; struct job *next; };
struct comm {
    struct segment *segment;
    char name[96];
    int rank, ranks, blocking, splits, operations;
    uint64_t rounds;
    int hang, fail, fail_code, slow, hang_call, hang_init, hang_abort;
    _Atomic int aborted, pending, result, calling;
    pthread_t thread;
    int threaded;
    struct job *jobs;
    char said[128];
};
typedef struct { char internal[128]; } unique_id;
typedef struct { size_t size; unsigned magic, version; int blocking; } config;

static _Thread_local int depth;
static _Thread_local struct comm *grouped;
static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
enum { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECEIVE, JOIN, SPLIT };

static void nap(void) { usleep(100); }
// Every wait ends with an abort; the others never do if a peer is dead.
#define WAIT(comm, condition) do { while (!(condition)) { if ((comm)->aborted) return INTERNAL; nap(); } } while (0)

static int barrier(struct comm *comm) {
    comm->segment->arrived[comm->rank] = ++comm->rounds;
    for (int i = 0; i < comm->ranks; i++) WAIT(comm, comm->segment->arrived[i] >= comm->rounds);
    return SUCCESS;
}

static float half_to_float(uint16_t h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
static uint16_t float_to_half(float f) { _Float16 x = (_Float16)f; uint16_t h; memcpy(&h, &x, 2); return h; }
static float brain_to_float(uint16_t b) { uint32_t w = (uint32_t)b << 16; float f; memcpy(&f, &w, 4); return f; }
static uint16_t float_to_brain(float f) { uint32_t w; memcpy(&w, &f, 4); return (uint16_t)((w + 0x7fff + (w >> 16 & 1)) >> 16); }

#define JOINED(a, b) (op == 0 || op == 4 ? (a) + (b) : op == 1 ? (a) * (b) : op == 2 ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))
#define NATIVE(kind) { kind *t = to; const kind *f = from; for (size_t i = 0; i < n; i++) t[i] = (kind)JOINED(t[i], f[i]); if (last && op == 4) for (size_t i = 0; i < n; i++) t[i] = (kind)(t[i] / (kind)ranks); } break
#define NARROW(read, write) { uint16_t *t = to; const uint16_t *f = from; for (size_t i = 0; i < n; i++) { float a = read(t[i]), b = read(f[i]); t[i] = write(JOINED(a, b)); } if (last && op == 4) for (size_t i = 0; i < n; i++) t[i] = write(read(t[i]) / (float)ranks); } break
static void reduce_into(void *to, const void *from, size_t n, int type, int op, int last, int ranks) {
    switch (type) {
        case 0: NATIVE(int8_t);
        case 1: NATIVE(uint8_t);
        case 2: NATIVE(int32_t);
        case 3: NATIVE(uint32_t);
        case 4: NATIVE(int64_t);
        case 5: NATIVE(uint64_t);
        case 6: NARROW(half_to_float, float_to_half);
        case 7: NATIVE(float);
        case 8: NATIVE(double);
        case 9: NARROW(brain_to_float, float_to_brain);
    }
}

// `count` elements of every rank, a piece that fits a slot at a time: all write, all wait, all read, all wait.
static int collect(struct comm *comm, struct job *job, size_t count, size_t skip_to, size_t ours) {
    size_t size = SIZES[job->type], piece = SLOT / size;
    for (size_t done = 0; done < count; done += piece) {
        size_t n = count - done < piece ? count - done : piece;
        if (job->kind != BROADCAST || comm->rank == job->root) memcpy(comm->segment->slots[comm->rank], job->from + done * size, n * size);
        int code = barrier(comm);
        if (code) return code;
        if (job->kind == BROADCAST) memcpy(job->to + done * size, comm->segment->slots[job->root], n * size);
        else if (job->kind == ALL_GATHER)
            for (int i = 0; i < comm->ranks; i++) memcpy(job->to + (i * count + done) * size, comm->segment->slots[i], n * size);
        else if (job->kind == ALL_REDUCE || (job->kind == REDUCE && comm->rank == job->root)) {
            char *sum = malloc(n * size);
            memcpy(sum, comm->segment->slots[0], n * size);
            for (int i = 1; i < comm->ranks; i++) reduce_into(sum, comm->segment->slots[i], n, job->type, job->op, i == comm->ranks - 1, comm->ranks);
            // Of a reduce-scatter this rank keeps only its own part.
            for (size_t i = 0; i < n; i++)
                if (done + i >= skip_to && done + i < skip_to + ours) memcpy(job->to + (done + i - skip_to) * size, sum + i * size, size);
            free(sum);
        }
        if ((code = barrier(comm))) return code;
    }
    return SUCCESS;
}

static int collective(struct comm *comm, struct job *job) {
    if (job->kind != REDUCE_SCATTER) return collect(comm, job, job->count, 0, job->count);
    job->kind = ALL_REDUCE;
    return collect(comm, job, job->count * comm->ranks, job->count * comm->rank, job->count);
}

// All sends and receives of a group, each as far as it comes, until all are done.
static int exchange(struct comm *comm, struct job *jobs) {
    for (;;) {
        int left = 0, moved = 0;
        for (struct job *job = jobs; job; job = job->next) {
            size_t bytes = job->count * SIZES[job->type], n = bytes < MAIL ? bytes : MAIL;
            if (!bytes) continue;
            left = 1;
            // Of one peer, the first of a kind goes first.
            for (struct job *before = jobs; before != job; before = before->next)
                if (before->kind == job->kind && before->root == job->root && before->count) goto next;
            int sending = job->kind == SEND;
            struct mail *mail = sending ? &comm->segment->mail[comm->rank][job->root] : &comm->segment->mail[job->root][comm->rank];
            if (sending && mail->bytes == 0) {
                memcpy(mail->data, job->from, n);
                mail->bytes = (uint32_t)n;
                job->from += n;
            } else if (!sending && mail->bytes) {
                n = mail->bytes;
                memcpy(job->to, mail->data, n);
                mail->bytes = 0;
                job->to += n;
            } else continue;
            job->count -= n / SIZES[job->type];
            moved = 1;
        next:;
        }
        if (!left) return SUCCESS;
        if (comm->aborted) return INTERNAL;
        if (!moved) nap();
    }
}

static int split(struct comm *comm, struct job *job);
static int perform(struct comm *comm, struct job *jobs) {
    comm->operations++;
    if (comm->slow) usleep((unsigned)comm->slow * 1000);
    if (comm->operations == comm->hang) WAIT(comm, 0);
    if (comm->operations == comm->fail) {
        snprintf(comm->said, sizeof comm->said, "operation %d failed, as the test wanted", comm->operations);
        return comm->fail_code;
    }
    if (jobs->kind == JOIN) {
        if (comm->hang_init) WAIT(comm, 0);
        comm->operations = 0;
        int code = barrier(comm);
        // All have it open: no name is left of it, however its ranks end.
        shm_unlink(comm->name);
        return code;
    }
    if (jobs->kind == SPLIT) return split(comm, jobs);
    return jobs->kind == SEND || jobs->kind == RECEIVE ? exchange(comm, jobs) : collective(comm, jobs);
}

static void *in_thread(void *argument) {
    struct comm *comm = argument;
    int code = perform(comm, comm->jobs);
    for (struct job *job = comm->jobs, *next; job; job = next) { next = job->next; free(job); }
    comm->result = code;
    comm->pending = 0;
    return NULL;
}

static int start(struct comm *comm, struct job *jobs) {
    if (comm->aborted) return USAGE;
    comm->calling++;
    while (comm->operations + 1 == comm->hang_call && !comm->aborted) nap();
    comm->calling--;
    if (comm->aborted) return USAGE;
    if (comm->threaded) {
        if (comm->pending) return USAGE; // a call before the last was under way
        pthread_join(comm->thread, NULL);
        comm->threaded = 0;
    }
    comm->jobs = jobs;
    comm->pending = 1;
    if (comm->blocking) { in_thread(comm); return comm->result; }
    comm->threaded = 1;
    pthread_create(&comm->thread, NULL, in_thread, comm);
    return IN_PROGRESS;
}

static int add(struct comm *comm, struct job job) {
    if (job.type < 0 || job.type > 9 || job.op < 0 || job.op > 4 || job.root < 0 || job.root >= comm->ranks) return INVALID;
    struct job *kept = malloc(sizeof *kept), **end = &comm->jobs;
    *kept = job;
    kept->next = NULL;
    if (!depth) return start(comm, kept);
    if (grouped != comm) comm->jobs = NULL;
    grouped = comm;
    while (*end) end = &(*end)->next;
    *end = kept;
    return SUCCESS;
}

int ncclGroupStart(void) { depth++; return SUCCESS; }
int ncclGroupEnd(void) {
    if (!depth) return USAGE;
    struct comm *comm = grouped;
    if (--depth || !comm) return SUCCESS;
    grouped = NULL;
    return start(comm, comm->jobs);
}
int ncclGetVersion(int *version) { *version = 22707; return SUCCESS; }
int ncclGetUniqueId(unique_id *id) {
    static _Atomic int count;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, 64, "/roost-standin-%d-%d", getpid(), ++count);
    return SUCCESS;
}

static struct comm *make(const char *name, int ranks, int rank, int blocking) {
    struct comm *comm = calloc(1, sizeof *comm);
    snprintf(comm->name, sizeof comm->name, "%s", name);
    comm->rank = rank;
    comm->ranks = ranks;
    comm->blocking = blocking;
    const char *faults = getenv("ROOST_STANDIN"), *found;
    if (!faults) faults = "";
    if ((found = strstr(faults, "hang="))) comm->hang = atoi(found + 5);
    if ((found = strstr(faults, "slow="))) comm->slow = atoi(found + 5);
    if ((found = strstr(faults, "fail="))) sscanf(found, "fail=%d:%d", &comm->fail, &comm->fail_code);
    if ((found = strstr(faults, "hang_call="))) comm->hang_call = atoi(found + 10);
    comm->hang_init = !!strstr(faults, "hang_init=1");
    comm->hang_abort = !!strstr(faults, "hang_abort=1");
    int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct segment))) return NULL;
    comm->segment = mmap(NULL, sizeof(struct segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return comm;
}
static int join(struct comm **made, const char *name, int ranks, int rank, int blocking) {
    if (ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks) return INVALID;
    struct comm *comm = *made = make(name, ranks, rank, blocking);
    if (!comm) return SYSTEM_ERROR;
    struct job *job = calloc(1, sizeof *job);
    job->kind = JOIN;
    return start(comm, job);
}
int ncclCommInitRank(struct comm **made, int ranks, unique_id id, int rank) { return join(made, id.internal, ranks, rank, 1); }
int ncclCommInitRankConfig(struct comm **made, int ranks, unique_id id, int rank, config *with) {
    if (with->magic != 0xcafebeef || with->size != 72 || with->version != 22707) return INVALID;
    return join(made, id.internal, ranks, rank, with->blocking != 0);
}

// One that was not joined has its name yet.
static int end_comm(struct comm *comm, int hanging) {
    comm->aborted = 1;
    while (hanging || comm->calling) nap();
    if (comm->threaded) pthread_join(comm->thread, NULL);
    shm_unlink(comm->name);
    munmap(comm->segment, sizeof(struct segment));
    free(comm);
    return SUCCESS;
}
int ncclCommAbort(struct comm *comm) { return end_comm(comm, comm->hang_abort); }
int ncclCommDestroy(struct comm *comm) { return end_comm(comm, 0); }
int ncclCommFinalize(struct comm *comm) {
    struct job *job = calloc(1, sizeof *job);
    job->kind = JOIN;
    return start(comm, job);
}
int ncclCommGetAsyncError(struct comm *comm, int *code) { *code = comm->pending ? IN_PROGRESS : comm->result; return SUCCESS; }
int ncclCommCount(struct comm *comm, int *count) { *count = comm->ranks; return SUCCESS; }
int ncclCommCuDevice(struct comm *comm, int *device) { (void)comm; *device = 0; return SUCCESS; }
int ncclCommUserRank(struct comm *comm, int *rank) { *rank = comm->rank; return SUCCESS; }
const char *ncclGetErrorString(int code) {
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
    return code >= 0 && code < 8 ? texts[code] : "unknown result code";
}
const char *ncclGetLastError(struct comm *comm) { return comm ? comm->said : ""; }

// As the real ones: without blocking, the child's handle is written when the parent's work is done, not before.
static int split(struct comm *comm, struct job *job) {
    comm->segment->colour[comm->rank] = job->colour;
    comm->segment->key[comm->rank] = job->key;
    int code = barrier(comm), ranks = 0, rank = 0;
    if (code) return code;
    for (int i = 0; i < comm->ranks; i++) {
        if (comm->segment->colour[i] != job->colour) continue;
        int theirs = comm->segment->key[i];
        ranks++;
        rank += theirs < job->key || (theirs == job->key && i < comm->rank);
    }
    char name[96];
    snprintf(name, sizeof name, "%.70s.%d.%d", comm->name, ++comm->splits, job->colour);
    if ((code = barrier(comm)) || job->colour < 0) return code;
    code = join(job->made, name, ranks, rank, comm->blocking);
    return code == IN_PROGRESS ? SUCCESS : code;
}
int ncclCommSplit(struct comm *comm, int colour, int key, struct comm **made, config *with) {
    if (with && with->size != 72) return INVALID;
    struct job *job = calloc(1, sizeof *job);
    *job = (struct job){.kind = SPLIT, .colour = colour, .key = key, .made = made};
    *made = NULL;
    return start(comm, job);
}

#define COLLECTIVE(comm, ...) return add(comm, (struct job){__VA_ARGS__})
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, struct comm *comm, void *stream) { (void)stream; COLLECTIVE(comm, .kind = ALL_REDUCE, .type = type, .op = op, .from = from, .to = to, .count = count); }
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, struct comm *comm, void *stream) { (void)stream; COLLECTIVE(comm, .kind = REDUCE, .type = type, .op = op, .root = root, .from = from, .to = to, .count = count); }
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, struct comm *comm, void *stream) { (void)stream; COLLECTIVE(comm, .kind = REDUCE_SCATTER, .type = type, .op = op, .from = from, .to = to, .count = count); }
int ncclAllGather(const void *from, void *to, size_t count, int type, struct comm *comm, void *stream) { (void)stream; COLLECTIVE(comm, .kind = ALL_GATHER, .type = type, .from = from, .to = to, .count = count); }
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct comm *comm, void *stream) { (void)stream; COLLECTIVE(comm, .kind = BROADCAST, .type = type, .root = root, .from = from, .to = to, .count = count); }
int ncclSend(const void *from, size_t count, int type, int peer, struct comm *comm, void *stream) { (void)stream; COLLECTIVE(comm, .kind = SEND, .type = type, .root = peer, .from = from, .count = count); }
int ncclRecv(void *to, size_t count, int type, int peer, struct comm *comm, void *stream) { (void)stream; COLLECTIVE(comm, .kind = RECEIVE, .type = type, .root = peer, .to = to, .count = count); }
