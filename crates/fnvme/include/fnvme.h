/* libfnvme: NVMe through an engine that forms the commands.
 *
 * The calls of Table I and the structure of Listing 1 of Athanasios Stratikopoulos et al., "FastPath:
 * Towards Wire-speed NVMe SSDs" (2018), and what a program needs beside them. All calls may be made from
 * any thread.
 *
 * What one area's owner can't reach is checked by the engine, by number, use and range. In one process that
 * is a check and no protection: threads share their memory. A client of another process's engine
 * ("engine:SOCKET") has a ring and a buffer of its own and reaches nothing else.
 *
 * A new area holds whatever its last owner has left there. The first 8 KiB of the drive (with blocks of 4 KiB or
 * less) hold the directory of named areas.
 */
#ifndef FNVME_H
#define FNVME_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char *dma_address; /* the DMA buffer, as long as the area */
    int fp_id;         /* the number of the area */
    int block_size;    /* set before each request: 512, 1024, 2048, 4096 or 8192 bytes */
} fastpath;

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L && defined(__LP64__)
_Static_assert(sizeof(fastpath) == 16, "the library has other ideas of this structure");
_Static_assert(offsetof(fastpath, dma_address) == 0, "dma_address");
_Static_assert(offsetof(fastpath, fp_id) == 8, "fp_id");
_Static_assert(offsetof(fastpath, block_size) == 12, "block_size");
#endif

/* Flags. FP_DIRECT: `buffer` is a part of the DMA buffer, nothing is copied, and its offset from dma_address
 * is the offset in the area. Without it, data are copied, and the call goes on in the area where the last such
 * call ended; `buffer` must be no part of the DMA buffer. FP_BLOCKING: the call returns when the request has ended. */
#define FP_DIRECT 1
#define FP_BLOCKING 2

/* Table I. A size is a multiple of block_size. Zero, or minus an error. */
fastpath *fastpath_alloc(int size); /* NULL: fastpath_error() says why */
int fastpath_write(fastpath *fp, const void *buffer, int size, int flags);
int fastpath_read(fastpath *fp, void *buffer, int size, int flags);
int fastpath_polling(fastpath *fp); /* until all requests are fulfilled */
int fastpath_free(fastpath *fp);

/* A function in the way of data: what an area's blocks (of block_size bytes) pass between the buffer and the
 * drive. It is called on the engine's thread, one block at a time, which holds all other requests up; it may
 * change the block, and refuse it with anything but zero: the request then fails with FP_E_FUNCTION. `place` is
 * where on the drive the block lies, in bytes. A NULL lets all pass. The functions and the context must be good
 * until fastpath_free has returned. */
typedef struct fastpath_function {
    int (*outward)(void *context, long long place, void *block, int size); /* to the drive */
    int (*inward)(void *context, long long place, void *block, int size);  /* from the drive */
    void *context;
} fastpath_function;

fastpath *fastpath_alloc_through(int size, const fastpath_function *function);

/* Functions that come with the library: "crc32c" (what is read must have the checksum of what was written),
 * "aes-xts:KEY" (encrypted on the drive; 64 or 128 hexadecimal digits) or "filter:RECORD:AT:LEAST:MOST" (records
 * of RECORD bytes whose number of 8 bytes at AT, the lowest last, is not in the range arrive as zeros). */
fastpath *fastpath_alloc_named(int size, const char *function);

/* An area by its name, which outlives the program: the one that was made on this drive before, with its data, or a
 * new one of `size` bytes. A size of 0 finds one only (else FP_E_NAME); another one must be the area's own. The
 * name, 1 to 40 bytes of UTF-8, is all that an owner needs, and names cannot be listed. An area has one owner at a
 * time (FP_E_BUSY), and fastpath_free leaves it on the drive; fastpath_remove frees its blocks. `function` is as for
 * fastpath_alloc_named, or NULL. A drive has at most 63 named areas; "engine:SOCKET" has none. */
fastpath *fastpath_open(const char *name, int size, const char *function);
int fastpath_remove(const char *name);
long long fastpath_size(const fastpath *fp); /* bytes of the area, or minus an error */

/* At an offset in the area, which with FP_DIRECT has to be that of `buffer`. */
int fastpath_pwrite(fastpath *fp, const void *buffer, int size, long long offset, int flags);
int fastpath_pread(fastpath *fp, void *buffer, int size, long long offset, int flags);
int fastpath_seek(fastpath *fp, long long offset);
int fastpath_flush(fastpath *fp);

/* Latencies of an area's requests, from where the engine takes one to the end of its last command, ns: counters of
 * fixed size, since the area was allocated or they were reset. A call is a request for each MiB, or, without
 * FP_DIRECT, for each 128 KiB; it counts when its end has been seen. A percentile has two decimal digits, and is 0
 * without requests. */
enum { FP_READS, FP_WRITES, FP_FLUSHES };
typedef struct fastpath_counters {
    long long requests; /* carried out, failed ones among them */
    long long failed;   /* and refused ones */
    long long least, mean, most;
} fastpath_counters;

int fastpath_latency(const fastpath *fp, int kind, fastpath_counters *counters);
long long fastpath_latency_percentile(const fastpath *fp, int kind, double percent); /* or minus an error */
int fastpath_latency_reset(const fastpath *fp);

/* The device: "memory", "memory:64m", "plan:PLAN" (a built-in name or a TOML file; its drive is in this process),
 * "shm:SOCKET" (doorbell serve --shm), "vfio-user:SOCKET" (the NVMe function of a vfio-user server), "vfio:ADDRESS"
 * (as in vfio:0000:01:00.0: an SSD of this machine bound to vfio-pci; areas overwrite its data) or "engine:SOCKET".
 * Without fastpath_attach it is that of the variable FNVME_DEVICE, or else "memory". fastpath_detach, when all is
 * freed, lets it go. */
int fastpath_attach(const char *device);
int fastpath_detach(void);

/* This thread's last error, and any error in words (until the thread asks again): of the last one all that is
 * known, such as which socket, or what was expected. */
int fastpath_error(void);
const char *fastpath_error_text(int error);

enum {
    /* The engine's. */
    FP_E_ENGINE_HANDLE = 1, /* no such handle */
    FP_E_STALE = 2,         /* it was freed */
    FP_E_AREA = 3,          /* outside the area */
    FP_E_BUFFER = 4,        /* outside the DMA buffer */
    FP_E_SIZE = 5,          /* a bad size, block size or alignment */
    FP_E_OPCODE = 6,
    FP_E_TIME_OUT = 7,
    FP_E_BUS = 8,
    FP_E_CONTROLLER = 9,
    FP_E_FUNCTION = 10, /* a function refused a block */
    /* The library's. */
    FP_E_HANDLE = 100,   /* no such fastpath */
    FP_E_ARGUMENT = 101, /* an argument that makes no sense */
    FP_E_SPACE = 102,    /* no area, handle or memory left */
    FP_E_GONE = 103,     /* the engine has ended */
    FP_E_DEVICE = 104,   /* no device by this word, or none of this size */
    FP_E_SOCKET = 105,   /* nobody answers at the device's socket */
    FP_E_START = 106,    /* the drive or its engine does not start */
    FP_E_BUSY = 107,     /* a device, or areas of it, are to be let go before */
    FP_E_NAME = 108,     /* no area of this name */
    /* The drive's: an NVMe status field is added to this. */
    FP_E_NVME = 0x10000
};

#ifdef __cplusplus
}
#endif
#endif
