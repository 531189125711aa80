/* Addresses that come from data: loads that could begin earlier, walks that could go side by side, pages. */
// build: gcc -O2 -g -pthread -o $BIN $SRC
#include "advice.h"

static size_t count;

/* What is measured is not the pages' size: the tables of these kernels lie in huge pages from the start. */
static void *in_huge_pages(size_t bytes) { return filled_aligned(((bytes - 1) >> 21 << 21) + (2 << 20), MADV_HUGEPAGE); }

/* Sales whose article is looked up by number; what is done depends on the article. */
enum { ARTICLES = 8 << 20, SALES = 1 << 18 };

struct article {
    int32_t kind, price;
    int32_t stock, sold;
    int64_t filler[4];
};

static struct article *articles;
static uint32_t *sales;

static void take_sales(void) {
    count = SALES;
    articles = in_huge_pages(ARTICLES * sizeof *articles);
    for (size_t i = 0; i < ARTICLES; i++)
        articles[i].kind = (int32_t)below(4), articles[i].price = (int32_t)below(100);
    sales = filled((SALES + 64) * sizeof *sales);
    for (size_t i = 0; i < SALES; i++)
        sales[i] = (uint32_t)below(ARTICLES);
}

static int64_t tax_of(const struct article *article) {
    int64_t price = article->price;
    if (article->kind == 0)
        return price * 7 / 100 + 3;
    if (article->kind == 1)
        return price * price % 19;
    return article->kind == 2 ? price / 3 : 0;
}

static uint64_t taxes_of_sales(void) {
    int64_t sum = 0;
    /* flaw: sales */
    for (size_t i = 0; i < count; i++)
        sum += tax_of(&articles[sales[i]]);
    return (uint64_t)sum;
}

static uint64_t taxes_with_prefetch(void) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        __builtin_prefetch(&articles[sales[i + 16]]);
        sum += tax_of(&articles[sales[i]]);
    }
    return (uint64_t)sum;
}

/* A table with open addressing: most keys are in their first place, a fourth is not there. */
enum { SLOTS_LOG = 25, KEYS = 1 << 18 };

static uint64_t *slots, *keys;

static size_t slot_of(uint64_t key) { return key * 0x9e3779b97f4a7c15u >> (64 - SLOTS_LOG); }

static void take_slots(void) {
    size_t size = (size_t)1 << SLOTS_LOG;
    count = KEYS;
    slots = in_huge_pages(size * sizeof *slots);
    keys = filled((KEYS + 64) * sizeof *keys);
    for (size_t i = 0; i < size / 2; i++) {
        uint64_t key = draw() | 1;
        size_t slot = slot_of(key);
        while (slots[slot])
            slot = (slot + 1) % size;
        slots[slot] = key;
        if (i < KEYS)
            keys[i] = i % 4 ? key : draw() | 1;
    }
}

static uint64_t look_up_keys(void) {
    uint64_t found = 0;
    size_t mask = ((size_t)1 << SLOTS_LOG) - 1;
    /* flaw: open_addressing */
    for (size_t i = 0; i < count; i++) {
        size_t slot = slot_of(keys[i]);
        while (slots[slot] && slots[slot] != keys[i])
            slot = (slot + 1) & mask;
        if (slots[slot])
            found += slot & 7;
    }
    return found;
}

static uint64_t look_up_with_prefetch(void) {
    uint64_t found = 0;
    size_t mask = ((size_t)1 << SLOTS_LOG) - 1;
    for (size_t i = 0; i < count; i++) {
        __builtin_prefetch(&slots[slot_of(keys[i + 16])]);
        size_t slot = slot_of(keys[i]);
        while (slots[slot] && slots[slot] != keys[i])
            slot = (slot + 1) & mask;
        if (slots[slot])
            found += slot & 7;
    }
    return found;
}

/* Binary searches in a sorted array, one after the other. */
enum { SORTED = 32 << 20, QUESTIONS = 1 << 14, GROUP = 16 };

static uint32_t *sorted, *questions;

static void take_sorted(void) {
    count = QUESTIONS;
    sorted = in_huge_pages((size_t)SORTED * sizeof *sorted);
    for (size_t i = 0; i < SORTED; i++)
        sorted[i] = (uint32_t)(i * 97);
    questions = filled(QUESTIONS * sizeof *questions);
    for (size_t i = 0; i < QUESTIONS; i++)
        questions[i] = (uint32_t)below((uint64_t)SORTED * 97);
}

static uint64_t search_one_by_one(void) {
    uint64_t sum = 0;
    /* flaw: binary_search */
    for (size_t i = 0; i < count; i++) {
        const uint32_t *base = sorted;
        for (size_t half = SORTED / 2; half > 0; half /= 2)
            if (base[half] <= questions[i])
                base += half;
        sum += (uint64_t)(base - sorted);
    }
    return sum;
}

