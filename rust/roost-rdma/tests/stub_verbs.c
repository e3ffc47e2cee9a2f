/* A stand-in for libibverbs.so.1 that moves real bytes between queue pairs of one process, or of several on one host, and does what
 * soft-RoCE cannot: several NICs, no resources for reads, errors on demand, dma-bufs, ports that are down, work that stays out.
 *
 * The tests compile it (cc -shared -fPIC) and name it in ROOST_IBVERBS. It is set up by ROOST_STUB_VERBS="devices=2 down=1" in the
 * environment and by stub_set() at run time. Several processes share what ROOST_STUB_VERBS_FILE names. Its structs are those of
 * libibverbs as far as the crate's `sys` declares them, which a unit test compares with the headers. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { DEVICES = 8, PAIRS = 4096, REGIONS = 16384 };
enum { INIT = 1, RTR = 2, RTS = 3, ERR = 6 };
enum { OK = 0, LOC_PROT = 4, FLUSHED = 5, REM_INV_REQ = 9, REM_ACCESS = 10, REM_OP = 11, RETRY = 12 };
enum { LOCAL_WRITE = 1, REMOTE_WRITE = 2, REMOTE_READ = 4 };

struct device { void *dummies[2]; int node_type, transport_type; char name[64], dev_name[64], dev_path[256], ibdev_path[256]; };
struct cq; struct qp; struct wr; struct wc;
struct context {
    struct device *device;
    void *before_poll[11];
    int (*poll_cq)(struct cq *, int, struct wc *);
    int (*req_notify_cq)(struct cq *, int);
    void *before_post[12];
    int (*post_send)(struct qp *, struct wr *, struct wr **);
    void *after_post[6];
    int cmd_fd, async_fd, vectors;
    pthread_mutex_t mutex;
    void *abi_compat;
};
struct pd { struct context *context; };
struct mr { struct context *context; struct pd *pd; void *addr; size_t length; uint32_t handle, lkey, rkey; };
struct channel { struct context *context; int fd, refcnt, write_fd; };
struct wc { uint64_t wr_id; int status, opcode; uint32_t vendor_err, byte_len, imm, qp_num, src_qp; unsigned flags; uint16_t pkey, slid; uint8_t sl, bits; };
struct cq { struct context *context; struct channel *channel; void *cq_context; uint32_t handle; int cqe; int count, armed; struct wc *ring; };
struct sge { uint64_t addr; uint32_t length, lkey; };
struct wr {
    uint64_t wr_id; struct wr *next; struct sge *list; int num_sge, opcode; unsigned flags; uint32_t imm;
    uint64_t remote_addr; uint32_t rkey; uint64_t room[9];
};
struct held { struct wr wr; struct sge sge; struct held *next; };
struct qp {
    struct context *context; void *qp_context; struct pd *pd; struct cq *send_cq, *recv_cq; void *srq; uint32_t handle, qp_num; int state, type;
    /* The library's own fields would follow. */
    uint32_t depth, out; struct held *first, **last; struct qp *next;
};
struct qp_init { void *context; struct cq *send_cq, *recv_cq; void *srq; uint32_t max_send_wr, max_recv_wr, sges[2], inline_data; int type, all; };
struct qp_attr { int state, cur, mtu, mig; uint32_t qkey, rq_psn, sq_psn, dest; unsigned access; uint32_t cap[5]; };
struct device_attr {
    char fw[64]; uint64_t guid, image, max_mr_size, pages; uint32_t vendor, part, hw; int max_qp, max_qp_wr; unsigned flags;
    int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd, max_res_rd, max_qp_init_rd_atom, max_ee_init, atomic, unused[14];
    uint16_t pkeys; uint8_t delay, ports;
};
struct port_attr {
    int state, max_mtu, mtu, gids; uint32_t caps, max_msg, bad_pkey, bad_qkey; uint16_t pkeys, lid, sm_lid;
    uint8_t lmc, vls, sm_sl, timeout, init, width, speed, phys, link_layer, flags;
};
struct gid_entry { uint8_t gid[16]; uint32_t index, port, type, ifindex; };

