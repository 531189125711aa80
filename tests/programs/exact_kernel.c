/* Known numbers of accesses, for the exact engine. Arguments: loads, stores, line walks, times 4096 each. */
// build: gcc -O1 -g -no-pie -o $BIN $SRC
// build: gcc -O1 -g -fPIE -pie -o $OUT/pie $SRC
// build: gcc -O1 -g -static -o $OUT/static $SRC
#include <stdlib.h>

enum { WORDS = 4096 };
static volatile long array[WORDS] __attribute__((aligned(64)));

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    long sum = 0;
    for (int round = atoi(argv[1]); round > 0; round--)
        for (int i = 0; i < WORDS; i++)
            sum += array[i]; /* loads */
    for (int round = atoi(argv[2]); round > 0; round--)
        for (int i = 0; i < WORDS; i++)
            array[i] = round; /* stores */
    for (int round = atoi(argv[3]); round > 0; round--)
        for (int i = 0; i < WORDS; i += 8)
            sum += array[i]; /* walks */
    return sum == 1;
}
