// Loops of many kinds for the comparison of windows with native execution. Argument: which.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 88172645463325252ull;
static uint64_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

#define N 4096
static float f[N], g[N], h[N];
static double d[N], e[N];
static int32_t a[N], b[N], idx[N];
static uint8_t s[N + 64], t[N + 64];
volatile double sink;

__attribute__((target("avx2,fma,f16c"))) static void avx2(void) {
    for (int i = 0; i + 8 <= N; i += 8) {
        __m256 x = _mm256_loadu_ps(f + i), y = _mm256_loadu_ps(g + i);
        __m256i m = _mm256_loadu_si256((void *)(a + i));
        __m256i v = _mm256_and_si256(_mm256_loadu_si256((void *)(idx + i)), _mm256_set1_epi32(N - 1));
        __m256 z = _mm256_mask_i32gather_ps(x, g, v, _mm256_castsi256_ps(m), 4);
        z = _mm256_fmadd_ps(x, y, z);
        _mm256_maskstore_ps(h + i, m, z);
        z = _mm256_maskload_ps(f + i, m);
        __m128i half = _mm256_cvtps_ph(z, 0);
        _mm256_storeu_ps(g + i, _mm256_add_ps(_mm256_cvtph_ps(half), _mm256_sqrt_ps(_mm256_and_ps(y, x))));
        __m256i p = _mm256_permutevar8x32_epi32(m, v);
        _mm256_storeu_si256((void *)(b + i), _mm256_sad_epu8(p, _mm256_srlv_epi32(m, _mm256_set1_epi32(3))));
        __m256d gd = _mm256_i32gather_pd(d, _mm256_castsi256_si128(v), 8);
        _mm256_storeu_pd(e + i / 2, _mm256_max_pd(gd, _mm256_loadu_pd(d + i / 2)));
    }
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi2"))) static void avx512(void) {
    for (int i = 0; i + 16 <= N; i += 16) {
        __mmask16 m = (__mmask16)next();
        __m512 x = _mm512_loadu_ps(f + i), y = _mm512_maskz_loadu_ps(m, g + i);
        __m512i v = _mm512_and_si512(_mm512_loadu_si512(idx + i), _mm512_set1_epi32(N - 1));
        __m512 z = _mm512_mask_i32gather_ps(x, m, v, g, 4);
        z = _mm512_mask_fmadd_ps(z, m, x, y);
        _mm512_mask_storeu_ps(h + i, m, z);
        _mm512_mask_compressstoreu_ps(f + i, m, z);
        z = _mm512_mask_expandloadu_ps(x, m, g + i);
        _mm512_mask_i32scatter_ps(h, m, v, z, 4);
        __m512i c = _mm512_conflict_epi32(v);
        __mmask16 k = _mm512_cmplt_epi32_mask(c, _mm512_loadu_si512(b + i));
        _mm512_mask_storeu_epi32(b + i, k, _mm512_ternarylogic_epi32(c, v, c, 0x96));
        __m512i w = _mm512_mask_loadu_epi8(c, next(), s + i);
        _mm512_mask_storeu_epi8(t + i, next(), _mm512_shuffle_epi8(w, v));
        _mm512_mask_compressstoreu_epi8(t + i, next(), w);
        _mm512_mask_cvtepi32_storeu_epi8(s + i, m, v);
        _mm512_storeu_pd(d + i / 2, _mm512_add_pd(_mm512_set1_pd(d[i]), _mm512_mask_loadu_pd(_mm512_setzero_pd(), m, e + i / 2)));
        _mm512_storeu_ps(f + i, _mm512_mul_round_ps(x, z, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
    }
}

static void x87(void) {
    long double x = 1, y = 0;
    for (int i = 0; i < 200; i++) {
        x = sinl(x) + cosl(y) * sqrtl(fabsl(x) + i);
        y = logl(fabsl(x) + 2) - expl(-y * y) + (long double)(int64_t)(y * 100);
        d[i] = (double)(x / (y + 3));
    }
    unsigned short w;
    __asm__ volatile("fnstcw %0" : "=m"(w));
    struct { char env[28]; } env;
    __asm__ volatile("fnstenv %0; fldenv %0" : "+m"(env));
    sink = x + y;
}

static void sse(void) {
    for (int i = 0; i + 16 <= N; i += 16) {
        __m128i x = _mm_loadu_si128((void *)(s + i)), y = _mm_load_si128((void *)(t + (i & ~15)));
        _mm_storeu_si128((void *)(t + i), _mm_add_epi8(_mm_mullo_epi16(x, y), _mm_unpacklo_epi8(x, y)));
        __m128d p = _mm_loadu_pd(d + i / 4), q = _mm_set_sd(e[i / 4]);
        p = _mm_div_sd(p, _mm_add_pd(q, _mm_set1_pd(1.5)));
        _mm_storel_pd(e + i / 4, p);
        a[i] = _mm_cvtsd_si32(p) + _mm_movemask_epi8(x) + _mm_extract_epi16(y, 3);
        b[i] = (int)lrint(e[i / 4]) ^ (int)(float)d[i / 4];
        _mm_stream_si32(a + i + 1, (int)i);
        _mm_maskmoveu_si128(x, y, (char *)t + i);
    }
    __m64 m = _mm_set_pi32(1, 2);
    for (int i = 0; i < 50; i++) {
        m = _mm_add_pi16(m, *(__m64 *)(s + i * 8));
        *(__m64 *)(t + i * 8) = m;
    }
    _mm_empty();
}

static void strings(void) {
    unsigned n = next() % 700;
    void *to = t, *from = s;
    size_t count = n;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count)::"memory");
    to = t, count = n / 8;
    __asm__ volatile("rep stosq" : "+D"(to), "+c"(count) : "a"(next()) : "memory");
    to = t, from = s, count = n;
    __asm__ volatile("repe cmpsb" : "+D"(to), "+S"(from), "+c"(count)::"memory", "cc");
    to = s, count = n;
    __asm__ volatile("repne scasb" : "+D"(to), "+c"(count) : "a"(next() & 255) : "memory", "cc");
    to = t + N - 8, from = s + N - 8, count = n / 4;
    __asm__ volatile("std; rep movsl; cld" : "+D"(to), "+S"(from), "+c"(count)::"memory");
    memcpy(t + 3, s, n);
    memset(s + 5, (int)n, n / 2);
    memmove(t + 9, t, n);
    sink += strlen((char *)s) + memcmp(s, t, n) + (memchr(t, 7, N) != 0);
}

