/* An array that eight lines of code write and eight others read, each line an eighth of the array,
 * element by element:
 * no line can miss more often than once for each eight of its accesses.
 *
 * Few samples fall on each line, so that a single watch may stand for all the misses that one of them
 * seems to have.
 */
// build: gcc -O1 -g -fno-tree-vectorize -o $BIN $SRC
#include "target.h"

#define PART (WORDS / 8)

#define WRITE(n) \
    static APART void write_##n(double *part, double x) { \
        for (size_t i = 0; i < PART; i++)

#define READ(n) \
    static APART double read_##n(const double *part, double sum) { \
        for (size_t i = 0; i < PART; i++)

/* The accesses stand on lines of their own. */
WRITE(0)
part[i] = x + 0.0 * (double)i;
}
WRITE(1)
part[i] = x + 1.0 * (double)i;
}
WRITE(2)
part[i] = x + 2.0 * (double)i;
}
WRITE(3)
part[i] = x + 3.0 * (double)i;
}
WRITE(4)
part[i] = x + 4.0 * (double)i;
}
WRITE(5)
part[i] = x + 5.0 * (double)i;
}
WRITE(6)
part[i] = x + 6.0 * (double)i;
}
WRITE(7)
part[i] = x + 7.0 * (double)i;
}
READ(0)
sum = sum * 0.5 + part[i];
return sum;
}
READ(1)
sum = sum * 0.5 + part[i];
return sum;
}
READ(2)
sum = sum * 0.5 + part[i];
return sum;
}
READ(3)
sum = sum * 0.5 + part[i];
return sum;
}
READ(4)
sum = sum * 0.5 + part[i];
return sum;
}
READ(5)
sum = sum * 0.5 + part[i];
return sum;
}
READ(6)
sum = sum * 0.5 + part[i];
return sum;
}
READ(7)
sum = sum * 0.5 + part[i];
return sum;
}

int main(int argc, char **argv) {
    start(argc, argv);
    double *a = (double *)(void *)new_array(WORDS);
    static void (*const writes[])(double *, double) = {write_0, write_1, write_2, write_3,
                                                       write_4, write_5, write_6, write_7};
    static double (*const reads[])(const double *, double) = {read_0, read_1, read_2, read_3,
                                                              read_4, read_5, read_6, read_7};
    double sum = 0;
    ready();
    for (uint64_t round = 0; more(); round++) {
        for (int n = 0; n < 8; n++)
            writes[n](a + (size_t)n * PART, (double)round);
        for (int n = 0; n < 8; n++)
            sum = reads[n](a + (size_t)n * PART, sum);
    }
    return finish((uint64_t)sum);
}
