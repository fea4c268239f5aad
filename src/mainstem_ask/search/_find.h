/* Where a needle stands in a haystack, ASCII letters in either case. The needle is in lower case.

   A place is a candidate if its first and its last byte fit: compared 16 or 32 places at a time, then byte by byte. */
#ifndef MAINSTEM_ASK_FIND_H
#define MAINSTEM_ASK_FIND_H

#include <stddef.h>
#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

static inline uint8_t ask_fold(uint8_t one) { return (uint8_t)(one - 'A') < 26 ? one | 0x20 : one; }

static inline int ask_fits(const uint8_t *at, const uint8_t *needle, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (ask_fold(at[i]) != needle[i]) return 0;
    return 1;
}

static const uint8_t *ask_find_plain(const uint8_t *hay, size_t size, const uint8_t *needle, size_t length) {
    for (size_t i = 0; i + length <= size; i++)
        if (ask_fold(hay[i]) == needle[0] && ask_fits(hay + i, needle, length)) return hay + i;
    return NULL;
}

#if defined(__SSE2__)
/* Letters are compared with their case bit set; for anything else that bit counts. */
static inline uint8_t ask_case_bit(uint8_t one) { return (uint8_t)(one - 'a') < 26 ? 0x20 : 0; }

__attribute__((target("avx2"))) static const uint8_t *ask_find_wide(const uint8_t *hay, size_t size, const uint8_t *needle,
                                                                   size_t length) {
    const __m256i first = _mm256_set1_epi8((char)needle[0]), last = _mm256_set1_epi8((char)needle[length - 1]);
    const __m256i first_bit = _mm256_set1_epi8((char)ask_case_bit(needle[0]));
    const __m256i last_bit = _mm256_set1_epi8((char)ask_case_bit(needle[length - 1]));
    size_t i = 0;
    for (; i + length - 1 + 32 <= size; i += 32) {
        __m256i head = _mm256_or_si256(_mm256_loadu_si256((const __m256i *)(hay + i)), first_bit);
        __m256i tail = _mm256_or_si256(_mm256_loadu_si256((const __m256i *)(hay + i + length - 1)), last_bit);
        uint32_t hits = (uint32_t)_mm256_movemask_epi8(
            _mm256_and_si256(_mm256_cmpeq_epi8(head, first), _mm256_cmpeq_epi8(tail, last)));
        while (hits) {
            size_t at = i + (size_t)__builtin_ctz(hits);
            if (ask_fits(hay + at, needle, length)) return hay + at;
            hits &= hits - 1;
        }
    }
    return ask_find_plain(hay + i, size - i, needle, length);
}

static const uint8_t *ask_find_narrow(const uint8_t *hay, size_t size, const uint8_t *needle, size_t length) {
    const __m128i first = _mm_set1_epi8((char)needle[0]), last = _mm_set1_epi8((char)needle[length - 1]);
    const __m128i first_bit = _mm_set1_epi8((char)ask_case_bit(needle[0]));
    const __m128i last_bit = _mm_set1_epi8((char)ask_case_bit(needle[length - 1]));
    size_t i = 0;
    for (; i + length - 1 + 16 <= size; i += 16) {
        __m128i head = _mm_or_si128(_mm_loadu_si128((const __m128i *)(hay + i)), first_bit);
        __m128i tail = _mm_or_si128(_mm_loadu_si128((const __m128i *)(hay + i + length - 1)), last_bit);
        uint32_t hits = (uint32_t)_mm_movemask_epi8(_mm_and_si128(_mm_cmpeq_epi8(head, first), _mm_cmpeq_epi8(tail, last)));
        while (hits) {
            size_t at = i + (size_t)__builtin_ctz(hits);
            if (ask_fits(hay + at, needle, length)) return hay + at;
            hits &= hits - 1;
        }
    }
    return ask_find_plain(hay + i, size - i, needle, length);
}
#endif

static const uint8_t *ask_find(const uint8_t *hay, size_t size, const uint8_t *needle, size_t length) {
    if (length == 0 || length > size) return NULL;
#if defined(__SSE2__)
    static int wide = -1;
    if (wide < 0) wide = __builtin_cpu_supports("avx2") ? 1 : 0;
    return wide ? ask_find_wide(hay, size, needle, length) : ask_find_narrow(hay, size, needle, length);
#else
    return ask_find_plain(hay, size, needle, length);
#endif
}

#endif
