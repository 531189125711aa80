/* Stores of integers and of floating-point numbers in turn, in a function of their own. */
// build: gcc -O1 -g -fno-tree-vectorize -o $BIN $SRC
enum { WORDS = 64, ROUNDS = 100 };
static volatile long integers[WORDS] __attribute__((aligned(64)));
static volatile double floats[WORDS] __attribute__((aligned(64)));

__attribute__((noinline)) void mixed(double value) {
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < WORDS; i++) {
            integers[i] = round;
            floats[i] = value;
        }
}

int main(int argc, char **argv) {
    (void)argv;
    mixed(argc);
    return 0;
}
