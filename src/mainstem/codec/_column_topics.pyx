# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Topic names to what a row says of them: a hash table over the raw bytes, filled by one call per distinct topic."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from mainstem.codec._runs cimport Binary, Run, begin_values, copy_padded, end_values, make_room, put_i32

cdef bytes PADDING = bytes(32)  # copy_padded reads so far behind a text


cdef inline uint64_t hash_bytes(const char* data, size_t size) noexcept nogil:
    cdef uint64_t state = <uint64_t>0x9E3779B97F4A7C15U ^ size
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, data, 8)
        state = (state ^ word) * <uint64_t>0xFF51AFD7ED558CCDU
        state ^= state >> 32
        data += 8
        size -= 8
    word = 0
    memcpy(&word, data, size)
    state = (state ^ word) * <uint64_t>0xC4CEB9FE1A85EC53U
    return state ^ (state >> 29)


cdef inline int fill_names(
    const Topic* topics, const int64_t* rows, int64_t count, Binary* column, bint is_canonical
) except -1 nogil:
    """Called with a constant, so that the compiler makes a loop without the question of each."""
    cdef int64_t i, total = 0
    cdef const Topic* topic
    for i in range(count):
        topic = &topics[<int32_t>rows[i]]
        total += topic.canonical_size if is_canonical else topic.kafka_size
    begin_values(column, count, total)
    for i in range(count):
        topic = &topics[<int32_t>rows[i]]
        if is_canonical:
            end_values(column, copy_padded(&column.data, topic.canonical, topic.canonical_size))
        else:
            end_values(column, copy_padded(&column.data, topic.kafka, topic.kafka_size))
    return 0


