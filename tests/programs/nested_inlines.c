/* Sorts an array in libc, and sums it in a function whose debug information has a million calls
 * inlined into one another: a reader that follows them by recursion finds the end of its stack.
 * (DWARF 4: 7.5, 7.21.) */
// build: gcc -O1 -o $BIN $SRC
#include "target.h"

#define SORTED ((size_t)1 << 16)

__asm__(".file 1 \"nested.c\"\n"
        ".pushsection .debug_line,\"\",@progbits\n"
        ".Lnested_lines:\n"
        ".popsection\n"
        ".pushsection .debug_abbrev,\"\",@progbits\n"
        ".Lnested_abbreviations:\n"
        /* A unit with a name, a range and lines, a function with a name and a range, an inlined
         * call without attributes; all have children. */
        "  .uleb128 1, 0x11; .byte 1; .uleb128 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0x10, 0x17, 0, 0\n"
        "  .uleb128 2, 0x2e; .byte 1; .uleb128 0x03, 0x08, 0x11, 0x01, 0x12, 0x07, 0, 0\n"
        "  .uleb128 3, 0x1d; .byte 1; .uleb128 0, 0\n"
        "  .uleb128 0\n"
        ".popsection\n"
        ".pushsection .debug_info,\"\",@progbits\n"
        "  .long .Lnested_end - .Lnested_start\n"
        ".Lnested_start:\n"
        "  .value 4; .long .Lnested_abbreviations; .byte 8\n"
        "  .uleb128 1; .asciz \"nested.c\"; .quad nested, 0x100; .long .Lnested_lines\n"
        "  .uleb128 2; .asciz \"nested\"; .quad nested, 0x100\n"
        "  .fill 1000000, 1, 3\n"
        "  .fill 1000002, 1, 0\n"
        ".Lnested_end:\n"
        ".popsection\n");

APART uint64_t nested(const uint64_t *a, size_t words, uint64_t sum) {
    __asm__ volatile(".loc 1 7");
    for (int pass = 0; pass < 16; pass++)
        for (size_t i = 0; i < words; i++)
            sum = mix(sum + a[i]);
    return sum;
}

static APART int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    start(argc, argv);
    uint64_t *a = new_array(SORTED), sum = 1;
    ready();
    while (more()) {
        for (size_t i = 0; i < SORTED; i++)
            a[i] = sum = mix(sum + i);
        qsort(a, SORTED, sizeof *a, ascending);
        sum = nested(a, SORTED, sum);
    }
    return finish(sum);
}
