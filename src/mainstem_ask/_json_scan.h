/* JSON read once, from its first byte to its last, for what stands at one path.
 *
 * It is strict, and gives up (ASK_STRANGE) wherever two parsers might differ: then a whole parser decides for that row. So it
 * gives up at what is no JSON, duplicate names and escapes on the way, texts with escapes and numbers that could be spelled
 * in another way, and beyond 64 levels. Everything behind the path is still looked at: a row that is no JSON has no fields.
 */
#ifndef MAINSTEM_ASK_JSON_SCAN_H
#define MAINSTEM_ASK_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { ASK_STRANGE, ASK_MISSING, ASK_NULL, ASK_TRUE, ASK_FALSE, ASK_NUMBER, ASK_TEXT, ASK_NESTED };
enum { ASK_DEPTH_MAX = 64, ASK_DIGITS_MAX = 15, ASK_OFF_PATH = -1 };

typedef struct {
    const uint8_t* name; /* NULL: an element of a list */
    size_t size;
    int64_t index;
} ask_step;

typedef struct {
    const ask_step* steps;
    int count;
    int kind;
    const uint8_t* at;
    size_t size;
} ask_seek;

static inline const uint8_t* ask_space(const uint8_t* p, const uint8_t* end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
    return p;
}

/* Behind one character of UTF-8 that is not ASCII, or NULL. */
static const uint8_t* ask_letter(const uint8_t* p, const uint8_t* end) {
    uint8_t first = *p;
    int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    uint32_t code = first & (0x3F >> more);
    if (first < 0xC2 || first > 0xF4 || end - p <= more) return NULL;
    for (int at = 1; at <= more; at++) {
        if ((p[at] & 0xC0) != 0x80) return NULL;
        code = code << 6 | (p[at] & 0x3F);
    }
    if ((more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10FFFF))) return NULL;
    if (code >= 0xD800 && code <= 0xDFFF) return NULL;
    return p + more + 1;
}

/* Behind an escape, whose backslash stands at p; NULL for one that is half of a pair, too. */
static const uint8_t* ask_escape(const uint8_t* p, const uint8_t* end) {
    uint32_t code = 0;
    if (end - p < 2) return NULL;
    if (p[1] != 'u') return memchr("\"\\/bfnrt", p[1], 8) ? p + 2 : NULL;
    if (end - p < 6) return NULL;
    for (int at = 2; at < 6; at++) {
        uint8_t c = p[at] | 0x20;
        if (p[at] >= '0' && p[at] <= '9') code = code << 4 | (uint32_t)(p[at] - '0');
        else if (c >= 'a' && c <= 'f') code = code << 4 | (uint32_t)(c - 'a' + 10);
        else return NULL;
    }
    return code >= 0xD800 && code <= 0xDFFF ? NULL : p + 6;
}

/* The closing quote of the text whose first character stands at p, or NULL. */
static const uint8_t* ask_text_end(const uint8_t* p, const uint8_t* end, int* escaped) {
    for (;;) {
#if defined(__SSE2__)
        while (end - p >= 16) {
            __m128i x = _mm_loadu_si128((const __m128i*)p);
            __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('"')), _mm_cmpeq_epi8(x, _mm_set1_epi8('\\')));
            hit = _mm_or_si128(hit, _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(0x1F)), x));
            int mask = _mm_movemask_epi8(hit) | _mm_movemask_epi8(x);
            if (mask) {
                p += __builtin_ctz((unsigned)mask);
                break;
            }
            p += 16;
        }
#endif
        if (p >= end || *p < 0x20) return NULL;
        if (*p == '"') return p;
        if (*p == '\\') {
            *escaped = 1;
            p = ask_escape(p, end);
        } else {
            p = *p >= 0x80 ? ask_letter(p, end) : p + 1;
        }
        if (p == NULL) return NULL;
    }
}

static inline int ask_digit(const uint8_t* p, const uint8_t* end) { return p < end && *p >= '0' && *p <= '9'; }

/* Behind a number, or NULL; whether it is spelled as everybody would spell it. */
static const uint8_t* ask_number(const uint8_t* p, const uint8_t* end, int* plain) {
    const uint8_t *first, *part;
    int negative = *p == '-';
    first = p += negative;
    while (ask_digit(p, end)) p++;
    if (p == first || (*first == '0' && p - first > 1)) return NULL;
    size_t whole = (size_t)(p - first);
    *plain = whole <= ASK_DIGITS_MAX && (*first != '0' || !negative);
    if (p < end && *p == '.') {
        part = ++p;
        while (ask_digit(p, end)) p++;
        if (p == part) return NULL;
        if (whole + (size_t)(p - part) > ASK_DIGITS_MAX || (p[-1] == '0' && p - part > 1)) *plain = 0;
        if (*first == '0' && p - part > 2 && memcmp(part, "00", 2) == 0) *plain = 0;
    }
    if (p < end && (*p | 0x20) == 'e') {
        *plain = 0;
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        part = p;
        while (ask_digit(p, end)) p++;
        if (p == part || p - part > 2) return NULL;
    }
    return whole > 200 ? NULL : p; /* some parsers refuse what no double holds */
}

