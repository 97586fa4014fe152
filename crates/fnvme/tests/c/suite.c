/* The C face of libfnvme, as a C program sees it: every call, every flag, every refusal, eight threads. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fnvme.h"

static int checks;

#define CHECK(what)                                                                          \
    do {                                                                                     \
        checks++;                                                                            \
        if (!(what)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what,                    \
                    fastpath_error_text(fastpath_error()));                                  \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

#define REFUSED(call, error)                      \
    do {                                          \
        CHECK((call) == -(error));                \
        CHECK(fastpath_error() == (error));       \
        CHECK(*fastpath_error_text(error) != 0);  \
    } while (0)

#define ALL (FP_DIRECT | FP_BLOCKING)

static void fill(char *at, size_t bytes, uint32_t seed)
{
    for (size_t n = 0; n < bytes; n++) {
        seed = seed * 1664525u + 1013904223u;
        at[n] = (char)(seed >> 24);
    }
}

static int holds(const char *at, size_t bytes, uint32_t seed)
{
    for (size_t n = 0; n < bytes; n++) {
        seed = seed * 1664525u + 1013904223u;
        if (at[n] != (char)(seed >> 24))
            return 0;
    }
    return 1;
}

static void every_way(void)
{
    static const int sizes[] = { 512, 1024, 2048, 4096, 8192 };
    enum { AREA = 256 << 10 };
    fastpath *fp = fastpath_alloc(AREA);
    CHECK(fp != NULL);
    CHECK(fp->block_size == 0);
    REFUSED(fastpath_write(fp, fp->dma_address, 4096, ALL), FP_E_SIZE);
    char *own = malloc(AREA);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        fp->block_size = sizes[n];
        uint32_t seed = 77 + (uint32_t)n;
        /* Direct and blocking. */
        fill(fp->dma_address, AREA, seed);
        CHECK(fastpath_write(fp, fp->dma_address, AREA, ALL) == 0);
        memset(fp->dma_address, 0, AREA);
        CHECK(fastpath_read(fp, fp->dma_address, AREA, ALL) == 0);
        CHECK(holds(fp->dma_address, AREA, seed));
        /* A part: its place in the buffer is its place in the area. */
        memset(fp->dma_address, 0, AREA);
        CHECK(fastpath_read(fp, fp->dma_address + 16384, 8192, ALL) == 0);
        CHECK(fp->dma_address[16383] == 0 && fp->dma_address[16384 + 8192] == 0);
        /* Begun, then waited for. */
        CHECK(fastpath_read(fp, fp->dma_address, AREA / 2, FP_DIRECT) == 0);
        CHECK(fastpath_read(fp, fp->dma_address + AREA / 2, AREA / 2, FP_DIRECT) == 0);
        CHECK(fastpath_polling(fp) == 0);
        CHECK(holds(fp->dma_address, AREA, seed));
        /* Copied, from the cursor on. */
        fill(own, AREA, seed + 100);
        CHECK(fastpath_seek(fp, 0) == 0);
        CHECK(fastpath_write(fp, own, AREA / 2, FP_BLOCKING) == 0);
        CHECK(fastpath_write(fp, own + AREA / 2, AREA / 2, 0) == 0);
        CHECK(fastpath_polling(fp) == 0);
        REFUSED(fastpath_write(fp, own, 8192, FP_BLOCKING), FP_E_AREA);
        memset(own, 0, AREA);
        memset(fp->dma_address, 0, AREA);
        CHECK(fastpath_seek(fp, 0) == 0);
        CHECK(fastpath_read(fp, own, AREA / 2, 0) == 0);
        CHECK(fastpath_read(fp, own + AREA / 2, AREA / 2, 0) == 0);
        CHECK(fastpath_polling(fp) == 0);
        CHECK(holds(own, AREA, seed + 100));
        /* At an offset. */
        CHECK(fastpath_pwrite(fp, "0123456789abcdef", 0, 0, FP_BLOCKING) == -FP_E_ARGUMENT);
        fill(own, 8192, seed + 200);
        CHECK(fastpath_pwrite(fp, own, 8192, 65536, FP_BLOCKING) == 0);
        memset(own, 0, 8192);
        CHECK(fastpath_pread(fp, own, 8192, 65536, FP_BLOCKING) == 0);
        CHECK(holds(own, 8192, seed + 200));
        CHECK(fastpath_pread(fp, fp->dma_address + 8192, 8192, 8192, ALL) == 0);
        REFUSED(fastpath_pread(fp, fp->dma_address + 8192, 8192, 0, ALL), FP_E_ARGUMENT);
    }
    CHECK(fastpath_flush(fp) == 0);
    free(own);
    CHECK(fastpath_free(fp) == 0);
}

