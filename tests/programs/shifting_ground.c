/* What a look at a thread's next instructions must end at or survive. The second argument says which:
 *
 *   rewrites   changes an instruction of a running function all the time
 *   unmaps     another thread maps and unmaps pages next to those that this one reads
 *   secret     its stack is memory that nobody else may read (memfd_secret); "absent" in the output where the kernel has none
 *   confined   seccomp forbids it nearly everything
 *   clocks     reads the processor's clock in each turn
 *
 * The checksum does not depend on when it was interrupted, only on the number of rounds, the first argument (not seconds).
 */
// build: gcc -O1 -g -pthread -o $BIN $SRC
#include "target.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
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

int main(int argc, char **argv) {
    rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const char *which = argc > 2 ? argv[2] : "rewrites";
    uint64_t *a = new_array(WORDS), sum = 0;
    for (size_t i = 0; i < WORDS; i++)
        a[i] = i * 7;
    ready();
    if (!strcmp(which, "rewrites"))
        sum = rewrites(a);
    else if (!strcmp(which, "unmaps"))
        sum = unmaps(a);
    else if (!strcmp(which, "secret"))
        sum = secret(a);
    else if (!strcmp(which, "confined"))
        sum = confined(a);
    else
        sum = clocks(a);
    return finish(sum);
}
