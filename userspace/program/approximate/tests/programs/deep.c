// Loops in loops with switches, function pointers, hash table, string instructions, an array of structs with odd size.
#include "known.h"
#include <string.h>

struct entry { int key, count; struct entry *chain; };
struct odd { char tag; float values[5]; int *link; };
typedef int (*visit)(const int *, int);

static struct entry **table;
static struct odd records[12];
int sink;

static APART int plus(const int *p, int n) {
    int s = 0;
    while (n--)
        s += *p++;
    return s;
}

static APART int times(const int *p, int n) {
    int s = 1;
    for (int i = 0; i < n; i += 2)
        s *= p[i] | 1;
    return s;
}

static APART int apply(visit with, const int *numbers, int n) { return with(numbers, n) + with(numbers + 1, n - 1); }

static APART struct entry *look(int key) {
    for (struct entry *e = table[key % 16]; e; e = e->chain)
        if (e->key == key)
            return e;
    return 0;
}

static APART float odd_sum(struct odd *r, int n) {
    float s = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < 5; j++)
            s += r[i].values[j];
        s += *r[i].link + r[i].tag;
    }
    return s;
}

static APART int states(const unsigned char *text, const int *weights) {
    int s = 0;
    for (int i = 0; i < N; i++)
        switch (text[i] % 7) {
        case 0: s += weights[0]; break;
        case 1: s -= weights[1]; break;
        case 2: s ^= weights[2]; break;
        case 3: s += weights[3] * 2; break;
        case 4: s -= weights[4] * 3; break;
        case 5: s ^= weights[5] << 1; break;
        default: s = s * 2 + weights[6];
        }
    return s;
}

int main(void) {
    int *ones = calloc(N, sizeof *ones), *twos = calloc(N, sizeof *twos), *links = calloc(12, sizeof *links);
    unsigned char *text = calloc(N, 1);
    struct entry *entries = calloc(N, sizeof *entries);
    table = calloc(16, sizeof *table);
    for (int i = 0; i < N; i++) {
        ones[i] = twos[i] = i;
        text[i] = i * 5;
        entries[i] = (struct entry){i, 1, table[i % 16]};
        table[i % 16] = entries + i;
    }
    for (int i = 0; i < 12; i++)
        records[i].link = links + i;
    KNOWN("static", "records", records, sizeof records);
    KNOWN("static", "table", &table, sizeof table);
    KNOWN("pointee", "table", table, 16 * sizeof *table);
    KNOWN("pointee", "table[]", entries, N * sizeof *entries);
    KNOWN("pointee", "ones", ones, N * sizeof *ones);
    KNOWN("pointee", "twos", twos, N * sizeof *twos);
    KNOWN("pointee", "text", text, N);
    KNOWN("pointee", "records[].link", links, 12 * sizeof *links);
    fflush(stdout);
    BEGIN;
    int s = apply(plus, ones, N) + apply(times, twos, N) + states(text, ones);
    for (int key = 0; key < N; key += 3)
        s += look(key)->count;
    sink = s + odd_sum(records, 12);
    END;
    return 0;
}