static void what_is_refused(void)
{
    enum { AREA = 64 << 10 };
    static char own[16384];
    fastpath forged = { own, 0, 4096 };
    fastpath *fp = fastpath_alloc(AREA), *other = fastpath_alloc(AREA);
    CHECK(fp && other && fp->fp_id != other->fp_id);
    fp->block_size = other->block_size = 4096;
    REFUSED(fastpath_read(NULL, own, 4096, FP_BLOCKING), FP_E_HANDLE);
    REFUSED(fastpath_read(&forged, own, 4096, FP_BLOCKING), FP_E_HANDLE);
    REFUSED(fastpath_polling(&forged), FP_E_HANDLE);
    REFUSED(fastpath_free(&forged), FP_E_HANDLE);
    REFUSED(fastpath_read(fp, NULL, 4096, FP_BLOCKING), FP_E_ARGUMENT);
    REFUSED(fastpath_read(fp, own, 4096, 64), FP_E_ARGUMENT);
    REFUSED(fastpath_read(fp, own, -4096, FP_BLOCKING), FP_E_SIZE);
    REFUSED(fastpath_read(fp, own, 100, FP_BLOCKING), FP_E_SIZE);
    REFUSED(fastpath_read(fp, own, 4096, ALL), FP_E_BUFFER);
    REFUSED(fastpath_read(fp, other->dma_address, 4096, ALL), FP_E_BUFFER);
    REFUSED(fastpath_read(fp, fp->dma_address + 4096, 4096, FP_BLOCKING), FP_E_ARGUMENT);
    /* A buffer that ends in the DMA buffer: the drive may write what the call would copy to. */
    REFUSED(fastpath_read(fp, fp->dma_address - 4096, 8192, FP_BLOCKING), FP_E_ARGUMENT);
    REFUSED(fastpath_read(fp, fp->dma_address + 100, 4096, ALL), FP_E_SIZE);
    REFUSED(fastpath_read(fp, fp->dma_address + AREA - 4096, 8192, ALL), FP_E_AREA);
    REFUSED(fastpath_pread(fp, own, 4096, -4096, FP_BLOCKING), FP_E_AREA);
    REFUSED(fastpath_pread(fp, own, 4096, AREA, FP_BLOCKING), FP_E_AREA);
    REFUSED(fastpath_pread(fp, own, 4096, 0x7ffffffffffff000, FP_BLOCKING), FP_E_AREA);
    fp->block_size = 16384;
    REFUSED(fastpath_read(fp, fp->dma_address, 16384, ALL), FP_E_SIZE);
    fp->block_size = -1;
    REFUSED(fastpath_read(fp, fp->dma_address, 16384, ALL), FP_E_SIZE);
    fp->block_size = 4096;
    REFUSED(fastpath_seek(fp, -1), FP_E_AREA);
    /* A failure of what was begun is told by fastpath_polling, once. */
    CHECK(fastpath_read(fp, fp->dma_address + 100, 4096, FP_DIRECT) == 0);
    REFUSED(fastpath_polling(fp), FP_E_SIZE);
    CHECK(fastpath_polling(fp) == 0 && fastpath_error() == 0);
    REFUSED(fastpath_detach(), FP_E_BUSY);
    REFUSED(fastpath_attach("memory"), FP_E_BUSY);
    REFUSED(fastpath_attach(NULL), FP_E_ARGUMENT);
    CHECK(fastpath_free(fp) == 0 && fastpath_free(other) == 0);
    REFUSED(fastpath_free(fp), FP_E_HANDLE);
    REFUSED(fastpath_read(fp, own, 4096, FP_BLOCKING), FP_E_HANDLE);
    CHECK(fastpath_alloc(0) == NULL && fastpath_error() == FP_E_ARGUMENT);
    CHECK(fastpath_alloc(-1) == NULL && fastpath_error() == FP_E_ARGUMENT);
    CHECK(fastpath_alloc(0x7fffffff) == NULL && fastpath_error() == FP_E_SPACE);
}

