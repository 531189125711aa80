// The paper's Figure 2, with its lines in one loop of four lines. Without optimisation a and b are read from memory.
int x[64], y[64];
int i, j, k;

__attribute__((noinline)) void figure2(int b) {
    int a;
    for (a = 0; a < b; a++) {
        i = x[a] + y[b];
        j = y[a] + y[b];
        k = x[b] + x[b];
    }
}

int main(void) {
    figure2(20);
    return 0;
}

// A loop on a single line, and the same on several.
__attribute__((noinline)) int one_line(void) {
    int s = 0;
    for (int n = 0; n < 64; n++) { s += x[n] * y[n]; }
    return s;
}
