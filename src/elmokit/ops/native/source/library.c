/* The functions that Python calls through ctypes. They take pointers and numbers, and store only spare memory. */

#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/mman.h>
#endif
#include <stdlib.h>

#include "bilstm.h"
#include "characters.h"
#include "linear.h"
#include "transformer.h"

#define HUGE_PAGE ((int64_t)2 << 20)
#define SPARE_BYTES ((int64_t)256 << 20) /* the largest workspace that is stored for the next call */

const char *elmokit_instructions(void) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    return INSTRUCTIONS " with VNNI";
#elif !SUM_OFFSET
    return INSTRUCTIONS " with dot products";
#else
    return INSTRUCTIONS;
#endif
}

/* Asks for large pages in memory that has not been written yet. */
static void use_large_pages(void *memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    uintptr_t start = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, stop = (uintptr_t)memory + bytes;
    if (start + HUGE_PAGE <= stop) madvise((void *)start, stop - start, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

/* Memory for packed matrices, in large pages if the system has them, because a step reads all of it. */
void *elmokit_allocate(int64_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, bytes >= HUGE_PAGE ? HUGE_PAGE : 64, bytes ? bytes : 64)) return NULL;
    use_large_pages(memory, bytes);
    return memory;
}

void elmokit_free(void *memory) { free(memory); }

/* The size of a matrix's panels in bytes; `scales` and `offsets` have at most elmokit_table_items numbers each. */
int64_t elmokit_panel_bytes(const struct matrix *m, int64_t int8) {
    int64_t outputs = panel_count(m) * WIDTH;
    return int8 ? outputs * groups_of_4(m->inputs) * 4 : outputs * m->inputs * (m->float16 ? 2 : 4);
}

/* Whether float16 represents all numbers exactly, and the CPU has instructions that convert it to float32. */
int elmokit_float16_is_exact(const float *numbers, int64_t count) {
    int same = HAS_FLOAT16;
    for (int64_t start = 0; same && start < count; start += 1024)
        for (int64_t i = start; i < min_int(start + 1024, count); i++) {
            float back;
            to_float16(numbers[i], &back);
            same &= back == numbers[i];
        }
    return same;
}

int64_t elmokit_table_items(const struct matrix *m) { return panel_count(m) * WIDTH * m->parts; }

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
        pack_floats(m, job->weights, (void *)m->panels, start, stop);
}

/* Fills a matrix's panels; with scales [outputs], the weights are int8. */
void elmokit_pack(const struct matrix *m, const void *weights, const float *scales, int64_t threads) {
    struct packing job = {m, weights, scales};
    run_workers(pack_work, &job, (int)threads);
}

#define SAMPLES 16 /* about the number of values that are read of each memory block */

/* A hash of some values of `count` memory blocks with these sizes in bytes. The values are spread over each block, so
   the hash detects almost every change of a matrix. */
uint64_t elmokit_sample(const uint8_t *const *memories, const int64_t *bytes, int64_t count) {
    uint64_t found = 14695981039346656037u;
    for (int64_t i = 0; i < count; i++) {
        int64_t words = bytes[i] / 4, step = words / SAMPLES + 1;
        for (int64_t at = 0; at < words; at += step) {
            uint32_t word;
            memcpy(&word, memories[i] + 4 * at, 4);
            found = (found ^ word) * 1099511628211u;
        }
    }
    return found;
}

/* A workspace that the last call left for the next one, so that the system need not clear its pages again. Of two calls
   at the same time, one allocates its own. */
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

/* All layers and directions of the recurrence. Returns 0, or 1 if there was not enough memory. */
int elmokit_bilstm(const struct bilstm *job) {
    struct bilstm_call call = {.job = job};
    int64_t bytes = padded(lay_out_bilstm(&call.all_buffers[0], job, NULL)), count = job->separate_directions ? 2 : 1;
    char *memory = borrow(bytes * count);
    if (!memory) return 1;
    for (int64_t i = 0; i < count; i++) lay_out_bilstm(&call.all_buffers[i], job, memory + i * bytes);
    run_workers(bilstm_work, &call, (int)job->threads);
    give_back(memory);
    return 0;
}

/* From now on, run_workers uses the threads of an OpenMP library: its GOMP_parallel, omp_get_thread_num and
   omp_get_num_threads. */