struct passed {
    int outward, inward;
    int refuse;
};

static int flip(unsigned char *block, int size, int *count, const struct passed *passed)
{
    ++*count;
    for (int n = 0; n < size; n++)
        block[n] ^= 0x5a;
    return passed->refuse;
}

static int flip_outward(void *context, long long place, void *block, int size)
{
    struct passed *passed = context;
    return place % size ? 1 : flip(block, size, &passed->outward, passed);
}

static int flip_inward(void *context, long long place, void *block, int size)
{
    struct passed *passed = context;
    return place % size ? 1 : flip(block, size, &passed->inward, passed);
}

/* Functions in the way of data: the caller's own, and those that come with the library. */
static void blocks_pass_functions(void)
{
    enum { AREA = 64 << 10 };
    static const char key[] = "aes-xts:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    struct passed passed = { 0, 0, 0 };
    const fastpath_function function = { flip_outward, flip_inward, &passed };
    const fastpath_function nothing = { NULL, NULL, NULL };
    fastpath *areas[] = {
        fastpath_alloc_through(AREA, &function), fastpath_alloc_through(AREA, &nothing),
        fastpath_alloc_named(AREA, "crc32c"), fastpath_alloc_named(AREA, key),
    };
    enum { AREAS = sizeof areas / sizeof *areas };
    for (int n = 0; n < AREAS; n++) {
        fastpath *fp = areas[n];
        CHECK(fp != NULL);
        fp->block_size = 4096;
        fill(fp->dma_address, AREA, 9);
        CHECK(fastpath_write(fp, fp->dma_address, AREA, ALL) == 0);
        CHECK(holds(fp->dma_address, AREA, 9));
        memset(fp->dma_address, 0, AREA);
        fp->block_size = 8192;
        CHECK(fastpath_read(fp, fp->dma_address, AREA, ALL) == 0);
        CHECK(holds(fp->dma_address, AREA, 9));
    }
    CHECK(passed.outward == AREA / 4096 && passed.inward == AREA / 8192);
    passed.refuse = 1;
    memset(areas[0]->dma_address, 0, AREA);
    REFUSED(fastpath_read(areas[0], areas[0]->dma_address, AREA, ALL), FP_E_FUNCTION);
    CHECK(areas[0]->dma_address[0] == 0);
    for (int n = 0; n < AREAS; n++)
        CHECK(fastpath_free(areas[n]) == 0);
    CHECK(fastpath_alloc_through(AREA, NULL) == NULL && fastpath_error() == FP_E_ARGUMENT);
    CHECK(fastpath_alloc_named(AREA, NULL) == NULL && fastpath_error() == FP_E_ARGUMENT);
    CHECK(fastpath_alloc_named(AREA, "rot13") == NULL && fastpath_error() == FP_E_ARGUMENT);
    CHECK(strstr(fastpath_error_text(FP_E_FUNCTION), "function") != NULL);
}

/* The whole drive goes round: what is freed can be had again. */
static void space_comes_back(void)
{
    fastpath *all[64];
    for (int round = 0; round < 3; round++) {
        int n = 0;
        while (n < 64 && (all[n] = fastpath_alloc(8 << 20)) != NULL)
            n++;
        /* The directory of named areas takes 8 KiB of the eighth. */
        CHECK(n == 7);
        CHECK(fastpath_error() == FP_E_SPACE);
        CHECK((all[n] = fastpath_alloc((8 << 20) - 8192)) != NULL);
        CHECK(fastpath_size(all[n++]) == (8 << 20) - 8192);
        while (n > 0)
            CHECK(fastpath_free(all[--n]) == 0);
    }
}

