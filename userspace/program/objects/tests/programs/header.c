// A block with a mapping of its own, to which a variable leads beyond a header of 24 bytes. Lines as in kinds.c:
// the first access and one to the header.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct item { long left; int right; };
static struct item *items;

__attribute__((noinline)) static void make(void) {
    char *block = malloc(1 << 20);
    memset(block, 1, 1 << 20);
    items = (struct item *)(block + 24);
}

int main(void) {
    make();
    printf("heap %p items|[].right|item\n", (void *)&items[7].right);
    printf("heap %p header||-\n", (void *)((char *)items - 16));
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}
