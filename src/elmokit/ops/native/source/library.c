/* What Python calls. Nothing here knows Python: pointers and numbers come in, and nothing is kept but spare memory. */

#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/mman.h>
#endif
#include <stdlib.h>

#include "bilstm.h"

#define HUGE_PAGE ((int64_t)2 << 20)
#define SPARE_BYTES ((int64_t)256 << 20) /* working memory larger than this is not kept for the next call */

const char *elmokit_instructions(void) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    return INSTRUCTIONS " with VNNI";
#elif !SUM_OFFSET
    return INSTRUCTIONS " with dot products";
#else
    return INSTRUCTIONS;
#endif
}

/* Memory for a packed matrix, in large pages where the system has them: a step reads all of it. */
void *elmokit_allocate(int64_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, bytes >= HUGE_PAGE ? HUGE_PAGE : 64, bytes ? bytes : 64)) return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

void elmokit_free(void *memory) { free(memory); }

/* The bytes of a matrix's panels; each of its [panels][WIDTH] side tables has elmokit_table_items numbers. */
int64_t elmokit_panel_bytes(const struct matrix *m, int64_t int8) {
    int64_t outputs = panel_count(m) * WIDTH;
    return int8 ? outputs * groups_of_4(m->inputs) * 4 : outputs * m->inputs * (int64_t)sizeof(float);
}

int64_t elmokit_table_items(const struct matrix *m) { return panel_count(m) * WIDTH; }

struct packing {
    const struct matrix *m;
    const void *weights;
    const float *scales;
};

static void pack_work(void *given, int rank, int size) {
    struct packing *job = given;
    const struct matrix *m = job->m;
    int64_t start, stop;
    share(panel_count(m), rank, size, &start, &stop);
    if (job->scales)
        pack_int8(
            m, job->weights, job->scales, (int8_t *)m->panels, (float *)m->scales, (int32_t *)m->offsets, start, stop
        );
    else
        pack_floats(m, job->weights, (float *)m->panels, start, stop);
}

/* Fills a matrix's panels; with scales [outputs] the weights are of 8 bits. */
void elmokit_pack(const struct matrix *m, const void *weights, const float *scales, int64_t threads) {
    struct packing job = {m, weights, scales};
    run_crew(pack_work, &job, (int)threads);
}

/* A number that changes with almost any change of `bytes` bytes: it reads some of them, all over. */
uint64_t elmokit_sample(const uint8_t *memory, int64_t bytes) {
    uint64_t found = 14695981039346656037u;
    int64_t words = bytes / 4, step = words / 64 + 1;
    for (int64_t i = 0; i < words; i += step) {
        uint32_t word;
        memcpy(&word, memory + 4 * i, 4);
        found = (found ^ word) * 1099511628211u;
    }
    return found;
}

#define LINEAR_ROWS 256 /* rows that a panel is multiplied with before the next */

/* Working memory is handed from call to call, so that its pages need not be made anew; two callers at once have two. */
struct spare {
    int64_t bytes;
    char padding[56];
};
static _Atomic(struct spare *) spare;

static char *borrow(int64_t bytes) {
    struct spare *memory = atomic_exchange(&spare, NULL);
    if (memory && memory->bytes < bytes) {
        free(memory);
        memory = NULL;
    }
    if (!memory) {
        memory = elmokit_allocate(bytes + (int64_t)sizeof(struct spare));
        if (!memory) return NULL;
        memory->bytes = bytes;
    }
    return (char *)(memory + 1);
}

static void give_back(char *borrowed) {
    struct spare *memory = (struct spare *)borrowed - 1;
    if (memory->bytes <= SPARE_BYTES) memory = atomic_exchange(&spare, memory);
    free(memory);
}

