/* Runs one generated function, run_now, that its perf map names in the way of the second argument:
 *   larger     behind sixteen functions that were at the same addresses before, it being larger than these
 *   smaller    behind one large function that was there before and reaches beyond it on both sides
 *   later      the function that was there before ran, too; the map is appended to after a second
 *   older      in a file that was last written an hour ago
 *   foreign    in a file of another user (65534)
 *   link       through a symbolic link
 *   fifo       at the place of the map lies a FIFO
 *   huge       behind so large a hole that the file is not read
 * The map is removed at the end.
 */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

/* uint64_t run_now(uint64_t *a, size_t words): adds up running sums of the words. */
static const unsigned char code[] = {
    0x31, 0xc9,             /* xor %ecx,%ecx */
    0x48, 0x03, 0x04, 0xcf, /* add (%rdi,%rcx,8),%rax */
    0x48, 0x89, 0x04, 0xcf, /* mov %rax,(%rdi,%rcx,8) */
    0x48, 0xff, 0xc1,       /* inc %rcx */
    0x48, 0x39, 0xf1,       /* cmp %rsi,%rcx */
    0x75, 0xf0,             /* jne to the add */
    0xc3,                   /* ret */
};

int main(int argc, char **argv) {
    start(argc, argv);
    const char *mode = argc > 2 ? argv[2] : "larger";
    unsigned char *page = (unsigned char *)mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        fail("mmap");
    unsigned long at = (unsigned long)page;
    memset(page, 0x90, 128);
    memcpy(page + 80, code, sizeof code);
    char map[64], real[80];
    snprintf(map, sizeof map, "/tmp/perf-%d.map", (int)getpid());
    snprintf(real, sizeof real, "/tmp/perf_map_of_%d", (int)getpid());
    if (!strcmp(mode, "link") && symlink(real, map) != 0)
        fail(map);
    if (!strcmp(mode, "fifo") && mkfifo(map, 0600) != 0)
        fail(map);
    FILE *f = strcmp(mode, "fifo") ? fopen(map, "w") : NULL;
    if (f) {
        if (!strcmp(mode, "huge")) {
            if (ftruncate(fileno(f), (off_t)1 << 40) != 0)
                fail("ftruncate");
            fseek(f, 0, SEEK_END);
        }
        if (!strcmp(mode, "larger"))
            for (unsigned long i = 0; i < 16; i++)
                fprintf(f, "%lx 10 ran_before_%lu\n", at + 64 + i * 16, i);
        else if (!strcmp(mode, "smaller") || !strcmp(mode, "later"))
            fprintf(f, "%lx 1000 ran_before\n", at);
        if (!strcmp(mode, "smaller"))
            fprintf(f, "%lx %zx run_now\n", at + 80, sizeof code);
        else if (strcmp(mode, "later"))
            fprintf(f, "%lx 400 run_now\n", at);
        fflush(f);
        if (!strcmp(mode, "foreign") && fchown(fileno(f), 65534, 65534) != 0)
            fail("fchown");
        struct timeval hour_ago[2] = {{time(NULL) - 3600, 0}, {time(NULL) - 3600, 0}};
        if (!strcmp(mode, "older") && futimes(fileno(f), hour_ago) != 0)
            fail("futimes");
    }
    uint64_t (*run)(uint64_t *, size_t) = (uint64_t(*)(uint64_t *, size_t))(page + (strcmp(mode, "smaller") ? 0 : 80));
    uint64_t *a = new_array(4096), sum = 0;
    ready();
    double change = now() + 1;
    while (more()) {
        for (int i = 0; i < 1000; i++)
            sum ^= run(a, 4096);
        if (f && !strcmp(mode, "later") && now() > change) {
            change += 1e9;
            fprintf(f, "%lx 400 run_now\n", at);
            fflush(f);
        }
    }
    unlink(map);
    unlink(real);
    return finish(sum);
}