void elmokit_use_pool(void *parallel, void *rank, void *size) {
    *(void **)&pool.rank = rank;
    *(void **)&pool.size = size;
    pool.process = getpid();
    *(void **)&pool.parallel = parallel;
}

/* y [N][O] = x [N][K] · weightᵀ + bias. Returns 0, or 1 if there was not enough memory. */
int elmokit_linear(const struct linear *job) {
    if (!job->rows || !job->weight.outputs) return 0;
    int64_t parts = job->twice ? 2 : 1, wide = padded(job->weight.inputs);
    int64_t x_int8 = job->int8 ? parts * job->rows * wide : 0, scales = padded(4 * parts * job->rows);
    int64_t rest = job->twice ? job->threads * wide * (int64_t)sizeof(float) : 0;
    char *memory = borrow(x_int8 + scales + rest + job->threads * SUM_ROWS * WIDTH * (int64_t)sizeof(int32_t));
    if (!memory) return 1;
    struct linear_buffers buffers = {
        .job = job,
        .x_int8 = (uint8_t *)memory,
        .scales = (float *)(memory + x_int8),
        .rest = (float *)(memory + x_int8 + scales),
        .sums = (int32_t *)(memory + x_int8 + scales + rest),
    };
    run_workers(linear_work, &buffers, (int)job->threads);
    give_back(memory);
    return 0;
}

/* The character part of words. Returns 0, 1 if there was not enough memory, or 2 if an id is not in the table. */
int elmokit_characters(const struct characters *job) {
    if (!job->words) return 0;
    struct stages stages = {0};
    struct characters_buffers measured;
    int64_t count = job->shared ? 1 : job->threads, members = job->shared ? job->threads : 1;
    int64_t all_buffers = padded(count * (int64_t)sizeof measured);
    int64_t bytes = lay_out_characters(&measured, job, members, NULL);
    char *memory = borrow(all_buffers + bytes * count);
    if (!memory) return 1;
    struct characters_call call = {
        .job = job, .all_buffers = memset(memory, 0, all_buffers), .stages = &stages
    };
    for (int64_t i = 0; i < count; i++)
        lay_out_characters(&call.all_buffers[i], job, members, memory + all_buffers + i * bytes);
    (job->pool ? run_workers : run_with_helpers)(characters_work, &call, (int)job->threads);
    give_back(memory);
    return atomic_load(&call.unknown) ? 2 : 0;
}

/* All blocks over a flat batch of segments. Returns 0, or 1 if there was not enough memory. */
int elmokit_transformer(const struct transformer *job) {
    if (!job->starts[job->segments]) return 0;
    int64_t outputs = 0;
    for (int64_t i = 0; i <= job->n_blocks; i++) outputs += job->output_index[i] >= 0;
    use_large_pages(job->y, outputs * job->starts[job->segments] * job->size * (int64_t)sizeof(float));
    struct stages stages = {0};
    struct tiling tiling = {.job = job, .tiles = malloc((job->segments + 1) * sizeof(struct tile)), .stages = &stages};
    if (!tiling.tiles) return 1;
    plan_tiles(&tiling);
    struct workspace measured;
    scratch_at(job, tiling.most, NULL, &tiling.scratch_bytes);
    int64_t space = workspace_at(&measured, job, tiling.most, NULL), count = workspace_count(job);
    int64_t spaces = padded(count * (int64_t)sizeof measured);
    int64_t states = padded(tiling.longest * job->size * (int64_t)sizeof(float));
    char *memory = borrow(spaces + count * space + job->threads * tiling.scratch_bytes + 2 * states);
    if (memory) {
        tiling.workspaces = memset(memory, 0, spaces);
        for (int64_t i = 0; i < count; i++)
            workspace_at(&tiling.workspaces[i], job, tiling.most, memory + spaces + i * space);
        tiling.scratches = memory + spaces + count * space;
        tiling.states[0] = (float *)(tiling.scratches + job->threads * tiling.scratch_bytes);
        tiling.states[1] = tiling.states[0] + states / (int64_t)sizeof(float);
        run_with_helpers(transformer_work, &tiling, (int)job->threads);
        give_back(memory);
    }
    free(tiling.tiles);
    return memory ? 0 : 1;
}
