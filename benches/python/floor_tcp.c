// The raw rate of TCP between two processes of this host: CONNECTIONS of them, a thread at each end of each, blocking calls.
// Prints the seconds of each round, in which BYTES go over all of them together; rounds for SECONDS, three at least.
#include <arpa/inet.h>
#include <err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64
#define PIECE (1 << 20)

static int sockets[CONNECTIONS_MAX];
static size_t share;
static char *memory;
static pthread_barrier_t begin, end;

static char *pages(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) err(1, "memory");
    madvise(at, bytes, MADV_HUGEPAGE);
    return memset(at, 7, bytes);
}

static size_t least(size_t one, size_t other) { return one < other ? one : other; }

// The owner's end: a share for each byte that asks for one.
static void *serve(void *number) {
    size_t at = (size_t)number;
    char asked;
    while (recv(sockets[at], &asked, 1, 0) == 1)
        for (size_t done = 0; done < share;) {
            ssize_t sent = send(sockets[at], memory + at * share + done, least(PIECE, share - done), 0);
            if (sent <= 0) err(1, "send");
            done += (size_t)sent;
        }
    return NULL;
}

static void *ask(void *number) {
    size_t at = (size_t)number;
    for (;;) {
        pthread_barrier_wait(&begin);
        if (send(sockets[at], "?", 1, 0) != 1) err(1, "send");
        for (size_t done = 0; done < share;) {
            ssize_t got = recv(sockets[at], memory + at * share + done, least(PIECE, share - done), 0);
            if (got <= 0) err(1, "recv");
            done += (size_t)got;
        }
        pthread_barrier_wait(&end);
    }
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

int main(int count, char **words) {
    if (count != 4) errx(2, "usage: floor_tcp CONNECTIONS BYTES SECONDS");
    size_t connections = strtoul(words[1], NULL, 10), bytes = strtoul(words[2], NULL, 10);
    double seconds = strtod(words[3], NULL);
    if (connections < 1 || connections > CONNECTIONS_MAX || bytes < connections) errx(2, "1 to 64 connections, a byte each");
    share = bytes / connections;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, CONNECTIONS_MAX)) err(1, "listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    pthread_t threads[CONNECTIONS_MAX];
    pid_t owner = fork();
    memory = pages(bytes); // after the fork: pages that were inherited are no huge ones
    if (owner == 0) {
        for (size_t at = 0; at < connections; at++) {
            sockets[at] = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(sockets[at], (struct sockaddr *)&address, size)) err(1, "connect");
            pthread_create(&threads[at], NULL, serve, (void *)at);
        }
        for (size_t at = 0; at < connections; at++) pthread_join(threads[at], NULL);
        return 0;
    }
    pthread_barrier_init(&begin, NULL, (unsigned)connections + 1);
    pthread_barrier_init(&end, NULL, (unsigned)connections + 1);
    for (size_t at = 0; at < connections; at++) {
        if ((sockets[at] = accept(listener, NULL, NULL)) < 0) err(1, "accept");
        pthread_create(&threads[at], NULL, ask, (void *)at);
    }
    double last = now() + seconds;
    for (int round = 0; round < 5 || now() < last; round++) {
        double start = now();
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&end);
        if (round >= 2) printf("%.9f\n", now() - start); // the first ones open the windows
    }
    return 0; // the owner ends with its sockets
}
