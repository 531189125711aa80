/* C: programs whose accesses to each variable are known by construction, and nothing else is accessed in their loops: every access is
 * volatile, counters stay in registers.
 *
 * First argument: which one; second: seconds. Shares of accesses stand at each loop.
 */
// build: gcc -O2 -g -fno-tree-vectorize -fno-unroll-loops -pthread -o $BIN $SRC
#include "target.h"
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N (1 << 16)

typedef volatile long word;

/* globals: .6 hot_table, .3 warm_table, .1 cold_table */
static word hot_table[N], warm_table[N], cold_table[N];

static APART void globals(void) {
    for (size_t i = 0; i < N; i++) {
        hot_table[i];
        hot_table[(i + 1) & (N - 1)];
        warm_table[i];
        hot_table[(i + 64) & (N - 1)];
        hot_table[(i + 65) & (N - 1)];
        cold_table[i] = (long)i;
        hot_table[(i + 128) & (N - 1)];
        hot_table[(i + 129) & (N - 1)];
        warm_table[(i + 64) & (N - 1)];
        warm_table[(i + 128) & (N - 1)];
    }
}

/* sizes: .57 large_table, .29 middle_table, .14 small_table, of accesses and, in caches below 14 MiB, of misses */
static word large_table[N << 4], middle_table[N << 3], small_table[N << 2];

static APART void sizes(void) {
    for (size_t i = 0; i < N << 4; i++)
        large_table[i];
    for (size_t i = 0; i < N << 3; i++)
        middle_table[i];
    for (size_t i = 0; i < N << 2; i++)
        small_table[i] = (long)i;
}

/* nested: all in world; .5 bodies[].pos.x, .25 bodies[].vel.y, .25 bodies[].id */
struct vec {
    double x, y, z;
};
struct body {
    struct vec pos, vel;
    char name[40];
    int id;
};
static struct {
    long steps;
    volatile struct body bodies[1 << 14];
} world;

static APART void nested(void) {
    for (size_t i = 0; i < 1 << 14; i++) {
        world.bodies[i].pos.x;
        world.bodies[i].pos.x = 1;
        world.bodies[i].vel.y;
        world.bodies[i].id = (int)i;
    }
}

/* list: .5 next, .5 payload of nodes that each have their own block and were allocated before anybody traced */
struct node {
    struct node *volatile next;
    volatile long payload;
    char unused[48];
};
static struct node *list_head;

static APART void make_list(void) {
    for (int i = 0; i < 1 << 15; i++) {
        struct node *one = malloc(sizeof *one);
        one->next = list_head;
        list_head = one;
    }
}

static APART void list(void) {
    struct node *one = list_head;
    while (one) {
        one->payload;
        one = one->next;
    }
}

/* hash: .25 slots, .75 what they point at: .25 each of key, value, hits */
struct entry {
    volatile long key, value, hits;
};
static struct entry *volatile slots[1 << 14];

static APART void make_hash(void) {
    for (size_t i = 0; i < 1 << 14; i++)
        slots[i] = calloc(1, sizeof(struct entry));
}

static APART void hash(void) {
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 1 << 16; i++) {
        x = mix(x);
        struct entry *one = slots[x & ((1 << 14) - 1)];
        one->key;
        one->value;
        one->hits = 1;
    }
}

/* hidden: blocks that only integers lead to: .2 hidden_slots, .4 nodes (half payload, half next), .4 entries (half key, half value) */
static volatile uintptr_t hidden_list, hidden_slots[1 << 12];

static APART void make_hidden(void) {
    for (size_t i = 0; i < 1 << 12; i++) {
        struct node *one = malloc(sizeof *one);
        one->next = (struct node *)hidden_list;
        hidden_list = (uintptr_t)one;
        hidden_slots[i] = (uintptr_t)calloc(1, sizeof(struct entry));
    }
}