/* What all processes see: who has which queue pair and which memory. */
struct shared {
    struct { _Atomic int pid; int state; uint32_t dest; } pairs[PAIRS];
    struct { _Atomic int pid; uint32_t key; uint64_t addr, length; int access; } regions[REGIONS];
    _Atomic uint32_t keys;
};

static struct shared *shared;
static struct device devices[DEVICES], *listed[DEVICES + 1];
static struct qp *pairs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { const char *name; long value; } settings[] = {
    {"devices", 1}, {"down", 0}, {"max_rd_atomic", 16}, {"max_qp_wr", 64}, {"hold", 0}, {"fail_in", -1}, {"fail_status", RETRY}, {"memlock", -1},
    {"mrs", 0}, {"qps", 0}, {"cqs", 0}, {"registered", 0}, {"dmabufs", 0}, {"dmabuf_offset", 0}, {"most_out", 0}, {"works0", 0}, {"works1", 0},
    {"trickle", 0}, {"full", 0},
};

static long *setting(const char *name) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strcmp(settings[i].name, name)) return &settings[i].value;
    fprintf(stderr, "stub_verbs: no setting is called %s\n", name);
    abort();
}

static void start(void) {
    const char *file = getenv("ROOST_STUB_VERBS_FILE"), *wanted = getenv("ROOST_STUB_VERBS");
    int fd = file ? open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && ftruncate(fd, sizeof *shared)) abort();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    char *copy = strdup(wanted ? wanted : ""), *rest = copy, *one;
    while ((one = strsep(&rest, " "))) {
        char *value = strchr(one, '=');
        if (value) *value = 0, *setting(one) = atol(value + 1);
    }
    free(copy);
    for (int i = 0; i < DEVICES; i++) {
        devices[i] = (struct device){.node_type = 1, .transport_type = 0};
        snprintf(devices[i].name, 64, "stub%d", i);
        snprintf(devices[i].ibdev_path, 256, "/sys/class/infiniband/stub%d", i);
        listed[i] = &devices[i];
    }
}

static void once(void) { static pthread_once_t done = PTHREAD_ONCE_INIT; pthread_once(&done, start); }
static long index_of(struct context *context) { return context->device - devices; }

static void complete(struct qp *qp, struct wr *wr, int status) {
    struct cq *cq = qp->send_cq;
    if (cq->count == cq->cqe) { fprintf(stderr, "stub_verbs: the completion queue of %d overflows\n", cq->cqe); abort(); }
    cq->ring[cq->count++] = (struct wc){.wr_id = wr->wr_id, .status = status, .qp_num = qp->qp_num};
    if (cq->armed) {
        cq->armed = 0;
        if (write(cq->channel->write_fd, &cq, sizeof cq) < 0) abort();
    }
}

static int region(int pid, uint32_t key, uint64_t addr, uint32_t length, int access) {
    for (int i = 0; i < REGIONS; i++)
        if (shared->regions[i].pid == pid && shared->regions[i].key == key)
            return addr >= shared->regions[i].addr && addr + length <= shared->regions[i].addr + shared->regions[i].length
                && (shared->regions[i].access & access) == access;
    return 0;
}

