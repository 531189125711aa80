/* What a look at a thread's next instructions must end at or survive. The second argument says which:
 *
 *   rewrites   changes an instruction of a running function all the time
 *   unmaps     another thread maps and unmaps pages next to those that this one reads
 *   pulls      another thread takes the pages that this one reads away for a moment; it waits for them in its handler of SIGSEGV
 *   narrow     goes over to 32-bit code in each turn
 *   rare       in each turn, an instruction that hardly any program has
 *   secret     its stack is memory that nobody else may read (memfd_secret); "absent" in the output where the kernel has none
 *   confined   seccomp forbids it nearly everything
 *   clocks     reads the processor's clock in each turn
 *   times      reads the kernel's clocks in each turn, by the vDSO
 *   elsewhere  the same in a time namespace of its own; "absent" in the output where it cannot have one
 *
 * The checksum does not depend on when it was interrupted, only on the number of rounds, the first argument (not seconds).
 */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include "target.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

static uint64_t rounds;

/* mov $IMMEDIATE,%eax; ret */
static APART uint64_t rewrites(uint64_t *a) {
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED)
        fail("mmap");
    memcpy(code, (unsigned char[]){0xb8, 0, 0, 0, 0, 0xc3}, 6);
    uint32_t (*function)(void) = (uint32_t (*)(void))code;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rounds * 4000; i++) {
        uint32_t immediate = (uint32_t)i;
        memcpy(code + 1, &immediate, 4);
        sum = mix(sum + function() + a[i % 512]);
    }
    return sum;
}

static volatile int over;

static void *map_and_unmap(void *unused) {
    (void)unused;
    while (!over) {
        char *page = mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            fail("mmap");
        page[4096] = 1;
        munmap(page, 16 * 4096);
    }
    return NULL;
}

static APART uint64_t unmaps(uint64_t *a) {
    pthread_t other;
    pthread_create(&other, NULL, map_and_unmap, NULL);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rounds; i++)
        sum = mix(sum ^ ordinary_work(a, 4096, i));
    over = 1;
    pthread_join(other, NULL);
    return sum;
}

enum { PULLED = 64 };
static volatile char *pulled;
static volatile int is_there = 1;

static void wait_for_pages(int signal) {
    (void)signal;
    while (!is_there && !over)
        ;
}

static void *pull(void *unused) {
    (void)unused;
    while (!over) {
        usleep(10000);
        is_there = 0;
        munmap((void *)pulled, PULLED * 4096);
        double from = now();
        while (now() < from + 0.002)
            ;
        if (mmap((void *)pulled, PULLED * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            fail("mmap");
        is_there = 1;
    }
    return NULL;
}

static APART uint64_t pulls(uint64_t *a) {
    pulled = mmap(NULL, PULLED * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pulled == MAP_FAILED)
        fail("mmap");
    signal(SIGSEGV, wait_for_pages);
    pthread_t other;
    pthread_create(&other, NULL, pull, NULL);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rounds * 400; i++)
        sum = mix(sum + a[i % 4096]) + (uint64_t)pulled[i % PULLED * 4096];
    over = 1;
    pthread_join(other, NULL);
    return sum;
}

/* The processor's 32-bit mode: mov $1000,%ecx; 0: dec %ecx; jnz 0b; ljmp to what follows, in 64-bit mode again: mov %r14,%rsp; jmp *%r15 */
static APART uint64_t narrow(uint64_t *a) {
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (code == MAP_FAILED)
        fail("mmap");
    uint32_t wide = (uint32_t)(uintptr_t)code + 15;
    memcpy(code, (unsigned char[]){0xb9, 0xe8, 3, 0, 0, 0x49, 0x75, 0xfd, 0xea}, 9);
    memcpy(code + 9, &wide, 4);
    memcpy(code + 13, (unsigned char[]){0x33, 0, 0x4c, 0x89, 0xf4, 0x41, 0xff, 0xe7}, 8);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rounds * 40; i++) {
        asm volatile("mov %%rsp, %%r14\n\t"
                     "lea 1f(%%rip), %%r15\n\t"
                     "sub $128, %%rsp\n\t"
                     "push $0x23\n\t"
                     "push %0\n\t"
                     "lretq\n"
                     "1:"
                     :
                     : "r"(code)
                     : "rcx", "r14", "r15", "cc", "memory");
        sum = mix(sum + a[i % 4096]);
    }
    return sum;
}

