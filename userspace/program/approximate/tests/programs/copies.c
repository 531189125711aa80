// Work that the C library does.
#include <stdlib.h>
#include <string.h>

char text[64];

int main(void) {
    char *from = malloc(64), *to = malloc(64);
    memset(to, 1, 64);
    memcpy(to, from, 64);
    return strlen(text) + to[3];
}