static int execute(struct qp *qp, struct wr *wr) {
    uint32_t dest = shared->pairs[qp->qp_num].dest;
    int pid = shared->pairs[dest].pid, is_read = wr->opcode == 4, state = shared->pairs[dest].state;
    long *fail_in = setting("fail_in");
    ++*setting(index_of(qp->context) ? "works1" : "works0");
    if (*fail_in >= 0 && (*fail_in)-- == 0) return *setting("fail_status");
    if (state < RTR || state > RTS || shared->pairs[dest].dest != qp->qp_num || !pid || kill(pid, 0)) return RETRY;
    if (!wr->num_sge) return OK;
    if (is_read && *setting("max_rd_atomic") == 0) return REM_INV_REQ;
    struct sge sge = *wr->list;
    if (!region(getpid(), sge.lkey, sge.addr, sge.length, is_read ? LOCAL_WRITE : 0)) return LOC_PROT;
    if (!region(pid, wr->rkey, wr->remote_addr, sge.length, is_read ? REMOTE_READ : REMOTE_WRITE)) return shared->pairs[dest].state = ERR, REM_ACCESS;
    struct iovec here = {(void *)sge.addr, sge.length}, there = {(void *)wr->remote_addr, sge.length};
    ssize_t moved = is_read ? process_vm_readv(pid, &here, 1, &there, 1, 0) : process_vm_writev(pid, &here, 1, &there, 1, 0);
    return moved == (ssize_t)sge.length ? OK : errno == ESRCH ? RETRY : REM_OP;
}

static void run(struct qp *qp, struct wr *wr) {
    int status = qp->state == RTS ? execute(qp, wr) : FLUSHED;
    if (status) qp->state = shared->pairs[qp->qp_num].state = ERR;
    complete(qp, wr, status);
}

static void release_one(struct qp *qp) {
    struct held *one = qp->first;
    if (!(qp->first = one->next)) qp->last = &qp->first;
    one->wr.list = &one->sge;
    run(qp, &one->wr);
    free(one);
}

static void release(struct qp *qp) { while (qp->first) release_one(qp); }

void stub_set(const char *name, long value) {
    once();
    pthread_mutex_lock(&lock);
    *setting(name) = value;
    if (!strcmp(name, "hold") && !value)
        for (struct qp *qp = pairs; qp; qp = qp->next) release(qp);
    pthread_mutex_unlock(&lock);
}

long stub_get(const char *name) {
    once();
    pthread_mutex_lock(&lock);
    long value = *setting(name);
    pthread_mutex_unlock(&lock);
    return value;
}

