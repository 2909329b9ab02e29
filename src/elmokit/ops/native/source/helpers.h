/* Threads that help with a call as they come, and the stages that its work is divided into.

   Where other processes use the cores too, a thread may get one some milliseconds late, longer than a whole sentence
   takes. So nobody waits for a thread to come: the items of a stage are taken by the threads that are there, and a stage
   ends when its last item is done. A thread that comes late joins at the stage that the others have got to. */

#ifndef ELMOKIT_HELPERS_H
#define ELMOKIT_HELPERS_H

#include <signal.h>

#include "team.h"

#define CLOSED (1 << 30) /* no helper may join the call any more */
#define AWAKE_BETWEEN_CALLS 4000 /* pauses, about a tenth of a millisecond, before a helper goes to sleep */

static struct {
    struct signal calls;  /* one more with every call that helpers may join */
    struct signal inside; /* how many helpers are in the call, and CLOSED */
    atomic_int taken;     /* whether a call has the helpers: another one at the same time does without */
    void (*work)(void *given, int rank, int size);
    void *given;
    int size;    /* threads that may take part in the call, the caller among them */
    int started; /* helpers that there are */
    int registered;
} helpers;

static void leave_call(void) {
    if (atomic_fetch_sub(&helpers.inside.number, 1) - 1 == CLOSED) wake_sleepers(&helpers.inside);
}

static void *helper_main(void *given) {
    int rank = (int)(intptr_t)given, seen = -1;
    for (;;) {
        wait_while(&helpers.calls, seen, AWAKE_BETWEEN_CALLS);
        seen = atomic_load(&helpers.calls.number);
        int inside = atomic_load(&helpers.inside.number);
        while (!(inside & CLOSED))
            if (atomic_compare_exchange_weak(&helpers.inside.number, &inside, inside + 1)) {
                if (rank < helpers.size) helpers.work(helpers.given, rank, helpers.size);
                leave_call();
                break;
            }
    }
    return NULL;
}

/* A fork takes no thread along but its own: a child starts helpers of its own. */
static void forget_helpers(void) {
    atomic_store(&helpers.calls.sleepers, 0);
    atomic_store(&helpers.inside.sleepers, 0);
    atomic_store(&helpers.inside.number, CLOSED);
    atomic_store(&helpers.taken, 0);
    helpers.started = 0;
}

/* Until there are `count`, or as many as the system gives. They leave signals to the threads of the program. */
static void start_helpers(int count) {
    if (helpers.started >= count) return;
    if (!helpers.registered) helpers.registered = !pthread_atfork(NULL, NULL, forget_helpers);
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    pthread_t id;
    for (; helpers.started < count; helpers.started++) {
        if (pthread_create(&id, NULL, helper_main, (void *)(intptr_t)(helpers.started + 1))) break;
        pthread_detach(id);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Calls work(given, 0, size) on this thread, and with other ranks below `size` on helpers that come before it is done.
   The work must not depend on how many of them do. */
static void run_with_helpers(void (*work)(void *, int, int), void *given, int threads) {
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads <= 1 || atomic_exchange(&helpers.taken, 1)) {
        work(given, 0, 1);
        return;
    }
    atomic_store(&helpers.inside.number, CLOSED);
    start_helpers(threads - 1);
    helpers.work = work;
    helpers.given = given;
    helpers.size = helpers.started + 1 < threads ? helpers.started + 1 : threads;
    atomic_store(&helpers.inside.number, 0);
    set_signal(&helpers.calls, (atomic_load(&helpers.calls.number) + 1) & 0x7fffffff);
    work(given, 0, helpers.size);
    int inside = atomic_fetch_or(&helpers.inside.number, CLOSED) | CLOSED;
    for (; inside != CLOSED; inside = atomic_load(&helpers.inside.number)) wait_while(&helpers.inside, inside, AWAKE);
    atomic_store(&helpers.taken, 0);
}

/* Where one thread's part of the items of a stage has got to: the number of the stage, then that of the next item. */
struct queue {
    _Alignas(64) atomic_llong next;
};

/* What the threads of a call share; all zero before the first stage. */
struct stages {
    struct signal now; /* the number of the stage */
    _Alignas(64) atomic_llong done; /* items of it */
    struct queue queues[MOST_THREADS];
};

/* One thread of those that share stages, or one by itself. */
struct sharer {
    struct stages *stages;
    int rank, size;
    int stage;     /* that this thread has got to */
    int64_t taken; /* items of it, of which the others do not know yet that they are done */
    int64_t item;  /* the next one, of a thread by itself */
};

#define STAGE_SHIFT 32

/* The next of a thread's own items; −1 where none is left, or the stage is over. */
static int64_t take_from(struct sharer *me, int owner, int64_t count) {
    int64_t start, stop;
    share(count, owner, me->size, &start, &stop);
    atomic_llong *next = &me->stages->queues[owner].next;
    long long first = (long long)me->stage << STAGE_SHIFT, word = atomic_load(next);
    while (word >= first && word < first + (stop - start))
        if (atomic_compare_exchange_weak(next, &word, word + 1)) return start + (word - first);
    return -1;
}

/* An item of a stage of `count` that nobody has taken, first of this thread's part and then of others'; −1 when all are
   done: the next stage may begin. All threads go through the same stages with the same counts. */
static int64_t take_item(struct sharer *me, int64_t count) {
    if (me->size == 1) {
        if (me->item < count) return me->item++;
        me->item = 0;
        return -1;
    }
    if (!count) return -1;
    struct stages *stages = me->stages;
    for (int other = 0; other < me->size; other++) {
        int64_t item = take_from(me, (me->rank + other) % me->size, count);
        if (item < 0) continue;
        me->taken++;
        return item;
    }
    if (me->taken && atomic_fetch_add(&stages->done, me->taken) + me->taken == count) {
        atomic_store(&stages->done, 0);
        for (int rank = 0; rank < me->size; rank++)
            atomic_store(&stages->queues[rank].next, (long long)(me->stage + 1) << STAGE_SHIFT);
        set_signal(&stages->now, me->stage + 1);
    }
    if (atomic_load_explicit(&stages->now.number, memory_order_acquire) == me->stage)
        wait_while(&stages->now, me->stage, AWAKE);
    me->taken = 0;
    me->stage++;
    return -1;
}

#endif