static const uint8_t* ask_value(const uint8_t* p, const uint8_t* end, int depth, ask_seek* seek, int step);

static const uint8_t* ask_object(const uint8_t* p, const uint8_t* end, int depth, ask_seek* seek, int step) {
    const ask_step* wanted = step != ASK_OFF_PATH && step < seek->count ? &seek->steps[step] : NULL;
    int met = 0;
    p = ask_space(p + 1, end);
    if (p < end && *p == '}') return p + 1;
    for (;;) {
        int escaped = 0, below = ASK_OFF_PATH;
        const uint8_t *name, *stop;
        if (p >= end || *p != '"') return NULL;
        name = p + 1;
        stop = ask_text_end(name, end, &escaped);
        if (stop == NULL) return NULL;
        if (wanted != NULL && wanted->name != NULL) {
            if (escaped) return NULL;
            if ((size_t)(stop - name) == wanted->size && memcmp(name, wanted->name, wanted->size) == 0) {
                if (met++) return NULL;
                below = step + 1;
            }
        }
        p = ask_space(stop + 1, end);
        if (p >= end || *p != ':') return NULL;
        p = ask_value(ask_space(p + 1, end), end, depth, seek, below);
        if (p == NULL) return NULL;
        p = ask_space(p, end);
        if (p < end && *p == '}') return p + 1;
        if (p >= end || *p != ',') return NULL;
        p = ask_space(p + 1, end);
    }
}

static const uint8_t* ask_list(const uint8_t* p, const uint8_t* end, int depth, ask_seek* seek, int step) {
    const ask_step* wanted = step != ASK_OFF_PATH && step < seek->count ? &seek->steps[step] : NULL;
    p = ask_space(p + 1, end);
    if (p < end && *p == ']') return p + 1;
    for (int64_t at = 0;; at++) {
        int is_on = wanted != NULL && wanted->name == NULL && wanted->index == at;
        p = ask_value(p, end, depth, seek, is_on ? step + 1 : ASK_OFF_PATH);
        if (p == NULL) return NULL;
        p = ask_space(p, end);
        if (p < end && *p == ']') return p + 1;
        if (p >= end || *p != ',') return NULL;
        p = ask_space(p + 1, end);
    }
}

static inline const uint8_t* ask_literal(const uint8_t* p, const uint8_t* end, const char* word, size_t size) {
    return (size_t)(end - p) >= size && memcmp(p, word, size) == 0 ? p + size : NULL;
}

/* Behind a value, or NULL where it is strange; what it is, if the path ends at it. */
static const uint8_t* ask_value(const uint8_t* p, const uint8_t* end, int depth, ask_seek* seek, int step) {
    const uint8_t *begin = p, *after;
    int kind, odd = 0, plain = 1;
    if (p >= end || depth >= ASK_DEPTH_MAX) return NULL;
    switch (*p) {
        case '"':
            after = ask_text_end(++begin, end, &odd);
            if (after == NULL) return NULL;
            if (step == seek->count) {
                seek->kind = odd ? ASK_STRANGE : ASK_TEXT;
                seek->at = begin;
                seek->size = (size_t)(after - begin);
            }
            return after + 1;
        case '{': kind = ASK_NESTED; after = ask_object(p, end, depth + 1, seek, step); break;
        case '[': kind = ASK_NESTED; after = ask_list(p, end, depth + 1, seek, step); break;
        case 't': kind = ASK_TRUE; after = ask_literal(p, end, "true", 4); break;
        case 'f': kind = ASK_FALSE; after = ask_literal(p, end, "false", 5); break;
        case 'n': kind = ASK_NULL; after = ask_literal(p, end, "null", 4); break;
        default: kind = ASK_NUMBER; after = ask_number(p, end, &plain);
    }
    if (after != NULL && step == seek->count) {
        seek->kind = plain ? kind : ASK_STRANGE;
        seek->at = begin;
        seek->size = (size_t)(after - begin);
    }
    return after;
}

static void ask_json(const uint8_t* p, size_t size, ask_seek* seek) {
    const uint8_t* end = p + size;
    seek->kind = ASK_MISSING;
    seek->at = p;
    seek->size = 0;
    if (size == 0) return;
    p = ask_value(ask_space(p, end), end, 0, seek, 0);
    if (p == NULL || ask_space(p, end) != end) seek->kind = ASK_STRANGE;
}

/* Of a plain number: exact digits and a power of ten that a double has make the nearest double. */
static double ask_double(const uint8_t* p, size_t size) {
    static const double tens[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    const uint8_t* end = p + size;
    int64_t digits = 0;
    int negative = *p == '-', behind = 0, is_part = 0;
    for (p += negative; p < end; p++) {
        if (*p == '.') {
            is_part = 1;
        } else {
            digits = digits * 10 + (*p - '0');
            behind += is_part;
        }
    }
    return (negative ? -(double)digits : (double)digits) / tens[behind];
}

#endif
