# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""See search_index.py."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from mainstem.codec._batch cimport (
    BATCH_HEAD_SIZE, FRAME_HEAD_SIZE, KIND_DATA, RecordParts, get_u32, get_u64, next_header, read_record,
)

cdef enum:
    TOKEN_BYTES_MAX = 64
    ORIGIN_KAFKA = 2
    LINE_BYTES = 64
    LINE_BITS = 512
    PROBES = 6
    SLOTS = 1 << 18  # of the table of one block's tokens; a block with more than half of them has no filter
    TOKENS_MAX = 1 << 17

cdef uint8_t[256] FOLDED  # 0: no byte of a word

cdef void _fold() noexcept:
    cdef int one
    for one in range(256):
        FOLDED[one] = 0
        if one >= 0x80 or one == 95 or 48 <= one <= 57 or 97 <= one <= 122:
            FOLDED[one] = <uint8_t>one
        elif 65 <= one <= 90:
            FOLDED[one] = <uint8_t>(one + 32)

_fold()


cdef inline uint64_t _mixed(uint64_t h) noexcept nogil:
    h ^= h >> 33
    h *= <uint64_t>0xFF51AFD7ED558CCD
    h ^= h >> 33
    h *= <uint64_t>0xC4CEB9FE1A85EC53
    return h ^ (h >> 33)


cdef inline uint64_t _bits(uint64_t h) noexcept nogil:
    return h * <uint64_t>0x9E3779B97F4A7C15


def token_hashes(bytes text):
    cdef const uint8_t* at = text
    cdef const uint8_t* end = at + len(text)
    cdef uint64_t h
    cdef int length
    found = []
    while at < end:
        if not FOLDED[at[0]]:
            at += 1
            continue
        h, length = <uint64_t>0xCBF29CE484222325, 0
        while at < end and FOLDED[at[0]]:
            if length < TOKEN_BYTES_MAX:
                h = (h ^ FOLDED[at[0]]) * <uint64_t>0x100000001B3
            length += 1
            at += 1
        found.append(_mixed(h) | 1)
    return found


def holds_all(const uint8_t[::1] lines, list hashes):
    cdef uint64_t count = lines.shape[0] // LINE_BYTES
    cdef uint64_t h, bits
    cdef const uint8_t* line
    cdef int probe, bit
    if count == 0:
        return True
    for one in hashes:
        h = one
        line = &lines[0] + ((h >> 32) * count >> 32) * LINE_BYTES
        bits = _bits(h)
        for probe in range(PROBES):
            bit = <int>((bits >> (9 * probe + 10)) & (LINE_BITS - 1))
            if not line[bit >> 3] & (1 << (bit & 7)):
                return False
    return True


