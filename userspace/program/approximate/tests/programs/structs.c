// Members that are pointers, arrays of structs, a list, a tree, a table of lists.
#include "known.h"

struct cell { double v, w; struct cell *next; };
struct grid { int n; double *values; struct cell *cells; struct { int *marks; } inner; };
struct tree { struct tree *left, *right; long key; };
struct pair { int *first; long size; double *second; };

static struct grid world;
static struct cell *buckets[8];
double sink;

static APART double over(const struct grid *grid) {
    double s = 0;
    for (int i = 0; i < grid->n; i++) {
        s += grid->values[i];
        s += grid->cells[i].w;
        s += grid->inner.marks[i];
    }
    return s;
}

static APART double list_sum(const struct cell *head) {
    double s = 0;
    for (const struct cell *c = head; c; c = c->next)
        s += c->v;
    return s;
}

static APART long find(const struct tree *root, long key) {
    const struct tree *at = root;
    while (at && at->key != key)
        at = key < at->key ? at->left : at->right;
    return at ? at->key : -1;
}

static APART double table_sum(void) {
    double s = 0;
    for (int b = 0; b < 8; b++)
        for (struct cell *c = buckets[b]; c; c = c->next)
            s += c->w;
    return s;
}

static APART double pairs(struct pair *all, int n) {
    double s = 0;
    for (int p = 0; p < n; p++)
        for (long i = 0; i < all[p].size; i++)
            s += all[p].first[i] * all[p].second[i];
    return s;
}

int main(void) {
    struct cell *head = malloc(N * sizeof *head);
    struct tree *root = malloc(15 * sizeof *root);
    struct pair *all = malloc(4 * sizeof *all);
    struct cell *pool = malloc(16 * sizeof *pool);
    world.n = N;
    world.values = calloc(N, sizeof(double));
    world.cells = calloc(N, sizeof(struct cell));
    world.inner.marks = calloc(N, sizeof(int));
    for (int i = 0; i < N; i++) {
        head[i].v = i;
        head[i].next = i + 1 < N ? head + i + 1 : 0;
    }
    for (int i = 0; i < 15; i++) {
        root[i].left = 2 * i + 1 < 15 ? root + 2 * i + 1 : 0;
        root[i].right = 2 * i + 2 < 15 ? root + 2 * i + 2 : 0;
    }
    static const long keys[15] = {70, 30, 110, 10, 50, 90, 130, 0, 20, 40, 60, 80, 100, 120, 140};
    for (int i = 0; i < 15; i++)
        root[i].key = keys[i];
    for (int i = 0; i < 16; i++) {
        pool[i].w = i;
        pool[i].next = buckets[i % 8];
        buckets[i % 8] = pool + i;
    }
    for (int i = 0; i < 4; i++)
        all[i] = (struct pair){calloc(10, sizeof(int)), 10, calloc(10, sizeof(double))};
    KNOWN("static", "world", &world, sizeof world);
    KNOWN("static", "buckets", buckets, sizeof buckets);
    KNOWN("pointee", "world.values", world.values, N * sizeof(double));
    KNOWN("pointee", "world.cells", world.cells, N * sizeof(struct cell));
    KNOWN("pointee", "world.inner.marks", world.inner.marks, N * sizeof(int));
    KNOWN("pointee", "head", head, N * sizeof *head);
    KNOWN("pointee", "root", root, 15 * sizeof *root);
    KNOWN("pointee", "buckets[]", pool, 16 * sizeof *pool);
    KNOWN("pointee", "all", all, 4 * sizeof *all);
    for (int i = 0; i < 4; i++) {
        KNOWN("pointee", "all->first", all[i].first, 10 * sizeof(int));
        KNOWN("pointee", "all->second", all[i].second, 10 * sizeof(double));
    }
    fflush(stdout);
    BEGIN;
    sink = over(&world) + list_sum(head) + table_sum() + pairs(all, 4);
    for (long key = 0; key < 150; key += 10)
        sink += find(root, key);
    END;
    return 0;
}
