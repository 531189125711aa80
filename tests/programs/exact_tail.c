// build: gcc -O2 -o $BIN $SRC
/* `outer` jumps to `strided` (a tail call), which uses 8 bytes of each line that it loads. */
#include <stdio.h>

enum { N = 1 << 17 };
static long table[N];

__attribute__((noipa)) static long strided(long from) {
    long sum = 0;
    for (long i = from; i < N; i += 8)
        sum += table[i];
    return sum;
}

__attribute__((noipa)) static long outer(long round) {
    table[round]++;
    return strided(round & 7);
}

int main(void) {
    long sum = 0;
    for (long round = 0; round < 10; round++)
        sum += outer(round);
    printf("%ld\n", sum);
}
