/* Threads that help with a call as they come, and the stages that its work is divided into.

   Where other processes use the cores too, a thread may get one some milliseconds late, longer than a whole sentence
   takes. So nobody waits for a thread to come: the items of a stage are taken by the threads that are there, and a stage
   ends when its last item is done. A thread that comes late joins at the stage that the others have got to. */

#ifndef ELMOKIT_HELPERS_H
#define ELMOKIT_HELPERS_H

#include <signal.h>

#include "team.h"

#define CLOSED (1 << 30) /* no helper may join the call any more */
#define AWAKE_BETWEEN_CALLS 20000 /* pauses, about half a millisecond, before a helper goes to sleep */

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

/* Where one thread's part of the items of a stage has got to: the number of the stage, then that of the next item. A
   number of an earlier stage means that no item of this one has been taken. */
struct queue {
    _Alignas(64) atomic_llong next;
};

/* What the threads of a call share; all zero before the first stage. */
struct stages {
    _Alignas(64) struct signal done; /* items of all stages */
    struct queue queues[MOST_THREADS];
};

/* One thread of those that share stages, or one by itself. */
struct sharer {
    struct stages *stages;
    int rank, size;
    int stage;       /* that this thread has got to */
    unsigned before; /* items of the stages before it */
    int taken;       /* items of it, of which the others do not know yet that they are done */
    int helps;       /* whether this thread has done its own part of the stage, and takes items of others */
    long long own;   /* what this thread's queue was when it last looked */
    int64_t item;    /* the next one, of a thread by itself */
    int64_t row, stop; /* the next row, and the end of those that this thread has taken */
};

#define STAGE_SHIFT 32
#define PATIENCE 10 /* pauses before a thread takes items of others, which slows them down */

/* The next item of one thread's part; −1 where none is left, or the stage is over. */
static int64_t take_from(struct sharer *me, int owner, int64_t count) {
    int64_t start, stop;
    share(count, owner, me->size, &start, &stop);
    if (start == stop) return -1;
    atomic_llong *next = &me->stages->queues[owner].next;
    long long first = (long long)me->stage << STAGE_SHIFT, item = -1;
    /* To load its own queue first would bring it from the other core twice: to read, then to write. */
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

/* Whether all items are done up to number `end`. */
INLINE int all_done(struct stages *stages, unsigned end) {
    return (int)((unsigned)atomic_load_explicit(&stages->done.number, memory_order_acquire) - end) >= 0;
}

/* The next item of others; −1 when the stage is over. */
static int64_t take_of_others(struct sharer *me, int64_t count, unsigned end) {
    struct stages *stages = me->stages;
    if (me->taken) {
        unsigned done = (unsigned)atomic_fetch_add(&stages->done.number, me->taken) + (unsigned)me->taken;
        me->taken = 0;
        if (done == end) wake_sleepers(&stages->done);
    }
    for (int turn = 0; !me->helps && turn < PATIENCE && !all_done(stages, end); turn++) pause_a_little();
    if (all_done(stages, end)) return -1;
    me->helps = 1;
    for (int other = 1; other < me->size; other++) {
        int64_t item = take_from(me, (me->rank + other) % me->size, count);
        if (item >= 0) return item;
    }
    for (int done = atomic_load(&stages->done.number); !all_done(stages, end); done = atomic_load(&stages->done.number))
        wait_while(&stages->done, done, AWAKE);
    return -1;
}

/* The next item of a stage of `count` that nobody has taken, first of this thread's part and then of others'; −1 when all are
   done: the next stage may begin. All threads go through the same stages with the same counts. */
static int64_t take_item(struct sharer *me, int64_t count) {
    if (me->size == 1) {
        if (me->item < count) return me->item++;
        me->item = 0;
        return -1;
    }
    if (!count) return -1;
    unsigned end = me->before + (unsigned)count;
    int64_t item = me->helps ? -1 : take_from(me, me->rank, count);
    if (item < 0) item = take_of_others(me, count, end);
    if (item >= 0) {
        me->taken++;
        return item;
    }
    me->before = end;
    me->helps = 0;
    me->stage++;
    return -1;
}

/* The next of a stage's `count` rows; −1 when all are done. Each thread takes its part at once: to take one row by itself
   costs as much as many a row. */
static int64_t take_row(struct sharer *me, int64_t count) {
    if (me->size == 1) return take_item(me, count);
    if (me->row == me->stop) {
        int64_t together = larger_of(1, ceiling(count, me->size)), part = take_item(me, ceiling(count, together));
        if (part < 0) return -1;
        me->row = part * together;
        me->stop = smaller(count, me->row + together);
    }
    return me->row++;
}

#endif