cdef class TopicTable:
    """`resolve(name or id)` answers (kafka, canonical, levels, partition, start, end), or None for an unwanted topic."""

    def __cinit__(self, resolve):
        self.resolve = resolve
        self.numbers = {}
        self.kept = []
        self.forget()

    def __dealloc__(self):
        free(self.topics)
        free(self.slots)

    cdef int forget(self) except -1:
        free(self.topics)
        free(self.slots)
        self.room, self.slot_mask = 256, 1023
        self.topics = <Topic*>malloc(self.room * sizeof(Topic))
        self.slots = <int32_t*>malloc((self.slot_mask + 1) * sizeof(int32_t))
        if self.topics == NULL or self.slots == NULL:
            raise MemoryError()
        memset(self.slots, 0xFF, (self.slot_mask + 1) * sizeof(int32_t))
        self.count, self.last = 0, -1
        self.numbers.clear()
        self.kept.clear()
        return 0

    cdef int32_t by_id(self, uint32_t topic_id) except -1:
        found = self.numbers.get(topic_id)
        if found is None:
            if self.count >= TOPICS_MAX:
                return TABLE_FULL
            found = self.numbers[topic_id] = self.add(b"", self.resolve(topic_id))
        return found

    cdef int32_t by_name(self, const char* name, uint32_t size) except -1 nogil:
        cdef int32_t number = self.last
        cdef uint64_t hashed
        cdef uint32_t slot
        cdef Topic* topic
        if number >= 0 and self.topics[number].name_size == size and memcmp(self.topics[number].name, name, size) == 0:
            return number
        hashed = hash_bytes(name, size)
        slot = <uint32_t>hashed & self.slot_mask
        while self.slots[slot] >= 0:
            topic = &self.topics[self.slots[slot]]
            if topic.hash == hashed and topic.name_size == size and memcmp(topic.name, name, size) == 0:
                self.last = self.slots[slot]
                return self.last
            slot = (slot + 1) & self.slot_mask
        if self.count >= TOPICS_MAX:
            return TABLE_FULL
        with gil:
            text = PyBytes_FromStringAndSize(name, size)
            number = self.add(text, self.resolve(text))
            if <uint32_t>self.count * 2 > self.slot_mask:
                self.widen()
            self.place(number)
        self.last = number
        return number

    cdef int32_t add(self, bytes name, row) except -1:
        cdef Topic* topic
        if self.count == self.room:
            self.room *= 2
            self.topics = <Topic*>realloc(self.topics, self.room * sizeof(Topic))
            if self.topics == NULL:
                raise MemoryError()
        topic = &self.topics[self.count]
        memset(topic, 0, sizeof(Topic))
        self.kept.append(name)
        topic.name, topic.name_size = PyBytes_AS_STRING(name), <uint32_t>PyBytes_GET_SIZE(name)
        topic.hash = hash_bytes(topic.name, topic.name_size)
        topic.wanted = row is not None
        if row is not None:
            self.describe(topic, row)
        self.count += 1
        return self.count - 1

    cdef int describe(self, Topic* topic, row) except -1:
        kafka, canonical, levels, topic.partition, topic.start, topic.end = row
        joined, ends, end = b"".join(levels) + PADDING, [], 0
        for level in levels:
            end += len(level)
            ends.append(end.to_bytes(4, "little"))
        ends = b"".join(ends)
        sizes = len(kafka), len(canonical)
        kafka, canonical = kafka + PADDING, canonical + PADDING
        self.kept.append((kafka, canonical, joined, ends))
        topic.kafka_size, topic.canonical_size = sizes
        topic.kafka, topic.canonical = PyBytes_AS_STRING(kafka), PyBytes_AS_STRING(canonical)
        topic.levels, topic.level_ends = PyBytes_AS_STRING(joined), PyBytes_AS_STRING(ends)
        topic.levels_size, topic.level_count = end, <uint32_t>len(levels)
        return 0

    cdef void place(self, int32_t number) noexcept nogil:
        cdef uint32_t slot = <uint32_t>self.topics[number].hash & self.slot_mask
        while self.slots[slot] >= 0:
            slot = (slot + 1) & self.slot_mask
        self.slots[slot] = number

    cdef int widen(self) except -1:
        cdef uint32_t i
        cdef list placed = [self.slots[i] for i in range(self.slot_mask + 1) if self.slots[i] >= 0]
        free(self.slots)
        self.slot_mask = self.slot_mask * 2 + 1
        self.slots = <int32_t*>malloc((self.slot_mask + 1) * sizeof(int32_t))
        if self.slots == NULL:
            raise MemoryError()
        memset(self.slots, 0xFF, (self.slot_mask + 1) * sizeof(int32_t))
        for number in placed:
            self.place(number)
        return 0

    cdef int fill_kafka(self, const int64_t* rows, int64_t count, Binary* column) except -1 nogil:
        return fill_names(self.topics, rows, count, column, False)

    cdef int fill_canonical(self, const int64_t* rows, int64_t count, Binary* column) except -1 nogil:
        return fill_names(self.topics, rows, count, column, True)

    cdef int fill_partitions(self, const int64_t* rows, int64_t count, Run* column) except -1 nogil:
        cdef int64_t i
        cdef int32_t* out
        make_room(column, 4 * <size_t>count)
        out = <int32_t*>(column.data + column.size)
        for i in range(count):
            out[i] = self.topics[<int32_t>rows[i]].partition
        column.size += 4 * <size_t>count
        return 0

    cdef int fill_levels(self, const int64_t* rows, int64_t count, Run* ends, Binary* levels) except -1 nogil:
        """A topic's levels lie joined: one copy, then where each of them ends."""
        cdef int64_t i, total = 0, level_count = 0
        cdef uint32_t j
        cdef int32_t before
        cdef Topic* topic
        cdef const int32_t* own
        for i in range(count):
            topic = &self.topics[<int32_t>rows[i]]
            total += topic.levels_size
            level_count += topic.level_count
        begin_values(levels, level_count, total)
        if ends.size == 0:
            put_i32(ends, 0)
        make_room(ends, 4 * <size_t>count)
        for i in range(count):
            topic = &self.topics[<int32_t>rows[i]]
            before, own = <int32_t>levels.data.size, <const int32_t*>topic.level_ends
            copy_padded(&levels.data, topic.levels, topic.levels_size)
            for j in range(topic.level_count):
                end_values(levels, before + own[j])
            (<int32_t*>(ends.data + ends.size))[0] = <int32_t>levels.rows
            ends.size += 4
        return 0