static void integer(void) {
    static uint64_t table[1024];
    for (int i = 0; i < 1000; i++) {
        uint64_t x = next(), y = table[x % 1024] | 1;
        __uint128_t p = (__uint128_t)x * y;
        table[i] = (uint64_t)(p >> 64) / y + (int64_t)x % (int32_t)(y | 1) + (x << (y & 63)) + (x >> 5 | x << 59);
        __asm__ volatile("btsq %1, %0" : "+m"(table[0]) : "r"(x % 8000) : "memory");
        __asm__ volatile("lock xaddq %1, %0" : "+m"(table[5]), "+r"(y)::"memory");
        __asm__ volatile("lock cmpxchgq %2, %0" : "+m"(table[i]), "+a"(x) : "r"(y) : "memory");
        __asm__ volatile("pushfq; popq %%rax; andb $0xfe, %%ah; addb %%ah, %%al; sbbw %%dx, %%dx; adcl %%edx, %0; xchgw %%ax, %1"
                         : "+m"(table[7]), "+m"(table[9])::"rax", "rdx", "memory", "cc");
        table[3] += __builtin_popcountll(x) + __builtin_ctzll(y | 1) + __builtin_bswap64(x);
        uint8_t c = __builtin_sub_overflow_p((int32_t)x, (int32_t)y, (int32_t)0);
        table[11] += c;
    }
}

__attribute__((target("bmi,bmi2,adx,movbe,sse4.2,aes,pclmul,sha"))) static void bits(void) {
    __m128i k = _mm_set1_epi32((int)next());
    for (int i = 0; i < 500; i++) {
        uint64_t x = next(), y = next();
        unsigned long long z;
        unsigned char c = _addcarryx_u64(0, x, y, &z);
        z += _pdep_u64(x, y) ^ _pext_u64(y, x) ^ _bzhi_u64(x, y & 63) ^ _blsr_u64(x) ^ _andn_u64(x, y) ^ c;
        z += _mm_crc32_u64(x, y);
        __asm__ volatile("movbeq %1, %0; addq %0, %2" : "=&r"(y), "+m"(*(uint64_t *)(s + i)), "+r"(z));
        k = _mm_aesenc_si128(_mm_clmulepi64_si128(k, _mm_set_epi64x(x, y), 0x10), _mm_loadu_si128((void *)(s + i)));
        k = _mm_sha256rnds2_epu32(k, _mm_set1_epi64x(z), k);
        z += _mm_cmpestri(k, (int)(x & 15), _mm_loadu_si128((void *)t), 16, 0);
        _mm_storeu_si128((void *)(t + i), k);
        d[i] = (double)z;
    }
}

int main(int count, char **arguments) {
    for (int i = 0; i < N; i++) {
        f[i] = i * .25f, g[i] = (float)next(), d[i] = i, e[i] = 1.0 / (i + 1);
        a[i] = (int)next(), b[i] = (int)next(), idx[i] = (int)next(), s[i] = (uint8_t)next();
    }
    const char *which = count > 1 ? arguments[1] : "";
    for (long n = 0; n < 2000000; n++) {
        if (strchr(which, 'a')) avx2();
        if (strchr(which, 'z')) avx512();
        if (strchr(which, 'x')) x87();
        if (strchr(which, 's')) sse();
        if (strchr(which, 'r')) strings();
        if (strchr(which, 'i')) integer();
        if (strchr(which, 'b')) bits();
        if (strchr(which, 'p')) snprintf((char *)t, N, "%g %s %d %Lg", d[n % N], "text", a[n % N], (long double)f[n % N]);
    }
    return (int)sink;
}
