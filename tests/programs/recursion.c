/* A recursive walk over a tree that writes each node on the way down and reads it on the way up. The distance between
 * the two depends on the node's height: nothing at a leaf, the whole walk at the root. */
// build: gcc -O1 -g -o $BIN $SRC
#include "target.h"

#define DEPTH 13
#define PAYLOAD 62

struct node {
    struct node *child[2];
    uint64_t data[PAYLOAD];
};

#define NODES (((size_t)1 << DEPTH) - 1)

static APART uint64_t walk(struct node *node, uint64_t x) {
    for (int i = 0; i < PAYLOAD; i++) {
        x = mix(x);
        node->data[i] = x; /* USE:down_up */
    }
    for (int i = 0; i < 2; i++)
        if (node->child[i])
            x += walk(node->child[i], x);
    for (int i = 0; i < PAYLOAD; i++)
        x = mix(x + node->data[i]); /* REUSE:down_up */
    return x;
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *pool = new_array(NODES * sizeof(struct node) / sizeof(uint64_t)), sum = 0;
    struct node *nodes = (struct node *)pool;
    for (size_t i = 0; 2 * i + 2 < NODES; i++) {
        nodes[i].child[0] = &nodes[2 * i + 1];
        nodes[i].child[1] = &nodes[2 * i + 2];
    }
    ready();
    for (uint64_t round = 0; more(); round++) {
        sum ^= walk(nodes, round + 1);
        sum ^= touch_elsewhere(pool, NODES * sizeof(struct node) / sizeof(uint64_t), round);
    }
    return finish(sum);
}