static uint64_t search_in_groups(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i += GROUP) {
        const uint32_t *base[GROUP];
        for (size_t g = 0; g < GROUP; g++)
            base[g] = sorted;
        for (size_t half = SORTED / 2; half > 0; half /= 2)
            for (size_t g = 0; g < GROUP; g++) {
                base[g] += base[g][half] <= questions[i + g] ? half : 0;
                __builtin_prefetch(&base[g][half / 2]);
            }
        for (size_t g = 0; g < GROUP; g++)
            sum += (uint64_t)(base[g] - sorted);
    }
    return sum;
}

/* Many lists, each of them walked to its end before the next one. */
enum { LISTS = 512, LENGTH = 500 };

struct node {
    struct node *next;
    int64_t value, filler[6];
};

static struct node *lists[LISTS];

static void take_lists(void) {
    count = LISTS;
    enum { NODES = LISTS * LENGTH };
    static uint32_t order[NODES];
    shuffle(order, NODES);
    struct node *pool = in_huge_pages(NODES * 5 * sizeof *pool);
    for (size_t i = 0; i < NODES; i++) {
        struct node *node = &pool[order[i] * 5u];
        node->value = (int64_t)i % 9;
        node->next = lists[i % LISTS];
        lists[i % LISTS] = node;
    }
}

static uint64_t sum_list_by_list(void) {
    int64_t sum = 0;
    /* flaw: lists */
    for (size_t i = 0; i < count; i++)
        for (const struct node *node = lists[i]; node; node = node->next)
            sum += node->value;
    return (uint64_t)sum;
}

static uint64_t sum_side_by_side(void) {
    enum { SIDE = 8 };
    int64_t sum = 0;
    for (size_t i = 0; i < count; i += SIDE) {
        const struct node *node[SIDE];
        memcpy(node, &lists[i], sizeof node);
        for (int step = 0; step < LENGTH; step++)
            for (int s = 0; s < SIDE; s++) {
                sum += node[s]->value;
                node[s] = node[s]->next;
            }
    }
    return (uint64_t)sum;
}

/* Words of a large table in random order, each step independent of the one before. */
enum { WORDS_LOG = 26, STEPS = 1 << 20 };

/* flaw: random_updates */
static uint64_t *words;

static void take_words_small(void) { words = filled_aligned(sizeof *words << WORDS_LOG, 0); }

static void take_words_huge(void) { words = filled_aligned(sizeof *words << WORDS_LOG, MADV_HUGEPAGE); }

static uint64_t update_words(void) {
    uint64_t number = 1, sum = 0;
    /* flaw: random_updates */
    for (int i = 0; i < STEPS; i++) {
        number = number * 6364136223846793005u + 1442695040888963407u;
        words[number >> (64 - WORDS_LOG)] += number & 3;
        sum += number & 3;
    }
    return sum;
}

/* A permutation of a large table, step by step. */
enum { RING = 48 << 20, HOPS = 1 << 16 };

/* flaw: permutation */
static uint64_t *ring;

/* Successors by a linear congruence: far apart, and no two of them the same. */
static void link_ring(void) {
    for (uint64_t i = 0; i < RING; i++)
        ring[i] = (i * 5 + 13) % RING;
}

static void take_ring_small(void) {
    ring = filled_aligned(RING * sizeof *ring, 0);
    link_ring();
}

static void take_ring_huge(void) {
    ring = filled_aligned(RING * sizeof *ring, MADV_HUGEPAGE);
    link_ring();
}

static uint64_t follow_ring(void) {
    static uint64_t place;
    /* flaw: permutation */
    for (int i = 0; i < HOPS; i++)
        place = ring[place];
    return place;
}

KERNELS({"sales", {{"flawed", take_sales, taxes_of_sales}, {"mended", take_sales, taxes_with_prefetch}}, 1},
        {"open_addressing", {{"flawed", take_slots, look_up_keys}, {"mended", take_slots, look_up_with_prefetch}}, 1},
        {"binary_search", {{"flawed", take_sorted, search_one_by_one}, {"mended", take_sorted, search_in_groups}}, 1},
        {"lists", {{"flawed", take_lists, sum_list_by_list}, {"mended", take_lists, sum_side_by_side}}, 1},
        {"random_updates", {{"flawed", take_words_small, update_words}, {"mended", take_words_huge, update_words}}, 1},
        {"permutation", {{"flawed", take_ring_small, follow_ring}, {"mended", take_ring_huge, follow_ring}}, 1})