/* A named area stays on the drive when it is freed, until it is removed. */
static void named_areas(void)
{
    enum { AREA = 64 << 10 };
    CHECK(fastpath_open("log", 0, NULL) == NULL && fastpath_error() == FP_E_NAME);
    fastpath *fp = fastpath_open("log", AREA, NULL);
    CHECK(fp != NULL && fastpath_size(fp) == AREA);
    fp->block_size = 4096;
    fill(fp->dma_address, AREA, 21);
    CHECK(fastpath_write(fp, fp->dma_address, AREA, ALL) == 0);
    CHECK(fastpath_open("log", AREA, NULL) == NULL && fastpath_error() == FP_E_BUSY);
    REFUSED(fastpath_remove("log"), FP_E_BUSY);
    CHECK(fastpath_free(fp) == 0);
    CHECK(fastpath_open("log", 2 * AREA, NULL) == NULL && fastpath_error() == FP_E_ARGUMENT);
    CHECK(strstr(fastpath_error_text(FP_E_ARGUMENT), "128 blocks") != NULL);
    fp = fastpath_open("log", 0, NULL);
    CHECK(fp != NULL && fastpath_size(fp) == AREA);
    fp->block_size = 8192;
    CHECK(fastpath_read(fp, fp->dma_address, AREA, ALL) == 0);
    CHECK(holds(fp->dma_address, AREA, 21));
    CHECK(fastpath_free(fp) == 0);
    CHECK(fastpath_remove("log") == 0);
    REFUSED(fastpath_remove("log"), FP_E_NAME);
    /* A function is the opener's to name again: the drive has what came out of it. */
    const char *key = "aes-xts:2718281828459045235360287471352631415926535897932384626433832795";
    fp = fastpath_open("secret", AREA, key);
    CHECK(fp != NULL);
    fp->block_size = 4096;
    fill(fp->dma_address, AREA, 22);
    CHECK(fastpath_write(fp, fp->dma_address, AREA, ALL) == 0);
    CHECK(fastpath_free(fp) == 0);
    for (int known = 0; known < 2; known++) {
        fp = fastpath_open("secret", AREA, known ? key : NULL);
        CHECK(fp != NULL);
        fp->block_size = 4096;
        CHECK(fastpath_read(fp, fp->dma_address, AREA, ALL) == 0);
        CHECK(holds(fp->dma_address, AREA, 22) == known);
        CHECK(fastpath_free(fp) == 0);
    }
    CHECK(fastpath_remove("secret") == 0);
    CHECK(fastpath_open("", AREA, NULL) == NULL && fastpath_error() == FP_E_ARGUMENT);
    CHECK(fastpath_open(NULL, AREA, NULL) == NULL && fastpath_error() == FP_E_ARGUMENT);
    CHECK(fastpath_open("new", -1, NULL) == NULL && fastpath_error() == FP_E_ARGUMENT);
    CHECK(fastpath_open("new", AREA, "rot13") == NULL && fastpath_error() == FP_E_ARGUMENT);
    REFUSED(fastpath_remove("new"), FP_E_NAME);
}

static void latencies(void)
{
    enum { AREA = 64 << 10 };
    fastpath_counters counters;
    fastpath *fp = fastpath_alloc(AREA);
    CHECK(fp != NULL);
    fp->block_size = 4096;
    CHECK(fastpath_latency_percentile(fp, FP_READS, 50) == 0);
    for (int n = 0; n < AREA / 4096; n++)
        CHECK(fastpath_read(fp, fp->dma_address + n * 4096, 4096, n % 2 ? FP_DIRECT : ALL) == 0);
    CHECK(fastpath_polling(fp) == 0);
    REFUSED(fastpath_read(fp, fp->dma_address, 512 * 3, ALL), FP_E_SIZE);
    CHECK(fastpath_flush(fp) == 0);
    CHECK(fastpath_latency(fp, FP_READS, &counters) == 0);
    CHECK(counters.requests == AREA / 4096 && counters.failed == 0);
    CHECK(0 < counters.least && counters.least <= counters.mean && counters.mean <= counters.most);
    long long half = fastpath_latency_percentile(fp, FP_READS, 50);
    long long all = fastpath_latency_percentile(fp, FP_READS, 100);
    CHECK(counters.least * 0.99 <= half && half <= all);
    CHECK(counters.most * 0.99 <= all && all <= counters.most * 1.01);
    CHECK(fastpath_latency(fp, FP_WRITES, &counters) == 0 && counters.requests == 0);
    CHECK(fastpath_latency(fp, FP_FLUSHES, &counters) == 0 && counters.requests == 1);
    REFUSED(fastpath_latency(fp, 3, &counters), FP_E_ARGUMENT);
    REFUSED(fastpath_latency(fp, FP_READS, NULL), FP_E_ARGUMENT);
    CHECK(fastpath_latency_percentile(fp, -1, 50) == -FP_E_ARGUMENT);
    CHECK(fastpath_latency_percentile(fp, FP_READS, 100.5) == -FP_E_ARGUMENT);
    CHECK(fastpath_latency_percentile(fp, FP_READS, 0.0 / 0.0) == -FP_E_ARGUMENT);
    CHECK(fastpath_latency_reset(fp) == 0);
    CHECK(fastpath_latency(fp, FP_READS, &counters) == 0 && counters.requests == 0);
    CHECK(fastpath_free(fp) == 0);
    REFUSED(fastpath_latency(fp, FP_READS, &counters), FP_E_HANDLE);
    CHECK(fastpath_size(fp) == -FP_E_HANDLE);
}

