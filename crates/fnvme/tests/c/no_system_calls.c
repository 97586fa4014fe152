/* A request makes no system call: 100,000 of them under a seccomp filter that traps every system call of every
 * thread. A side that has waited for tens of microseconds yields its core, and for tenths of a second sleeps, which a
 * busy machine makes happen: these calls are counted. Each check runs in a process of its own, as a filter stays.
 *
 * Two checks have a system call in the path, on the caller's thread and on the engine's: the filter has to see it. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "fnvme.h"

#ifdef __x86_64__
#define THIS_ARCH AUDIT_ARCH_X86_64
#define RESULT(context) ((context)->uc_mcontext.gregs[REG_RAX])
#else
#define THIS_ARCH AUDIT_ARCH_AARCH64
#define RESULT(context) ((context)->uc_mcontext.regs[0])
#endif

enum { REQUESTS = 100000, BATCH = 32, AREA = 1 << 20, PAGE = 4096, FOUND = 3, FAILED = 4, SECONDS = 300,
       COUNTED = 0x636e7464 };

/* Shared with the parent. */
struct seen {
    long waits; /* yields and sleeps of a side that has waited */
    int call; /* number of another system call */
};

static struct seen *seen;

static void trapped(int number, siginfo_t *info, void *context)
{
    (void)number;
    if (info->si_syscall == SYS_sched_yield || info->si_syscall == SYS_clock_nanosleep) {
        __atomic_fetch_add(&seen->waits, 1, __ATOMIC_RELAXED);
        RESULT((ucontext_t *)context) = syscall(SYS_sched_yield, COUNTED);
        return;
    }
    seen->call = info->si_syscall;
    _exit(FOUND);
}

static int trap_all_system_calls(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        /* The handler's own: its return, the end of the process, a yield that it has counted. */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_yield, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, COUNTED, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

static int calls_getpid(void *context, long long place, void *block, int size)
{
    (void)context;
    (void)place;
    (void)block;
    (void)size;
    syscall(SYS_getpid);
    return 0;
}

/* In batches, as a busy machine takes a core away at each hand-over; the last request of a batch is waited for. */
static int requests(fastpath *fp, int count)
{
    for (int n = 0; n < count; n++) {
        char *page = fp->dma_address + (size_t)n * 7 % (AREA / PAGE) * PAGE;
        int flags = FP_DIRECT | (n % BATCH == BATCH - 1 ? FP_BLOCKING : 0);
        if ((n % 4 ? fastpath_read(fp, page, PAGE, flags) : fastpath_write(fp, page, PAGE, flags)) != 0)
            return -1;
        if (n % BATCH == BATCH - 1 && fastpath_polling(fp) != 0)
            return -1;
        if (n % 1000 == 0 && fastpath_latency_percentile(fp, FP_READS, 99) < 0)
            return -1;
    }
    return fastpath_polling(fp);
}

enum kind { PLAIN, CALLER_CALLS, ENGINE_CALLS };

/* The child. */
static int under_the_filter(enum kind kind)
{
    static const fastpath_function function = { calls_getpid, calls_getpid, NULL };
    fastpath *fp = kind == ENGINE_CALLS ? fastpath_alloc_through(AREA, &function) : fastpath_alloc(AREA);
    if (!fp) {
        fprintf(stderr, "alloc: %s\n", fastpath_error_text(fastpath_error()));
        return FAILED;
    }
    fp->block_size = PAGE;
    if (requests(fp, 1000) != 0) {
        fprintf(stderr, "warming up: %s\n", fastpath_error_text(fastpath_error()));
        return FAILED;
    }
    alarm(SECONDS);
    if (trap_all_system_calls() != 0) {
        fprintf(stderr, "seccomp: %s\n", strerror(errno));
        return FAILED;
    }
    int bad = requests(fp, kind == PLAIN ? REQUESTS : REQUESTS / 100);
    if (kind == CALLER_CALLS)
        syscall(SYS_getpid);
    _exit(bad ? FAILED : 0);
}

static int check(const char *name, enum kind kind, int expected)
{
    seen->waits = seen->call = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(under_the_filter(kind));
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        fprintf(stderr, "%s: %s\n", name, strerror(errno));
        return 1;
    }
    int found = WIFEXITED(status) && WEXITSTATUS(status) == FOUND ? seen->call : -1;
    int clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (expected < 0 ? !clean : found != expected) {
        fprintf(stderr, "%s: found status %#x and system call %d, expected %d (-1: none)\n", name, status, seen->call,
                expected);
        return 1;
    }
    printf("%s: %s, %ld yields and sleeps\n", name,
           expected < 0 ? "100000 requests without a system call" : "system call found, as it must be", seen->waits);
    return 0;
}

int main(void)
{
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    return check("getpid on the caller's thread", CALLER_CALLS, SYS_getpid)
        || check("getpid on the engine's thread", ENGINE_CALLS, SYS_getpid)
        || check("requests", PLAIN, -1);
}
