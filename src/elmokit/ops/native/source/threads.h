/* Threads that share one computation, and the barrier at which they wait for each other. */

#ifndef ELMOKIT_THREADS_H
#define ELMOKIT_THREADS_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#define MOST_THREADS 256
#define AWAKE 500 /* pauses (a few microseconds) before a waiting thread goes to sleep */

/* The threads of the OpenMP library that torch uses, if that is GNU's. They stay awake for some milliseconds after
   each of torch's operations, and threads of our own would have to share the cores with them. */
static struct {
    void (*parallel)(void (*work)(void *), void *given, unsigned threads, unsigned flags);
    int (*rank)(void);
    int (*size)(void);
    pid_t process; /* the process of these threads: a forked child does not have them */
} pool;

/* A number, and the count of the threads that sleep until it changes. */
struct waitable {
    _Alignas(64) atomic_int number;
    atomic_int sleepers;
};

struct barrier {
    _Alignas(64) atomic_int arrived;
    struct waitable round;
};

static inline void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until the number is no longer `old`: awake for `pauses` pauses, because most waits are short, and then asleep.
   A sleeping thread leaves its core to the thread that it waits for, which may have lost its own core to another
   process. A thread that only yields would lose the core for some milliseconds. */
static void wait_while(struct waitable *waitable, int old, int pauses) {
    for (int turn = 0; turn < pauses; turn++) {
        if (atomic_load_explicit(&waitable->number, memory_order_acquire) != old) return;
        pause_a_little();
    }
    atomic_fetch_add(&waitable->sleepers, 1);
    while (atomic_load(&waitable->number) == old) {
#if defined(__linux__)
        syscall(SYS_futex, &waitable->number, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
#else
        sched_yield();
#endif
    }
    atomic_fetch_sub(&waitable->sleepers, 1);
}

static void wake_sleepers(struct waitable *waitable) {
#if defined(__linux__)
    if (atomic_load(&waitable->sleepers))
        syscall(SYS_futex, &waitable->number, FUTEX_WAKE_PRIVATE, MOST_THREADS, NULL, NULL, 0);
#endif
}

static void set_and_wake(struct waitable *waitable, int number) {
    atomic_store(&waitable->number, number);
    wake_sleepers(waitable);
}

/* Returns when all `size` threads of the barrier have called this. */
static void wait_at_barrier(struct barrier *barrier, int size) {
    if (size == 1) return;
    int round = atomic_load_explicit(&barrier->round.number, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) + 1 == size) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        set_and_wake(&barrier->round, round + 1);
    } else {
        wait_while(&barrier->round, round, AWAKE);
    }
}

struct workers;
struct worker {
    struct workers *workers;
    int rank;
};
struct workers {
    void (*work)(void *given, int rank, int size);
    void *given;
    struct waitable size; /* 0 until it is known how many threads there are */
    struct worker workers[MOST_THREADS];
};

static void *worker_main(void *given) {
    struct worker *self = given;
    struct workers *workers = self->workers;
    wait_while(&workers->size, 0, AWAKE);
    workers->work(workers->given, self->rank, atomic_load(&workers->size.number));
    return NULL;
}

static void pool_main(void *given) {
    struct workers *workers = given;
    workers->work(workers->given, pool.rank(), pool.size());
}

/* Calls work(given, rank, size) on `threads` threads, including this one, or on fewer if the system starts no more.

   Without torch's threads, or after a fork, the threads are started for this call alone: so a fork can break nothing,
   and a second caller need not wait. */
static void run_workers(void (*work)(void *, int, int), void *given, int threads) {
    if (threads <= 1) {
        work(given, 0, 1);
        return;
    }
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    struct workers workers = {.work = work, .given = given};
    if (pool.parallel && pool.process == getpid()) {
        pool.parallel(pool_main, &workers, (unsigned)threads, 0);
        return;
    }
    pthread_t ids[MOST_THREADS];
    int size = 1;
    for (; size < threads; size++) {
        workers.workers[size] = (struct worker){&workers, size};
        if (pthread_create(&ids[size], NULL, worker_main, &workers.workers[size])) break;
    }
    set_and_wake(&workers.size, size);
    work(given, 0, size);
    for (int rank = 1; rank < size; rank++) pthread_join(ids[rank], NULL);
}

/* The items, out of `count`, that the thread `rank` of `size` threads computes. */
static inline void share(int64_t count, int rank, int size, int64_t *start, int64_t *stop) {
    *start = count * rank / size;
    *stop = count * (rank + 1) / size;
}

#endif
