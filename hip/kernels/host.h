// The few things of HIP that the kernels use, for the host: each thread of a block is a fibre, blocks run one after another.
//
// A fibre runs until it ends or waits at __syncthreads. What this cannot show: races between blocks, and memory that one
// thread writes and another reads without a barrier in between.
#pragma once

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static // blocks run one after another, so one copy does for all

struct Dim { uint32_t x; };
static Dim blockIdx, threadIdx, blockDim, gridDim;

// A fibre is entered by its context once; from then on by a jump, which asks the kernel for nothing.
struct Fibre { ucontext_t context; jmp_buf place; char *stack; bool begun, ended; };
static Fibre fibres[1024];
static jmp_buf scheduler;
struct Listed;
static const Listed *running;
static void **running_arguments;
static void run_kernel();

static void enter() {
    run_kernel();
    fibres[threadIdx.x].ended = true;
    _longjmp(scheduler, 1);
}

static inline void __syncthreads() {
    if (!_setjmp(fibres[threadIdx.x].place)) _longjmp(scheduler, 1);
}

// Until its next barrier, or its end.
static void resume(Fibre &fibre) {
    if (_setjmp(scheduler)) return;
    if (fibre.begun) _longjmp(fibre.place, 1);
    fibre.begun = true;
    setcontext(&fibre.context);
}

static void prepare(Fibre &fibre) {
    enum { STACK = 64 << 10 };
    getcontext(&fibre.context);
    if (!fibre.stack) fibre.stack = (char *)malloc(STACK);
    fibre.context.uc_stack.ss_sp = fibre.stack;
    fibre.context.uc_stack.ss_size = STACK;
    fibre.begun = fibre.ended = false;
    makecontext(&fibre.context, enter, 0);
}

// One block: all threads up to their next barrier, again and again, until all have ended.
static void run_block(uint32_t block) {
    blockIdx.x = block;
    for (uint32_t thread = 0; thread < blockDim.x; thread++) prepare(fibres[thread]);
    for (;;) {
        uint32_t ended = 0;
        for (uint32_t thread = 0; thread < blockDim.x; thread++) {
            threadIdx.x = thread;
            if (!fibres[thread].ended) resume(fibres[thread]);
            ended += fibres[thread].ended;
        }
        if (ended == blockDim.x) return;
        if (ended) {
            fprintf(stderr, "a barrier that %u of %u threads did not come to\n", ended, blockDim.x);
            abort();
        }
    }
}

static inline unsigned long long atomicAdd(unsigned long long *to, unsigned long long more) {
    unsigned long long before = *to;
    *to = before + more;
    return before;
}

// A kernel puts itself on the list, so that it is found by its name as in a module of a device.
struct Listed {
    const char *name;
    void (*run)(void (*kernel)(), void **arguments);
    void (*kernel)();
    Listed *next;
};
static Listed *all_kernels;
struct Enlist {
    explicit Enlist(Listed *entry) { entry->next = all_kernels; all_kernels = entry; }
};

static void run_kernel() { running->run(running->kernel, running_arguments); }

template <class> struct Call;
template <class... A> struct Call<void(A...)> {
    template <size_t... I> static void each(void (*kernel)(A...), void **arguments, std::index_sequence<I...>) {
        kernel(*(A *)arguments[I]...);
    }
    static void run(void (*kernel)(), void **arguments) { each((void (*)(A...))kernel, arguments, std::index_sequence_for<A...>()); }
};

#define ROOST_KERNEL(name, ...)                                                                                         \
    static void name(__VA_ARGS__);                                                                                      \
    static Listed name##_listed = {#name, Call<void(__VA_ARGS__)>::run, (void (*)())name, nullptr};                     \
    static Enlist name##_enlist(&name##_listed);                                                                        \
    static void name(__VA_ARGS__)

// Runs blocks `first` to `end` of a grid, so that the last block of a very large one can be run alone. The arguments are
// pointers to each, as for a launch on a device. False when there is no such kernel.
extern "C" bool roost_host_run(const char *name, uint32_t grid, uint32_t threads, uint32_t first, uint32_t end, void **arguments) {
    for (Listed *entry = all_kernels; entry; entry = entry->next) {
        if (strcmp(entry->name, name)) continue;
        gridDim.x = grid;
        blockDim.x = threads;
        running = entry;
        running_arguments = arguments;
        for (uint32_t block = first; block < end; block++) run_block(block);
        return true;
    }
    return false;
}
