/* Helper threads that join a call when they get a core, and the stages that its work is divided into.

   If other processes use the cores too, a thread may get a core some milliseconds late: a whole sentence takes less
   time. So no thread waits for another one to start. The running threads take the items of a stage, and the stage ends
   when its last item is done. A thread that starts late joins the stage that the others have reached. */

#ifndef ELMOKIT_HELPERS_H
#define ELMOKIT_HELPERS_H

#include <signal.h>

#include "threads.h"

#define CLOSED (1 << 30) /* set in `inside` when no more helpers may join the call */
#define AWAKE_BETWEEN_CALLS 20000 /* pauses (about half a millisecond) before an idle helper goes to sleep */

static struct {
    struct waitable calls;  /* the number of calls so far that helpers could join */
    struct waitable inside; /* the number of helpers in the current call, and the bit CLOSED */
    atomic_int taken;       /* whether a call uses the helpers; a second call at the same time runs without them */
    void (*work)(void *given, int rank, int size);
    void *given;
    int size;       /* the most threads that may take part in the call, including the caller */
    int started;    /* the number of helper threads */
    int registered; /* whether forget_helpers is registered */
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

/* After a fork: the child has none of the helpers, so it must start its own. */
static void forget_helpers(void) {
    atomic_store(&helpers.calls.sleepers, 0);
    atomic_store(&helpers.inside.sleepers, 0);
    atomic_store(&helpers.inside.number, CLOSED);
    atomic_store(&helpers.taken, 0);
    helpers.started = 0;
}

/* Starts helpers until there are `count`, or until the system starts no more. They block all POSIX signals, so that
   the threads of the program handle those. */
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

/* Calls work(given, 0, size) on this thread, and with the other ranks below `size` on helpers that join before it is
   done. The result must not depend on how many join. */
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
    set_and_wake(&helpers.calls, (atomic_load(&helpers.calls.number) + 1) & 0x7fffffff);
    work(given, 0, helpers.size);
    int inside = atomic_fetch_or(&helpers.inside.number, CLOSED) | CLOSED;
    for (; inside != CLOSED; inside = atomic_load(&helpers.inside.number)) wait_while(&helpers.inside, inside, AWAKE);
    atomic_store(&helpers.taken, 0);
}

/* The progress of one thread's part of a stage: the stage's number (high bits) and the next item (low bits). The number
   of an earlier stage means that no item of the current stage has been taken. */
struct queue {
    _Alignas(64) atomic_llong next;
};

/* The state that the threads of a call share; all zero before the first stage. */
struct stages {
    _Alignas(64) struct waitable done; /* the number of items of all stages that are done */
    struct queue queues[MOST_THREADS];
};

/* One thread's view of the stages: as one of `size` threads that share them, or alone (size 1). */
struct participant {
    struct stages *stages;
    int rank, size;
    int stage;         /* the current stage of this thread */
    unsigned before;   /* the number of items of all stages before it */
    int taken;         /* finished items that are not yet counted in stages->done */
    int steals;        /* whether this thread has finished its own part, and takes items of other threads */
    long long own;     /* this thread's queue, as last read */
    int64_t item;      /* size 1: the next item */
    int64_t row, stop; /* the next row, and the end of the rows that this thread has taken */
};

#define STAGE_SHIFT 32
#define PAUSES_BEFORE_STEALING 10 /* a thread first waits, because stealing items slows their owner down */

/* The next item of the part of thread `owner`; −1 if none is left, or if the stage is over. */
static int64_t take_from(struct participant *me, int owner, int64_t count) {
    int64_t start, stop;
    share(count, owner, me->size, &start, &stop);
    if (start == stop) return -1;
    atomic_llong *next = &me->stages->queues[owner].next;
    long long first = (long long)me->stage << STAGE_SHIFT, item = -1;
    /* A thread does not load its own queue: the cache line would come from another core twice, to read and to write. */
    long long word = owner == me->rank ? me->own : atomic_load(next);
    while (item < 0 && word < first + (stop - start)) {
        long long taken = (word > first ? word : first) + 1;
        if (atomic_compare_exchange_weak(next, &word, taken)) {
            item = start + (word > first ? word - first : 0);
            word = taken;
        }
    }
    if (owner == me->rank) me->own = word;
    return item;
}

/* Whether `end` items of all stages are done; the counters may wrap. */
INLINE int all_done(struct stages *stages, unsigned end) {
    return (int)((unsigned)atomic_load_explicit(&stages->done.number, memory_order_acquire) - end) >= 0;
}

/* The next item of another thread's part; −1 when the stage is over. */
static int64_t steal_item(struct participant *me, int64_t count, unsigned end) {
    struct stages *stages = me->stages;
    if (me->taken) {
        unsigned done = (unsigned)atomic_fetch_add(&stages->done.number, me->taken) + (unsigned)me->taken;
        me->taken = 0;
        if (done == end) wake_sleepers(&stages->done);
    }
    for (int turn = 0; !me->steals && turn < PAUSES_BEFORE_STEALING && !all_done(stages, end); turn++) pause_a_little();
    if (all_done(stages, end)) return -1;
    me->steals = 1;
    for (int other = 1; other < me->size; other++) {
        int64_t item = take_from(me, (me->rank + other) % me->size, count);
        if (item >= 0) return item;
    }
    for (int done = atomic_load(&stages->done.number); !all_done(stages, end); done = atomic_load(&stages->done.number))
        wait_while(&stages->done, done, AWAKE);
    return -1;
}

/* The next free item of a stage of `count` items, first from this thread's part and then from the others' parts; −1
   when all items are done, so that the next stage may begin. All threads go through the same stages with the same
   counts. */
static int64_t take_item(struct participant *me, int64_t count) {
    if (me->size == 1) {
        if (me->item < count) return me->item++;
        me->item = 0;
        return -1;
    }
    if (!count) return -1;
    unsigned end = me->before + (unsigned)count;
    int64_t item = me->steals ? -1 : take_from(me, me->rank, count);
    if (item < 0) item = steal_item(me, count, end);
    if (item >= 0) {
        me->taken++;
        return item;
    }
    me->before = end;
    me->steals = 0;
    me->stage++;
    return -1;
}

/* The next of a stage's `count` rows; −1 when all are done. A thread takes several rows at once, because taking a
   single row may cost as much as computing it. */
static int64_t take_row(struct participant *me, int64_t count) {
    if (me->size == 1) return take_item(me, count);
    if (me->row == me->stop) {
        int64_t together = max_int(1, ceil_div(count, me->size)), part = take_item(me, ceil_div(count, together));
        if (part < 0) return -1;
        me->row = part * together;
        me->stop = min_int(count, me->row + together);
    }
    return me->row++;
}

#endif
