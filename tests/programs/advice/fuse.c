/* Passes over arrays that no cache holds, one after the other. */
// build: gcc -O2 -g -pthread -o $BIN $SRC
#include "advice.h"

enum { COUNT = 8 << 20 };

static size_t bills;
static double *price, *amount, *total, *taxed;

static void take_bills(void) {
    bills = COUNT;
    price = filled(COUNT * sizeof(double));
    amount = filled(COUNT * sizeof(double));
    total = filled(COUNT * sizeof(double));
    taxed = filled(COUNT * sizeof(double));
    for (size_t i = 0; i < COUNT; i++)
        price[i] = (double)(i % 19), amount[i] = (double)(i % 5);
}

static uint64_t bill_in_two_passes(void) {
    /* flaw: bills */
    for (size_t i = 0; i < bills; i++)
        total[i] = price[i] * amount[i];
    for (size_t i = 0; i < bills; i++)
        taxed[i] = total[i] * 2.0 + price[i];
    return (uint64_t)(taxed[1] + taxed[COUNT / 3] + taxed[COUNT - 1]);
}

static uint64_t bill_in_one_pass(void) {
    for (size_t i = 0; i < bills; i++) {
        double sum = price[i] * amount[i];
        taxed[i] = sum * 2.0 + price[i];
    }
    return (uint64_t)(taxed[1] + taxed[COUNT / 3] + taxed[COUNT - 1]);
}

enum { PIXELS = 24 << 20 };

static size_t pixels;
static float *photo, *shown;

static void take_photo(void) {
    pixels = PIXELS;
    photo = filled(PIXELS * sizeof(float));
    shown = filled(PIXELS * sizeof(float));
    for (size_t i = 0; i < PIXELS; i++)
        photo[i] = (float)(i % 251);
}

/* flaw: photo */
static void brighten(float *to, const float *from, float by) {
    for (size_t i = 0; i < pixels; i++)
        to[i] = from[i] + by;
}

/* flaw: photo */
static void stretch(float *to, float by) {
    for (size_t i = 0; i < pixels; i++)
        to[i] = to[i] * by;
}

/* flaw: photo */
static void clip(float *to, float limit) {
    for (size_t i = 0; i < pixels; i++)
        to[i] = to[i] < limit ? to[i] : limit;
}

static uint64_t develop_in_three_passes(void) {
    /* flaw: photo */
    brighten(shown, photo, 16);
    stretch(shown, 2);
    clip(shown, 255);
    return (uint64_t)(shown[3] + shown[PIXELS / 7] + shown[PIXELS - 1]);
}

static uint64_t develop_in_one_pass(void) {
    for (size_t i = 0; i < pixels; i++) {
        float value = (photo[i] + 16) * 2;
        shown[i] = value < 255 ? value : 255;
    }
    return (uint64_t)(shown[3] + shown[PIXELS / 7] + shown[PIXELS - 1]);
}

KERNELS({"bills", {{"flawed", take_bills, bill_in_two_passes}, {"mended", take_bills, bill_in_one_pass}}, 1},
        {"photo", {{"flawed", take_photo, develop_in_three_passes}, {"mended", take_photo, develop_in_one_pass}}, 1})