enum { THREAD_AREA = 128 << 10 };

static uint32_t rounds = 40;

static void *one_of_eight(void *number)
{
    uint32_t seed = 1000u * (uint32_t)(uintptr_t)number;
    fastpath *fp = fastpath_alloc(THREAD_AREA);
    CHECK(fp != NULL);
    for (uint32_t round = 0; round < rounds; round++) {
        fp->block_size = 512 << (round % 5);
        fill(fp->dma_address, THREAD_AREA, seed + round);
        CHECK(fastpath_write(fp, fp->dma_address, THREAD_AREA, FP_DIRECT | (round % 2 ? FP_BLOCKING : 0)) == 0);
        CHECK(fastpath_polling(fp) == 0);
        memset(fp->dma_address, 0, THREAD_AREA);
        CHECK(fastpath_read(fp, fp->dma_address, THREAD_AREA, ALL) == 0);
        CHECK(holds(fp->dma_address, THREAD_AREA, seed + round));
    }
    CHECK(fastpath_free(fp) == 0);
    return NULL;
}

static fastpath *shared;

static void *one_of_a_handle(void *number)
{
    int offset = 16384 * (int)(uintptr_t)number;
    uint32_t seed = 5000u + (uint32_t)offset;
    char own[16384];
    for (uint32_t round = 0; round < rounds; round++) {
        fill(own, sizeof own, seed);
        CHECK(fastpath_pwrite(shared, own, sizeof own, offset, FP_BLOCKING) == 0);
        memset(own, 0, sizeof own);
        CHECK(fastpath_pread(shared, own, sizeof own, offset, FP_BLOCKING) == 0);
        CHECK(holds(own, sizeof own, seed));
    }
    return NULL;
}

static void eight(void *(*body)(void *))
{
    pthread_t threads[8];
    for (uintptr_t n = 0; n < 8; n++)
        CHECK(pthread_create(&threads[n], NULL, body, (void *)n) == 0);
    for (int n = 0; n < 8; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
}

/* Four mistakes, each with its error and its own words. */
static void no_such_device(void)
{
    static const struct {
        const char *word;
        int error;
        const char *text;
    } mistakes[] = {
        {"nonsense", FP_E_DEVICE, "expected memory, memory:SIZE"},
        {"memory:many", FP_E_DEVICE, "found no size in \"many\""},
        {"shm:/nowhere/s", FP_E_SOCKET, "shm:/nowhere/s"},
        {"engine:/dev/null", FP_E_SOCKET, "/dev/null is no socket"},
    };
    for (size_t n = 0; n < sizeof mistakes / sizeof *mistakes; n++) {
        REFUSED(fastpath_attach(mistakes[n].word), mistakes[n].error);
        CHECK(strstr(fastpath_error_text(fastpath_error()), mistakes[n].text) != NULL);
    }
    /* An error that is not the last one's has words, too. */
    CHECK(strstr(fastpath_error_text(FP_E_DEVICE), "no device by this word") != NULL);
}

int main(int count, char **words)
{
    /* Fewer rounds of the threads, for a slow machine: suite ROUNDS. */
    if (count > 1)
        rounds = (uint32_t)atoi(words[1]);
    no_such_device();
    CHECK(fastpath_attach("memory:64m") == 0);
    every_way();
    what_is_refused();
    blocks_pass_functions();
    named_areas();
    latencies();
    space_comes_back();
    eight(one_of_eight);
    shared = fastpath_alloc(8 * 16384);
    CHECK(shared != NULL);
    shared->block_size = 4096;
    eight(one_of_a_handle);
    CHECK(fastpath_free(shared) == 0);
    CHECK(fastpath_detach() == 0);
    printf("%d checks\n", checks);
    return 0;
}
