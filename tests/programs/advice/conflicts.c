/* Addresses that fall on few sets of a cache. */
// build: gcc -O2 -g -pthread -o $BIN $SRC
#include "advice.h"

/* A picture whose lines are 16 KiB apart; the blur goes up and down. */
enum { WIDTH = 4096, HEIGHT = 512, RADIUS = 12 };

/* flaw: vertical_blur */
static int32_t *picture, *blurred;
static size_t pitch;
static int radius;

static void take_picture(size_t line) {
    pitch = line;
    radius = RADIUS;
    picture = filled_aligned(((HEIGHT * line * sizeof *picture >> 21) + 1) << 21, 0);
    blurred = filled_aligned(((HEIGHT * line * sizeof *blurred >> 21) + 1) << 21, 0);
    for (size_t y = 0; y < HEIGHT; y++)
        for (size_t x = 0; x < WIDTH; x++)
            picture[y * pitch + x] = (int32_t)((x * 7 + y * 3) % 251);
}

static void take_plain_picture(void) { take_picture(WIDTH); }

static void take_padded_picture(void) { take_picture(WIDTH + 16); }

static uint64_t checksum_of_blur(void) {
    uint64_t sum = 0;
    for (size_t x = 0; x < WIDTH; x += 64)
        sum = sum * 31 + (uint64_t)blurred[(HEIGHT / 2 + x % 100) * pitch + x];
    return sum;
}

static uint64_t blur_vertically(void) {
    /* flaw: vertical_blur */
    for (int y = radius; y < HEIGHT - radius; y++)
        for (int x = 0; x < WIDTH; x++) {
            int32_t sum = 0;
            for (int dy = -radius; dy <= radius; dy++)
                sum += picture[(size_t)(y + dy) * pitch + (size_t)x];
            blurred[(size_t)y * pitch + (size_t)x] = sum;
        }
    return checksum_of_blur();
}

static uint64_t blur_line_by_line(void) {
    for (int y = radius; y < HEIGHT - radius; y++) {
        int32_t *to = blurred + (size_t)y * pitch;
        memset(to, 0, WIDTH * sizeof *to);
        for (int dy = -radius; dy <= radius; dy++) {
            const int32_t *from = picture + (size_t)(y + dy) * pitch;
            for (int x = 0; x < WIDTH; x++)
                to[x] += from[x];
        }
    }
    return checksum_of_blur();
}

/* Blocks of 4 KiB, with a header at the start of each and a list through them, as an allocator has them. */
enum { BLOCK = 4096, BLOCKS = 1500, SEEKS = 20 };

/* flaw: free_blocks */
struct header {
    struct header *next;
    int64_t room;
};

static char *region;
static struct header *first;

static void link_headers(struct header *headers[]) {
    uint32_t order[BLOCKS];
    shuffle(order, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        struct header *header = headers[order[i]];
        header->room = i;
        header->next = first;
        first = header;
    }
}

static void take_blocks(size_t colours) {
    region = filled_aligned(((size_t)BLOCKS * BLOCK >> 21 << 21) + (2 << 20), 0);
    struct header *headers[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++)
        headers[i] = (struct header *)(void *)(region + i * BLOCK + i % colours * 64);
    link_headers(headers);
}

static void take_plain_blocks(void) { take_blocks(1); }

/* As slab allocators do: the header's place differs from block to block. */
static void take_coloured_blocks(void) { take_blocks(61); }

static void take_headers_apart(void) {
    struct header *apart = filled(BLOCKS * sizeof *apart), *headers[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++)
        headers[i] = &apart[i];
    link_headers(headers);
}

static uint64_t seek_blocks(void) {
    int64_t found = 0;
    for (int64_t seek = 0; seek < SEEKS; seek++) {
        /* flaw: free_blocks */
        const struct header *header = first;
        while (header->next && header->room > seek)
            header = header->next;
        found += header->room;
    }
    return (uint64_t)found;
}

KERNELS({"vertical_blur",
         {{"flawed", take_plain_picture, blur_vertically},
          {"mended", take_padded_picture, blur_vertically},
          {"interchanged", take_plain_picture, blur_line_by_line}},
         1},
        {"free_blocks",
         {{"flawed", take_plain_blocks, seek_blocks},
          {"mended", take_coloured_blocks, seek_blocks},
          {"split", take_headers_apart, seek_blocks}},
         1})