static APART void hidden(void) {
    size_t i = 0;
    for (struct node *one = (struct node *)hidden_list; one; one = one->next) {
        struct entry *found = (struct entry *)hidden_slots[i++];
        one->payload;
        found->key;
        found->value;
    }
}

/* heap: three arrays of one function: .5 alpha, .3 beta, .2 gamma_block */
static word *alpha, *beta, *gamma_block;

/* After a while, for probes reach the C library of a program that was just launched only some milliseconds after it is mapped. */
static APART void make_heap(void) {
    usleep(300000);
    alpha = malloc(N * sizeof *alpha);
    beta = malloc(N * sizeof *beta);
    gamma_block = malloc(N * sizeof *gamma_block);
}

static APART void heap(void) {
    word *a = alpha, *b = beta, *c = gamma_block;
    for (size_t i = 0; i < N; i++) {
        a[i];
        a[(i + 100) & (N - 1)];
        b[i];
        c[i] = 3;
        a[(i + 200) & (N - 1)];
        b[(i + 100) & (N - 1)];
        a[(i + 300) & (N - 1)] = 1;
        c[(i + 100) & (N - 1)];
        b[(i + 200) & (N - 1)] = 2;
        a[(i + 400) & (N - 1)];
    }
}

/* aliases: of seven accesses four to field (by its name, two parameters, a pointer), one to other_field, two to the call's return address */
static word field[N], other_field[N];
static struct {
    word *cells;
} volatile grid;

static APART void by_parameters(word *from, word *to, size_t i) {
    from[i];
    to[(i + 64) & (N - 1)] = 1;
}

static APART void aliases(void) {
    grid.cells = field;
    word *cells = grid.cells;
    for (size_t i = 0; i < N; i++) {
        by_parameters(field, field, i);
        cells[(i + 128) & (N - 1)];
        field[(i + 192) & (N - 1)];
        other_field[i];
    }
}

/* nodes: a list whose nodes are allocated slowly, for .6 s, so that each allocation can be followed at little cost */
static APART struct node *make_node(void) {
    struct node *one = malloc(sizeof *one);
    one->payload = 1;
    return one;
}

static APART void make_nodes(void) {
    usleep(300000);
    for (int i = 0; i < 2048; i++) {
        struct node *one = make_node();
        one->next = list_head;
        list_head = one;
        for (double end = now() + 0.0003; now() < end;) {
        }
    }
}

/* taken: blocks of make_short stand for some milliseconds, then one of make_long takes their place for far longer, and `kept` holds it;
 * half of the accesses each */
#define SHORT (1 << 13)
static word *volatile kept;

static APART word *make_short(void) {
    word *block = malloc(SHORT * sizeof *block);
    block[0] = 1;
    return block;
}

static APART word *make_long(void) {
    word *block = malloc(SHORT * sizeof *block);
    block[0] = 2;
    return block;
}

static APART void sweep(word *block, double seconds) {
    double end = now() + seconds;
    while (now() < end)
        for (size_t i = 0; i < SHORT; i++)
            block[i];
}

static APART void taken(void) {
    word *block = make_short();
    uintptr_t place = (uintptr_t)block;
    sweep(block, 0.05);
    free((void *)block);
    kept = make_long();
    if ((uintptr_t)kept != place)
        fail("another place");
    usleep(200000);
    sweep(kept, 0.05);
    free((void *)kept);
    kept = NULL;
}

/* forked: the same as heap by a child, which has its parent's blocks; the parent waits */
static APART int goes_on_in_a_child(void) {
    pid_t child = fork();
    if (child > 0)
        waitpid(child, NULL, 0);
    return child == 0;
}

/* stack: .75 ring, .25 sums: arrays of this function's frame; mixed: all of nested, stack and heap in turn */
static APART void stack(void) {
    word ring[512], sums[64];
    for (size_t i = 0; i < 1 << 16; i++) {
        ring[i & 511] = 1;
        ring[(i + 1) & 511];
        sums[i & 63] = 2;
        ring[(i + 2) & 511];
    }
}

