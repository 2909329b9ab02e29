/* Threads that share one piece of work, and the places where they wait for each other. */

#ifndef ELMOKIT_TEAM_H
#define ELMOKIT_TEAM_H

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
#define AWAKE 500 /* pauses, some microseconds, before a thread that waits for others goes to sleep */

/* The threads of the OpenMP library that torch uses, where that is GNU's. They stay awake for some milliseconds after
   each of torch's operations, and threads of our own would have to share the cores with them. */
static struct {
    void (*parallel)(void (*work)(void *), void *given, unsigned threads, unsigned flags);
    int (*rank)(void);
    int (*size)(void);
    pid_t process; /* that they belong to: a fork takes none of them along */
} pool;

/* A number that threads wait for. */
struct signal {
    _Alignas(64) atomic_int number;
    atomic_int sleepers;
};

struct team {
    _Alignas(64) atomic_int arrived;
    struct signal round;
};

static inline void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Until the number is no longer `old`: awake for so many pauses, because it is mostly a short time, then asleep. A thread
   that sleeps leaves its core to the one that it waits for, where another process has taken that one's. One that yields
   would give the core away for some milliseconds. */
static void wait_while(struct signal *signal, int old, int pauses) {
    for (int turn = 0; turn < pauses; turn++) {
        if (atomic_load_explicit(&signal->number, memory_order_acquire) != old) return;
        pause_a_little();
    }
    atomic_fetch_add(&signal->sleepers, 1);
    while (atomic_load(&signal->number) == old) {
#if defined(__linux__)
        syscall(SYS_futex, &signal->number, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
#else
        sched_yield();
#endif
    }
    atomic_fetch_sub(&signal->sleepers, 1);
}

static void wake_sleepers(struct signal *signal) {
#if defined(__linux__)
    if (atomic_load(&signal->sleepers))
        syscall(SYS_futex, &signal->number, FUTEX_WAKE_PRIVATE, MOST_THREADS, NULL, NULL, 0);
#endif
}

static void set_signal(struct signal *signal, int number) {
    atomic_store(&signal->number, number);
    wake_sleepers(signal);
}

/* All `size` members of the team have come here. */
static void meet(struct team *team, int size) {
    if (size == 1) return;
    int round = atomic_load_explicit(&team->round.number, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == size) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        set_signal(&team->round, round + 1);
    } else {
        wait_while(&team->round, round, AWAKE);
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
    struct signal size; /* 0 until it is known how many threads there are */
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

/* Calls work(given, rank, size) on `threads` threads, this one among them; on fewer where the system gives no more.

   Without torch's own threads, or after a fork, they live as long as the call: nothing is left that a fork could break
   or a second caller had to wait for. */
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
    set_signal(&workers.size, size);
    work(given, 0, size);
    for (int rank = 1; rank < size; rank++) pthread_join(ids[rank], NULL);
}

/* The part of `count` things that falls to one of `size` members. */
static inline void share(int64_t count, int rank, int size, int64_t *start, int64_t *stop) {
    *start = count * rank / size;
    *stop = count * (rank + 1) / size;
}

#endif