/* Returns 0, or 1 where there was not enough memory. */
int elmokit_bilstm(const struct bilstm *job) {
    struct office office = {.job = job};
    int64_t bytes = padded(set_out(&office.desks[0], job, NULL)), desks = job->apart ? 2 : 1;
    char *memory = borrow(bytes * desks);
    if (!memory) return 1;
    for (int64_t i = 0; i < desks; i++) set_out(&office.desks[i], job, memory + i * bytes);
    run_crew(bilstm_work, &office, (int)job->threads);
    give_back(memory);
    return 0;
}

/* From now on threads are those of an OpenMP library: its GOMP_parallel, omp_get_thread_num, omp_get_num_threads. */
void elmokit_use_pool(void *parallel, void *rank, void *size) {
    *(void **)&pool.rank = rank;
    *(void **)&pool.size = size;
    pool.process = getpid();
    *(void **)&pool.parallel = parallel;
}

struct linear {
    struct matrix weight;
    const float *bias, *x; /* [O] or NULL, [N][K] */
    float *y;              /* [N][O] */
    int64_t rows, int8, threads;
};

struct linear_desk {
    const struct linear *job;
    struct team team;
    uint8_t *small;
    float *scales;
    int32_t *sums;
};

static void linear_work(void *given, int rank, int size) {
    struct linear_desk *desk = given;
    const struct linear *job = desk->job;
    const struct matrix *m = &job->weight;
    int64_t start, stop, panels = panel_count(m);
    if (job->int8) {
        share(job->rows, rank, size, &start, &stop);
        for (int64_t row = start; row < stop; row++)
            desk->scales[row] = quantise(job->x + row * m->inputs, m->inputs, desk->small + row * padded(m->inputs));
        meet(&desk->team, size);
    }
    /* Blocks of rows, of each block all panels; lower blocks where that gives every thread something to do. */
    int64_t height = smaller(LINEAR_ROWS, ceiling(job->rows, ceiling(size, panels))), wide = padded(m->inputs);
    int32_t *sums = desk->sums + rank * SUM_ROWS * WIDTH;
    share(ceiling(job->rows, height) * panels, rank, size, &start, &stop);
    for (int64_t item = start; item < stop; item++) {
        int64_t begin = item / panels * height, end = smaller(begin + height, job->rows), panel = item % panels;
        int64_t output = panel * WIDTH, count = smaller(WIDTH, m->outputs - output);
        float bias[WIDTH] __attribute__((aligned(64))) = {0};
        if (job->bias) memcpy(bias, job->bias + output, count * sizeof(float));
        for (int64_t first = begin; first < end; first += SUM_ROWS) {
            int64_t n = smaller(SUM_ROWS, end - first), next = first == begin ? (panel + 1) % panels : panel;
            if (job->int8) {
                int8_product(m, n, desk->small + first * wide, wide, panel, next, sums);
                add_scaled((float *)sums, bias, n, sums, m->scales + output, desk->scales + first);
            } else {
                for (int64_t row = 0; row < n; row++) memcpy(sums + row * WIDTH, bias, sizeof bias);
                float_product(m, n, job->x + first * m->inputs, m->inputs, panel, next, (float *)sums);
            }
            for (int64_t row = 0; row < n; row++)
                memcpy(job->y + (first + row) * m->outputs + output, sums + row * WIDTH, count * sizeof(float));
        }
    }
}

/* y [N][O] = x [N][K] · weightᵀ + bias. Returns 0, or 1 where there was not enough memory. */
int elmokit_linear(const struct linear *job) {
    if (!job->rows || !job->weight.outputs) return 0;
    int64_t small = job->int8 ? job->rows * padded(job->weight.inputs) : 0, scales = padded(4 * job->rows);
    char *memory = borrow(small + scales + job->threads * SUM_ROWS * WIDTH * (int64_t)sizeof(int32_t));
    if (!memory) return 1;
    struct linear_desk desk = {
        .job = job,
        .small = (uint8_t *)memory,
        .scales = (float *)(memory + small),
        .sums = (int32_t *)(memory + small + scales),
    };
    run_crew(linear_work, &desk, (int)job->threads);
    give_back(memory);
    return 0;
}