static APART uint64_t rare(uint64_t *a) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rounds * 400; i++) {
        uint32_t rights = 0x2b;
        asm volatile("lar %0, %0" : "+r"(rights) : : "cc");
        sum = mix(sum + rights + a[i % 4096]);
    }
    return sum;
}

static uint64_t *array;

static APART uint64_t recurse(uint64_t depth) {
    volatile uint64_t here[16];
    here[depth % 16] = depth;
    return depth == 0 ? 1 : mix(recurse(depth - 1) + here[depth % 16] + array[depth]);
}

static uint64_t secret_sum;

static void secret_work(void) {
    for (uint64_t i = 0; i < rounds * 20; i++)
        secret_sum = mix(secret_sum + recurse(200 + i % 7));
}

static APART uint64_t secret(uint64_t *a) {
    enum { BYTES = 1 << 20 };
    static ucontext_t here, there;
    array = a;
    int file = (int)syscall(SYS_memfd_secret, 0);
    void *stack = MAP_FAILED;
    if (file >= 0 && ftruncate(file, BYTES) == 0)
        stack = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (stack == MAP_FAILED) {
        printf("absent\n");
        secret_work();
        return secret_sum;
    }
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = BYTES;
    there.uc_link = &here;
    makecontext(&there, secret_work, 0);
    swapcontext(&here, &there);
    return secret_sum;
}

static APART uint64_t confined(uint64_t *a) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        fail("prctl");
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rounds; i++)
        sum = mix(sum ^ ordinary_work(a, 4096, i));
    return sum;
}

static APART uint64_t clocks(uint64_t *a) {
    uint64_t sum = 0, last = 0;
    for (uint64_t i = 0; i < rounds * 400; i++) {
        uint64_t tick = __builtin_ia32_rdtsc();
        /* It never goes back, so this adds nothing. */
        sum = mix(sum + (tick < last) + a[i % 4096]);
        last = tick;
    }
    return sum;
}

static APART uint64_t times(uint64_t *a) {
    static const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME, CLOCK_MONOTONIC_COARSE};
    enum { CLOCKS = sizeof clocks / sizeof *clocks };
    static uint64_t last[CLOCKS];
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rounds * 100; i++) {
        struct timespec t;
        if (clock_gettime(clocks[i % CLOCKS], &t) != 0)
            fail("clock_gettime");
        uint64_t read = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
        /* Neither goes back nor, but for the real time, leaps by a day, so this adds nothing. */
        uint64_t odd = read < last[i % CLOCKS] || (i >= CLOCKS && read - last[i % CLOCKS] > 86400ull * 1000000000);
        sum = mix(sum + odd + a[i % 4096]);
        last[i % CLOCKS] = read;
    }
    return sum;
}

static void enter_elsewhere(void) {
    const char text[] = "monotonic 1000000 0\nboottime 1000000 0\n";
    FILE *offsets = NULL;
    int space = -1;
    if (unshare(CLONE_NEWTIME) == 0 && (offsets = fopen("/proc/self/timens_offsets", "w")) != NULL &&
        fputs(text, offsets) >= 0 && fclose(offsets) == 0)
        space = open("/proc/self/ns/time_for_children", O_RDONLY);
    if (space < 0 || setns(space, CLONE_NEWTIME) != 0)
        printf("absent\n");
}

int main(int argc, char **argv) {
    rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const char *which = argc > 2 ? argv[2] : "rewrites";
    uint64_t *a = new_array(WORDS), sum = 0;
    for (size_t i = 0; i < WORDS; i++)
        a[i] = i * 7;
    /* Before it is traced, as a container's program would be. */
    if (!strcmp(which, "elsewhere"))
        enter_elsewhere();
    ready();
    if (!strcmp(which, "rewrites"))
        sum = rewrites(a);
    else if (!strcmp(which, "unmaps"))
        sum = unmaps(a);
    else if (!strcmp(which, "pulls"))
        sum = pulls(a);
    else if (!strcmp(which, "narrow"))
        sum = narrow(a);
    else if (!strcmp(which, "rare"))
        sum = rare(a);
    else if (!strcmp(which, "secret"))
        sum = secret(a);
    else if (!strcmp(which, "confined"))
        sum = confined(a);
    else if (!strcmp(which, "times") || !strcmp(which, "elsewhere"))
        sum = times(a);
    else
        sum = clocks(a);
    return finish(sum);
}