static int post_send(struct qp *qp, struct wr *wr, struct wr **bad) {
    int code = 0;
    pthread_mutex_lock(&lock);
    for (; wr && !code; wr = wr->next) {
        if (qp->state < RTS) code = EINVAL;
        else if (qp->out == qp->depth || *setting("full")) code = ENOMEM;
        if (code) { *bad = wr; break; }
        if (++qp->out > *setting("most_out")) *setting("most_out") = qp->out;
        if (*setting("hold") && qp->state == RTS) {
            struct held *one = calloc(1, sizeof *one);
            one->wr = *wr;
            if (wr->num_sge) one->sge = *wr->list;
            *qp->last = one;
            qp->last = &one->next;
        } else run(qp, wr);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int poll_cq(struct cq *cq, int room, struct wc *into) {
    pthread_mutex_lock(&lock);
    int count = cq->count < room ? cq->count : room;
    memcpy(into, cq->ring, count * sizeof *into);
    memmove(cq->ring, cq->ring + count, (cq->count -= count) * sizeof *into);
    for (int i = 0; i < count; i++)
        for (struct qp *qp = pairs; qp; qp = qp->next)
            if (qp->qp_num == into[i].qp_num) qp->out--;
    pthread_mutex_unlock(&lock);
    return count;
}

static int req_notify_cq(struct cq *cq, int solicited) {
    (void)solicited;
    pthread_mutex_lock(&lock);
    cq->armed = 1;
    /* So many times, a completion comes between the request for an event and the next look. */
    for (struct qp *qp = *setting("trickle") ? pairs : NULL; qp; qp = qp->next)
        if (qp->send_cq == cq && qp->first) { --*setting("trickle"); release_one(qp); break; }
    pthread_mutex_unlock(&lock);
    return 0;
}

struct device **ibv_get_device_list(int *count) { once(); *count = *setting("devices"); return listed; }
void ibv_free_device_list(struct device **list) { (void)list; }
const char *ibv_wc_status_str(int status) {
    static const char *names[] = {[OK] = "success", [LOC_PROT] = "local protection error", [FLUSHED] = "flushed", [REM_INV_REQ] = "remote invalid request",
                                  [REM_ACCESS] = "remote access error", [REM_OP] = "remote operation error", [RETRY] = "transport retries exceeded"};
    return status >= 0 && status <= RETRY && names[status] ? names[status] : "unknown";
}
struct context *ibv_open_device(struct device *device) {
    struct context *context = calloc(1, sizeof *context);
    context->device = device, context->poll_cq = poll_cq, context->req_notify_cq = req_notify_cq, context->post_send = post_send;
    return context;
}
int ibv_close_device(struct context *context) { free(context); return 0; }
int ibv_query_device(struct context *context, struct device_attr *attr) {
    (void)context;
    int reads = *setting("max_rd_atomic"), requests = *setting("max_qp_wr");
    *attr = (struct device_attr){.max_mr_size = 1ull << 40, .max_qp = PAIRS, .max_qp_wr = requests, .max_sge = 1, .max_cqe = 1 << 16, .max_mr = REGIONS,
                                 .max_qp_rd_atom = reads, .max_qp_init_rd_atom = reads, .ports = 1};
    return 0;
}
int ibv_query_port(struct context *context, uint8_t port, struct port_attr *attr) {
    if (port != 1) return EINVAL;
    *attr = (struct port_attr){.state = *setting("down") >> index_of(context) & 1 ? 1 : 4, .mtu = 5, .gids = 4, .max_msg = 1 << 30, .link_layer = 2};
    return 0;
}
static void gid(struct context *context, uint8_t *into) {
    uint8_t address[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 78, [14] = index_of(context), [15] = 1};
    memcpy(into, address, 16);
}
int ibv_query_gid(struct context *context, uint8_t port, int index, uint8_t *into) { (void)port, (void)index; gid(context, into); return 0; }
ssize_t _ibv_query_gid_table(struct context *context, struct gid_entry *entries, size_t room, uint32_t flags, size_t size) {
    (void)flags;
    if (room < 2 || size != sizeof *entries) return -EINVAL;
    for (int i = 0; i < 2; i++) {
        entries[i] = (struct gid_entry){.index = i ? 3 : 0, .port = 1, .type = i ? 2 : 1};
        gid(context, entries[i].gid);
    }
    return 2;
}
struct pd *ibv_alloc_pd(struct context *context) { struct pd *pd = calloc(1, sizeof *pd); pd->context = context; return pd; }
int ibv_dealloc_pd(struct pd *pd) { free(pd); return 0; }

static struct mr *enroll(struct pd *pd, uint64_t addr, size_t length, int access) {
    for (int i = 0; i < REGIONS; i++) {
        int nobody = 0;
        if (!atomic_compare_exchange_strong(&shared->regions[i].pid, &nobody, getpid())) continue;
        uint32_t key = ++shared->keys;
        shared->regions[i].addr = addr, shared->regions[i].length = length, shared->regions[i].access = access, shared->regions[i].key = key;
        struct mr *mr = calloc(1, sizeof *mr);
        *mr = (struct mr){pd->context, pd, (void *)addr, length, i, key, key};
        pthread_mutex_lock(&lock);
        ++*setting("mrs"), ++*setting("registered");
        pthread_mutex_unlock(&lock);
        return mr;
    }
    return errno = ENOMEM, NULL;
}
struct mr *ibv_reg_mr(struct pd *pd, void *addr, size_t length, int access) {
    long page = sysconf(_SC_PAGESIZE), memlock = *setting("memlock");
    uintptr_t first = (uintptr_t)addr & ~(page - 1), end = (uintptr_t)addr + length;
    unsigned char *present = malloc((end - first) / page + 1);
    int is_mapped = !mincore((void *)first, end - first, present);
    free(present);
    if (!is_mapped) return errno = EFAULT, NULL;
    if (memlock >= 0 && length > (size_t)memlock) return errno = ENOMEM, NULL;
    return enroll(pd, (uintptr_t)addr, length, access);
}
struct mr *ibv_reg_dmabuf_mr(struct pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    if (fcntl(fd, F_GETFD) < 0) return errno = EBADF, NULL;
    ++*setting("dmabufs"), *setting("dmabuf_offset") = offset;
    return enroll(pd, iova, length, access);
}
int ibv_dereg_mr(struct mr *mr) {
    shared->regions[mr->handle].key = 0;
    shared->regions[mr->handle].pid = 0;
    pthread_mutex_lock(&lock);
    --*setting("mrs");
    pthread_mutex_unlock(&lock);
    free(mr);
    return 0;
}
struct channel *ibv_create_comp_channel(struct context *context) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return NULL;
    struct channel *channel = calloc(1, sizeof *channel);
    *channel = (struct channel){context, ends[0], 0, ends[1]};
    return channel;
}
int ibv_destroy_comp_channel(struct channel *channel) { close(channel->fd), close(channel->write_fd), free(channel); return 0; }
struct cq *ibv_create_cq(struct context *context, int entries, void *data, struct channel *channel, int vector) {
    struct cq *cq = calloc(1, sizeof *cq);
    (void)vector;
    *cq = (struct cq){context, channel, data, 0, entries, 0, 0, calloc(entries, sizeof(struct wc))};
    ++*setting("cqs");
    return cq;
}
int ibv_destroy_cq(struct cq *cq) { free(cq->ring), free(cq); --*setting("cqs"); return 0; }
int ibv_get_cq_event(struct channel *channel, struct cq **cq, void **data) {
    if (read(channel->fd, cq, sizeof *cq) != sizeof *cq) return -1;
    *data = (*cq)->cq_context;
    return 0;
}
void ibv_ack_cq_events(struct cq *cq, unsigned count) { (void)cq, (void)count; }
struct qp *ibv_create_qp(struct pd *pd, struct qp_init *wanted) {
    if (wanted->max_send_wr > (uint32_t)*setting("max_qp_wr")) return errno = EINVAL, NULL;
    for (uint32_t number = 1; number < PAIRS; number++) {
        int nobody = 0;
        if (!atomic_compare_exchange_strong(&shared->pairs[number].pid, &nobody, getpid())) continue;
        struct qp *qp = calloc(1, sizeof *qp);
        qp->context = pd->context, qp->pd = pd, qp->send_cq = wanted->send_cq, qp->qp_num = number, qp->depth = wanted->max_send_wr, qp->last = &qp->first;
        shared->pairs[number].state = 0;
        pthread_mutex_lock(&lock);
        qp->next = pairs, pairs = qp, ++*setting("qps");
        pthread_mutex_unlock(&lock);
        return qp;
    }
    return errno = ENOMEM, NULL;
}
int ibv_modify_qp(struct qp *qp, struct qp_attr *attr, int mask) {
    (void)mask;
    pthread_mutex_lock(&lock);
    if (attr->state == RTR) shared->pairs[qp->qp_num].dest = attr->dest;
    qp->state = shared->pairs[qp->qp_num].state = attr->state;
    if (attr->state == ERR) release(qp);
    pthread_mutex_unlock(&lock);
    return 0;
}
int ibv_destroy_qp(struct qp *qp) {
    pthread_mutex_lock(&lock);
    shared->pairs[qp->qp_num].state = 0, shared->pairs[qp->qp_num].pid = 0;
    for (struct qp **at = &pairs; *at; at = &(*at)->next)
        if (*at == qp) { *at = qp->next; break; }
    for (struct held *one = qp->first, *next; one; one = next) next = one->next, free(one);
    --*setting("qps");
    pthread_mutex_unlock(&lock);
    free(qp);
    return 0;
}