cdef class BlockTokens:
    cdef uint64_t* _slots
    cdef readonly int tokens
    cdef readonly Py_ssize_t raw_bytes
    cdef readonly bint unknown
    cdef readonly bint escapes
    cdef readonly bint crossed
    cdef readonly int64_t first_offset, end_offset, first_stamp, time_min_ms, time_max_ms

    def __cinit__(self):
        self._slots = <uint64_t*>calloc(SLOTS, 8)
        if self._slots == NULL:
            raise MemoryError()
        self._begin()

    def __dealloc__(self):
        free(self._slots)

    cdef void _begin(self) noexcept:
        self.tokens = 0
        self.raw_bytes = 0
        self.unknown = self.escapes = self.crossed = False
        self.first_offset = self.end_offset = self.first_stamp = -1
        self.time_min_ms, self.time_max_ms = (<int64_t>1 << 62), -(<int64_t>1 << 62)

    def clear(self):
        memset(self._slots, 0, SLOTS * 8)
        self._begin()

    def add_frames(self, const uint8_t[::1] data, Py_ssize_t size):
        cdef const uint8_t* base = &data[0] if size > 0 else NULL
        cdef Py_ssize_t at = 0, frame
        cdef bint damaged = False
        packed = []
        if size > data.shape[0]:
            raise ValueError("more than the buffer holds")
        while at + FRAME_HEAD_SIZE <= size:
            if memcmp(base + at, b"MSF1", 4) != 0:
                damaged = True
                break
            frame = FRAME_HEAD_SIZE + <Py_ssize_t>get_u32(base + at + 8)
            if at + frame > size:
                break
            if self._note(base + at, frame):
                packed.append((at + FRAME_HEAD_SIZE, frame - FRAME_HEAD_SIZE))
            at += frame
        return at, packed, damaged

    cdef bint _note(self, const uint8_t* frame, Py_ssize_t size) except *:
        """One frame; whether its batch is compressed, and must be inflated and added by `add_records`."""
        cdef const uint8_t* batch = frame + FRAME_HEAD_SIZE
        cdef int64_t offset = <int64_t>get_u64(frame + 16)
        if self.first_offset < 0:
            self.first_offset, self.first_stamp = offset, <int64_t>get_u64(frame + 24)
        self.end_offset = offset + 1
        if frame[5] != KIND_DATA:
            return False
        if size < FRAME_HEAD_SIZE + BATCH_HEAD_SIZE:
            self.unknown = True
            return False
        if frame[6] != ORIGIN_KAFKA:
            self.crossed = True
        if batch[22] & 7:
            return True
        with nogil:
            self._records(batch, batch + BATCH_HEAD_SIZE, frame + size)
        return False

    def add_records(self, const uint8_t[::1] head, const uint8_t[::1] records):
        """The records of a compressed batch, inflated; `head` is the batch's."""
        if head.shape[0] < BATCH_HEAD_SIZE or records.shape[0] == 0:
            self.unknown = True
            return
        with nogil:
            self._records(&head[0], &records[0], &records[0] + records.shape[0])

    def give_up(self):
        """What it holds is not known: it is always read."""
        self.unknown = True

    cdef void _records(self, const uint8_t* batch, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef RecordParts parts
        cdef int64_t base_ms = <int64_t>get_u64(batch + 27), most_ms = <int64_t>get_u64(batch + 35)
        cdef uint32_t count = get_u32(batch + 57)
        if count and batch[22] & 8:  # all have the time of the append
            self._time(most_ms)
        while count:
            at = read_record(at, end, &parts)
            if at == NULL:
                self.unknown = True
                return
            self._time(base_ms + parts.time_delta_ms)
            if parts.key_size > 0:
                self._words(parts.key, parts.key + parts.key_size)
            if parts.value_size > 0:
                self._words(parts.value, parts.value + parts.value_size)
            if parts.header_count and not self.crossed:
                self._headers(&parts)
            count -= 1

    cdef void _headers(self, RecordParts* parts) noexcept nogil:
        cdef const uint8_t* at = parts.headers
        cdef const uint8_t* end = at + parts.headers_size
        cdef const uint8_t* name
        cdef const uint8_t* value
        cdef Py_ssize_t name_size, value_size
        cdef int count = parts.header_count
        while count:
            at = next_header(at, end, &name, &name_size, &value, &value_size)
            if at == NULL:
                self.unknown = True
                return
            self._words(name, name + name_size)
            if value_size > 0:
                self._words(value, value + value_size)
            count -= 1

    cdef inline void _time(self, int64_t ms) noexcept nogil:
        if ms < self.time_min_ms:
            self.time_min_ms = ms
        if ms > self.time_max_ms:
            self.time_max_ms = ms

    cdef void _words(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef uint64_t h
        cdef uint8_t one
        cdef int length
        self.raw_bytes += end - at
        while at < end:
            one = FOLDED[at[0]]
            if not one:
                if at[0] == 92 and at + 1 < end:
                    self._escape(at + 1, end)
                at += 1
                continue
            at = self._word(at, end)

    cdef inline const uint8_t* _word(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        """Enters the run that begins here; returns where it ends."""
        cdef uint64_t h = <uint64_t>0xCBF29CE484222325
        cdef int length = 0
        cdef uint8_t one = FOLDED[at[0]]
        while one:
            if length < TOKEN_BYTES_MAX:
                h = (h ^ one) * <uint64_t>0x100000001B3
                length += 1
            at += 1
            if at == end:
                break
            one = FOLDED[at[0]]
        self._enter(_mixed(h) | 1)
        return at

    cdef void _escape(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        """Behind a backslash: in JSON `\\nrefused` is a new line and a word, as bytes it is one word. Both are entered."""
        if at[0] == 117:
            self.escapes = True
        elif (at[0] == 110 or at[0] == 114 or at[0] == 116 or at[0] == 98 or at[0] == 102) and at + 1 < end:
            if FOLDED[at[1]]:
                self._word(at + 1, end)

    cdef inline void _enter(self, uint64_t h) noexcept nogil:
        cdef uint64_t slot = (h >> 20) & (SLOTS - 1)
        if self.tokens >= TOKENS_MAX:
            self.unknown = True
            return
        while self._slots[slot]:
            if self._slots[slot] == h:
                return
            slot = (slot + 1) & (SLOTS - 1)
        self._slots[slot] = h
        self.tokens += 1

    def lines(self, Py_ssize_t count):
        """A filter of so many lines over the tokens."""
        if count < 0 or count > 1 << 24:
            raise ValueError(f"{count} lines")
        cdef bytes made = PyBytes_FromStringAndSize(NULL, count * LINE_BYTES)
        cdef uint8_t* base = <uint8_t*>PyBytes_AS_STRING(made)
        cdef uint8_t* line
        cdef uint64_t h, bits
        cdef Py_ssize_t slot
        cdef int probe, bit
        memset(base, 0, count * LINE_BYTES)
        if count == 0:
            return made
        with nogil:
            for slot in range(SLOTS):
                h = self._slots[slot]
                if h:
                    line = base + ((h >> 32) * <uint64_t>count >> 32) * LINE_BYTES
                    bits = _bits(h)
                    for probe in range(PROBES):
                        bit = <int>((bits >> (9 * probe + 10)) & (LINE_BITS - 1))
                        line[bit >> 3] |= <uint8_t>(1 << (bit & 7))
        return made
