/* CRC-32C (Castagnoli, reflected 0x82F63B78), the checksum of Kafka batches and of Mainstem frames.
 *
 * Three ways, chosen once at run time: the SSE4.2 instruction on three interleaved streams (its latency is three
 * cycles, so one stream alone leaves two thirds of the unit idle), the ARMv8 instruction, or slicing by eight tables.
 */
#ifndef MAINSTEM_CRC32C_H
#define MAINSTEM_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#define MAINSTEM_CRC_SSE42 1
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define MAINSTEM_CRC_ARM 1
#endif

#define CRC_LONG 8192 /* bytes per stream where the input is long ... */
#define CRC_SHORT 256 /* ... and where it is not */

static uint32_t crc_table[8][256];
static uint32_t crc_skip_long[4][256]; /* what CRC_LONG zero bytes do to a register, byte by byte of it */
static uint32_t crc_skip_short[4][256];
static int crc_hardware = 0;

static uint32_t crc_by_table(uint32_t crc, const uint8_t *at, size_t size) {
    while (size && ((uintptr_t)at & 7)) {
        crc = crc_table[0][(crc ^ *at++) & 0xff] ^ (crc >> 8);
        size--;
    }
#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word ^= crc;
        crc = crc_table[7][word & 0xff] ^ crc_table[6][(word >> 8) & 0xff] ^ crc_table[5][(word >> 16) & 0xff] ^
              crc_table[4][(word >> 24) & 0xff] ^ crc_table[3][(word >> 32) & 0xff] ^
              crc_table[2][(word >> 40) & 0xff] ^ crc_table[1][(word >> 48) & 0xff] ^ crc_table[0][word >> 56];
        at += 8;
        size -= 8;
    }
#endif
    while (size--) crc = crc_table[0][(crc ^ *at++) & 0xff] ^ (crc >> 8);
    return crc;
}

/* The register is linear over GF(2): run `size` zero bytes over each of its 32 bits, then combine per byte value. */
static void crc_fill_skip(uint32_t skip[4][256], size_t size) {
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = (uint32_t)1 << bit;
        for (size_t i = 0; i < size; i++) crc = crc_table[0][crc & 0xff] ^ (crc >> 8);
        of_bit[bit] = crc;
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1) crc ^= of_bit[byte * 8 + bit];
            skip[byte][value] = crc;
        }
}

static void crc32c_prepare(void) {
    for (int value = 0; value < 256; value++) {
        uint32_t crc = (uint32_t)value;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
        crc_table[0][value] = crc;
    }
    for (int value = 0; value < 256; value++)
        for (int slice = 1; slice < 8; slice++) {
            uint32_t crc = crc_table[slice - 1][value];
            crc_table[slice][value] = crc_table[0][crc & 0xff] ^ (crc >> 8);
        }
#if defined(MAINSTEM_CRC_SSE42)
    crc_hardware = __builtin_cpu_supports("sse4.2") ? 1 : 0;
    if (crc_hardware) {
        crc_fill_skip(crc_skip_long, CRC_LONG);
        crc_fill_skip(crc_skip_short, CRC_SHORT);
    }
#elif defined(MAINSTEM_CRC_ARM)
    crc_hardware = 1;
#endif
}

#if defined(MAINSTEM_CRC_SSE42)
static inline uint32_t crc_skip(uint32_t skip[4][256], uint32_t crc) {
    return skip[0][crc & 0xff] ^ skip[1][(crc >> 8) & 0xff] ^ skip[2][(crc >> 16) & 0xff] ^ skip[3][crc >> 24];
}

static inline uint64_t crc_word(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

__attribute__((target("sse4.2"))) static uint32_t crc_three_ways(uint32_t crc, const uint8_t **at, size_t *size,
                                                                 size_t stride, uint32_t skip[4][256]) {
    uint64_t first = crc;
    const uint8_t *p = *at;
    while (*size >= 3 * stride) {
        uint64_t second = 0, third = 0;
        const uint8_t *end = p + stride;
        while (p < end) {
            first = __builtin_ia32_crc32di(first, crc_word(p));
            second = __builtin_ia32_crc32di(second, crc_word(p + stride));
            third = __builtin_ia32_crc32di(third, crc_word(p + 2 * stride));
            p += 8;
        }
        first = crc_skip(skip, (uint32_t)first) ^ second;
        first = crc_skip(skip, (uint32_t)first) ^ third;
        p += 2 * stride;
        *size -= 3 * stride;
    }
    *at = p;
    return (uint32_t)first;
}

__attribute__((target("sse4.2"))) static uint32_t crc_by_hardware(uint32_t crc, const uint8_t *at, size_t size) {
    if (size >= 3 * CRC_LONG) crc = crc_three_ways(crc, &at, &size, CRC_LONG, crc_skip_long);
    if (size >= 3 * CRC_SHORT) crc = crc_three_ways(crc, &at, &size, CRC_SHORT, crc_skip_short);
    uint64_t wide = crc;
    while (size >= 8) {
        wide = __builtin_ia32_crc32di(wide, crc_word(at));
        at += 8;
        size -= 8;
    }
    crc = (uint32_t)wide;
    while (size--) crc = __builtin_ia32_crc32qi(crc, *at++);
    return crc;
}
#elif defined(MAINSTEM_CRC_ARM)
static uint32_t crc_by_hardware(uint32_t crc, const uint8_t *at, size_t size) {
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = __crc32cd(crc, word);
        at += 8;
        size -= 8;
    }
    while (size--) crc = __crc32cb(crc, *at++);
    return crc;
}
#else
static uint32_t crc_by_hardware(uint32_t crc, const uint8_t *at, size_t size) { return crc_by_table(crc, at, size); }
#endif

static uint32_t crc32c_run(const uint8_t *at, size_t size, uint32_t seed) {
    uint32_t crc = ~seed;
    return ~(crc_hardware ? crc_by_hardware(crc, at, size) : crc_by_table(crc, at, size));
}

static uint32_t crc32c_run_by_table(const uint8_t *at, size_t size, uint32_t seed) {
    return ~crc_by_table(~seed, at, size);
}

#endif
