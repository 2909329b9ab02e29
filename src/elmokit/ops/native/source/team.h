/* Threads that share one piece of work, and the places where they wait for each other. */

#ifndef ELMOKIT_TEAM_H
#define ELMOKIT_TEAM_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#define MOST_THREADS 256

/* The threads of the OpenMP library that torch uses, where that is GNU's. They stay awake for some milliseconds after
   each of torch's operations, and threads of our own would have to share the cores with them. */
static struct {
    void (*parallel)(void (*work)(void *), void *given, unsigned threads, unsigned flags);
    int (*rank)(void);
    int (*size)(void);
    pid_t process; /* that they belong to: a fork takes none of them along */
} pool;

struct team {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_int round;
};

static inline void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Until the number is no longer `old`: awake for some microseconds, then letting others have the core. */
static void wait_while(atomic_int *number, int old) {
    for (int turn = 0; atomic_load_explicit(number, memory_order_acquire) == old; turn++) {
        if (turn < 1000)
            pause_a_little();
        else
            sched_yield();
    }
}

/* All `size` members of the team have come here. */
static void meet(struct team *team, int size) {
    if (size == 1) return;
    int round = atomic_load_explicit(&team->round, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == size) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->round, round + 1, memory_order_release);
    } else {
        wait_while(&team->round, round);
    }
}

struct crew;
struct worker {
    struct crew *crew;
    int rank;
};
struct crew {
    void (*work)(void *given, int rank, int size);
    void *given;
    atomic_int size; /* 0 until it is known how many threads there are */
    struct worker workers[MOST_THREADS];
};

static void *worker_main(void *given) {
    struct worker *self = given;
    struct crew *crew = self->crew;
    wait_while(&crew->size, 0);
    crew->work(crew->given, self->rank, atomic_load(&crew->size));
    return NULL;
}

static void pool_main(void *given) {
    struct crew *crew = given;
    crew->work(crew->given, pool.rank(), pool.size());
}

/* Calls work(given, rank, size) on `threads` threads, this one among them; on fewer where the system gives no more.

   Without torch's own threads, or after a fork, they live as long as the call: nothing is left that a fork could break
   or a second caller had to wait for. */
static void run_crew(void (*work)(void *, int, int), void *given, int threads) {
    if (threads <= 1) {
        work(given, 0, 1);
        return;
    }
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    struct crew crew = {.work = work, .given = given};
    if (pool.parallel && pool.process == getpid()) {
        pool.parallel(pool_main, &crew, (unsigned)threads, 0);
        return;
    }
    pthread_t ids[MOST_THREADS];
    int size = 1;
    for (; size < threads; size++) {
        crew.workers[size] = (struct worker){&crew, size};
        if (pthread_create(&ids[size], NULL, worker_main, &crew.workers[size])) break;
    }
    atomic_store_explicit(&crew.size, size, memory_order_release);
    work(given, 0, size);
    for (int rank = 1; rank < size; rank++) pthread_join(ids[rank], NULL);
}

/* The part of `count` things that falls to one of `size` members. */
static inline void share(int64_t count, int rank, int size, int64_t *start, int64_t *stop) {
    *start = count * rank / size;
    *stop = count * (rank + 1) / size;
}

#endif