static APART void mixed(void) {
    for (int i = 0; i < 8; i++)
        nested();
    stack();
    stack();
    heap();
}

/* local: .5 of each thread's accesses to its own table, .5 to the one that both have; with threads .5 shared_table in all */
static word shared_table[N], first_table[N], second_table[N];
static __thread word own_counts[1024];

static APART void work_on(word *own) {
    for (size_t i = 0; i < N; i++) {
        own[i];
        shared_table[i];
        own_counts[i & 1023] = 1;
        shared_table[(i + 64) & (N - 1)];
    }
}

static void *second(void *none) {
    while (more())
        work_on(second_table);
    return none;
}

/* mapped FILE: as much each in the file, in small blocks that a thread of its own allocated, and on that thread's stack; the thread
 * works on a table before, and now and then afterwards */
static word *mapped_file, *far_stack;
static word pool_table[N];
static struct node *pool_list;
static volatile int pool_stands;

static APART void work_on_pool_table(void) {
    for (size_t i = 0; i < N; i++)
        pool_table[i];
}

static void *pool(void *none) {
    word own[4096];
    for (size_t i = 0; i < 4096; i++)
        own[i] = 1;
    for (int i = 0; i < 1 << 12; i++) {
        struct node *one = malloc(sizeof *one);
        one->next = pool_list;
        pool_list = one;
    }
    /* Long enough for this thread to be sampled, by which its stack is known. */
    for (double end = now() + 1; now() < end;)
        work_on_pool_table();
    far_stack = own;
    pool_stands = 1;
    while (more()) {
        work_on_pool_table();
        usleep(1000);
    }
    return none;
}

static APART void make_mapped(const char *path) {
    usleep(300000);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 1 << 20))
        fail(path);
    mapped_file = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pthread_t thread;
    if (mapped_file == MAP_FAILED || pthread_create(&thread, NULL, pool, NULL))
        fail("mmap");
    while (!pool_stands)
        usleep(1000);
}

static APART void mapped(void) {
    struct node *one = pool_list;
    word *file = mapped_file, *stack = far_stack;
    for (size_t i = 0; one; i++) {
        file[i & 0x1ffff];
        stack[i & 4095];
        one = one->next;
    }
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "globals";
    start(argc - 1, argv + 1);
    void (*run)(void) = NULL;
    if (!strcmp(which, "globals"))
        run = globals;
    else if (!strcmp(which, "sizes"))
        run = sizes;
    else if (!strcmp(which, "nested"))
        run = nested;
    else if (!strcmp(which, "stack"))
        run = stack;
    else if (!strcmp(which, "aliases"))
        run = aliases;
    else if (!strcmp(which, "list"))
        make_list(), run = list;
    else if (!strcmp(which, "hash"))
        make_hash(), run = hash;
    else if (!strcmp(which, "hidden"))
        make_hidden(), run = hidden;
    else if (!strcmp(which, "heap"))
        make_heap(), run = heap;
    else if (!strcmp(which, "nodes"))
        make_nodes(), run = list;
    else if (!strcmp(which, "taken"))
        usleep(300000), run = taken;
    else if (!strcmp(which, "forked")) {
        make_heap();
        if (!goes_on_in_a_child())
            return 0;
        run = heap;
    } else if (!strcmp(which, "mixed"))
        make_heap(), run = mixed;
    else if (!strcmp(which, "mapped"))
        make_mapped(argv[3]), run = mapped;
    ready();
    if (!strcmp(which, "threads")) {
        pthread_t other;
        if (pthread_create(&other, NULL, second, NULL))
            fail("pthread_create");
        while (more())
            work_on(first_table);
        pthread_join(other, NULL);
        return finish(0);
    }
    if (!run)
        return 2;
    while (more())
        for (int i = 0; i < 8; i++)
            run();
    return finish(0);
}
