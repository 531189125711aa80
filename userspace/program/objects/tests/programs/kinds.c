// Every kind of data object of C; prints where each lies, then waits. Lines: KIND ADDRESS NAME|FIELD|TYPE, "-" for none.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TELL(kind, address, name, field, type) \
    printf("%s %p %s|%s|%s\n", kind, (void *)(address), name, field, type)

struct pos { double x, y; };
struct cell { char tag; double vx; struct pos at; short count; int v[4]; };
typedef struct { int a; char b; long c; } anonymous_t;
union both { long whole; struct { int low, high; } halves; char bytes[8]; };
struct bits { unsigned first : 3, second : 5; unsigned third : 9; int after; };
struct node { struct node *next; int value; };
struct tail { int length; char data[]; };
struct hidden; // defined in kinds_hidden.c
extern struct hidden hidden_object;
void *hidden_field(void);

int counter = 1;                     // AT counter
static double table[100] = {1};      // AT table
struct cell cells[50];               // AT cells
struct cell grid[3][4];
const int constants[4] = {1, 2, 3, 4};
anonymous_t anonymous;
union both mixed;
struct bits flags;
struct node *list;
struct cell *heap_cells;
struct hidden *opaque;
long big[1 << 18];                   // in .bss, over a megabyte behind the file's last page
__thread int per_thread = 3;         // AT per_thread
static __thread struct cell thread_cells[4];

static int *tick(void) {
    static int ticks = 5;            // AT ticks
    ticks++;
    return &ticks;
}

__attribute__((noinline)) static void wait_here(void) {
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}

__attribute__((noinline)) static int inner(struct cell *given, int depth) {
    volatile long local = 7;         // AT local
    struct cell own[3];              // AT own
    memset(own, depth, sizeof own);
    TELL("stack", &local, "local", "", "long int");
    TELL("stack", &own[1].at.y, "own", "[].at.y", "cell [3]");
    TELL("stack", &given->count, "outer_cell", ".count", "cell");
    {
        volatile int block[5] = {depth};
        TELL("stack", &block[3], "block", "[]", "int [5]");
        long variable[depth + 20];
        variable[depth] = depth;
        TELL("stack", &variable[15], "variable", "[]", "long int []");
        wait_here();
    }
    return own[depth].tag + (int)local;
}

int main(int argc, char **argv) {
    struct cell outer_cell = {.vx = argc}; // AT outer_cell
    (void)argv;
    TELL("static", &counter, "counter", "", "int");
    TELL("static", &table[17], "table", "[]", "double [100]");
    TELL("static", &cells[7].vx, "cells", "[].vx", "cell [50]");
    TELL("static", &cells[8].at.y, "cells", "[].at.y", "cell [50]");
    TELL("static", &cells[9].v[2], "cells", "[].v[]", "cell [50]");
    TELL("static", &cells[3].tag + 3, "cells", "[].<padding>", "cell [50]");
    TELL("static", &grid[2][1].count, "grid", "[][].count", "cell [3][4]");
    TELL("static", &constants[2], "constants", "[]", "int [4]");
    TELL("static", &anonymous.c, "anonymous", ".c", "anonymous_t");
    TELL("static", &mixed.bytes[5], "mixed", ".(whole|halves|bytes)", "both");
    TELL("static", (char *)&flags, "flags", ".(first|second)", "bits");
    TELL("static", (char *)&flags + 1, "flags", ".third", "bits");
    TELL("static", &flags.after, "flags", ".after", "bits");
    TELL("static", &big[200000], "big", "[]", "long int [262144]");
    TELL("static", tick(), "ticks", "", "int");
    TELL("static", hidden_field(), "hidden_object", ".second", "hidden");
    TELL("thread-local", &per_thread, "per_thread", "", "int");
    TELL("thread-local", &thread_cells[2].vx, "thread_cells", "[].vx", "cell [4]");
    TELL("static", &stdout, "stdout", "-", "-");

    heap_cells = calloc(1000, sizeof *heap_cells);
    list = malloc(sizeof *list);
    list->next = malloc(sizeof *list);
    list->next->next = NULL;
    opaque = &hidden_object;
    TELL("heap", &heap_cells[77].at.x, "heap_cells", "[].at.x", "cell");
    TELL("heap", &list->value, "list", ".value", "node");
    TELL("heap", &list->next->value, "list->next", ".value", "node");
    struct cell *on_stack = malloc(20 * sizeof *on_stack);
    TELL("heap", &on_stack[4].vx, "on_stack", "[].vx", "cell");

    // Nothing points to it any more.
    size_t forgotten = (size_t)malloc(1000);
    TELL("heap", forgotten + 8, "[malloc blocks of 1000 bytes]", "-", "-");

    int file = open("/proc/self/exe", O_RDONLY);
    char *as_file = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, file, 0);
    TELL("file", as_file + 5000, "EXE", "-", "-");
    char *nameless = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    nameless[70] = 1;
    TELL("mapped", nameless + 70, "nameless", "[]", "char");
    size_t no_pointer = (size_t)mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TELL("mapped", no_pointer + 4096, "/dev/zero", "-", "-");
    no_pointer = (size_t)mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TELL("mapped", no_pointer + 4096, "[anonymous memory]", "-", "-");
    int shared = memfd_create("shared words", 0);
    if (ftruncate(shared, 4096) != 0) return 1;
    char *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
    words[9] = 1;
    TELL("mapped", words + 9, "/memfd:shared words", "-", "-");
    return inner(&outer_cell, argc);
}
