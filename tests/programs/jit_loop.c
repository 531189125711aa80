/* Like a JIT: writes machine code at run time and runs it. The code has no file and no lines; with the second argument
 * "map" its functions are named in /tmp/perf-PID.map, which is removed at the end.
 *
 * USE:generated=jit_write
 * REUSE:generated=jit_read
 */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <string.h>

/* void jit_write(uint64_t *a, size_t words, uint64_t x): what produce() of library_pair.c does. */
static const unsigned char code_write[] = {
    0x48, 0x89, 0xd0,       /* mov %rdx,%rax */
    0x48, 0xc1, 0xe0, 0x0d, /* shl $13,%rax */
    0x48, 0x31, 0xc2,       /* xor %rax,%rdx */
    0x48, 0x89, 0xd0,       /* mov %rdx,%rax */
    0x48, 0xc1, 0xe8, 0x07, /* shr $7,%rax */
    0x48, 0x31, 0xc2,       /* xor %rax,%rdx */
    0x48, 0x89, 0xd0,       /* mov %rdx,%rax */
    0x48, 0xc1, 0xe0, 0x11, /* shl $17,%rax */
    0x48, 0x31, 0xc2,       /* xor %rax,%rdx */
    0x48, 0x89, 0x17,       /* mov %rdx,(%rdi) */
    0x48, 0x83, 0xc7, 0x08, /* add $8,%rdi */
    0x48, 0xff, 0xce,       /* dec %rsi */
    0x75, 0xd6,             /* jne to the start */
    0xc3,                   /* ret */
};

/* uint64_t jit_read(const uint64_t *a, size_t words): a sum of the words, each mixed. */
static const unsigned char code_read[] = {
    0x31, 0xc0,             /* xor %eax,%eax */
    0x48, 0x8b, 0x0f,       /* mov (%rdi),%rcx */
    0x48, 0x89, 0xca,       /* mov %rcx,%rdx */
    0x48, 0xc1, 0xe2, 0x0d, /* shl $13,%rdx */
    0x48, 0x31, 0xd1,       /* xor %rdx,%rcx */
    0x48, 0x89, 0xca,       /* mov %rcx,%rdx */
    0x48, 0xc1, 0xea, 0x07, /* shr $7,%rdx */
    0x48, 0x31, 0xd1,       /* xor %rdx,%rcx */
    0x48, 0x01, 0xc8,       /* add %rcx,%rax */
    0x48, 0x83, 0xc7, 0x08, /* add $8,%rdi */
    0x48, 0xff, 0xce,       /* dec %rsi */
    0x75, 0xdd,             /* jne to the mov */
    0xc3,                   /* ret */
};

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(WORDS), sum = 0;
    unsigned char *page = (unsigned char *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        fail("mmap");
    memcpy(page, code_write, sizeof code_write);
    memcpy(page + 256, code_read, sizeof code_read);
    if (mprotect(page, 4096, PROT_READ | PROT_EXEC) != 0)
        fail("mprotect");
    void (*jit_write)(uint64_t *, size_t, uint64_t) = (void (*)(uint64_t *, size_t, uint64_t))page;
    uint64_t (*jit_read)(const uint64_t *, size_t) = (uint64_t (*)(const uint64_t *, size_t))(page + 256);
    char map[64] = "";
    if (argc > 2 && strcmp(argv[2], "map") == 0) {
        snprintf(map, sizeof map, "/tmp/perf-%d.map", (int)getpid());
        FILE *f = fopen(map, "w");
        if (!f)
            fail(map);
        fprintf(f, "%lx %zx jit_write\n", (unsigned long)page, sizeof code_write);
        fprintf(f, "%lx %zx jit_read\n", (unsigned long)page + 256, sizeof code_read);
        fclose(f);
    }
    ready();
    for (uint64_t round = 0; more(); round++) {
        jit_write(a, WORDS, round + 1);
        sum ^= jit_read(a, WORDS);
        sum ^= touch_elsewhere(a, WORDS, round);
    }
    if (*map)
        unlink(map);
    return finish(sum);
}
