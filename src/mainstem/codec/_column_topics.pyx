# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Topic names to what a row says of them: a hash table over the raw bytes, filled by one call per distinct topic."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset


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
                self.forget()
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
        with gil:
            if self.count >= TOPICS_MAX:
                self.forget()
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
        joined = b"".join(levels)
        sizes = b"".join([len(level).to_bytes(4, "little") for level in levels])
        self.kept.append((kafka, canonical, joined, sizes))
        topic.kafka, topic.kafka_size = PyBytes_AS_STRING(kafka), <uint32_t>len(kafka)
        topic.canonical, topic.canonical_size = PyBytes_AS_STRING(canonical), <uint32_t>len(canonical)
        topic.levels, topic.level_sizes = PyBytes_AS_STRING(joined), PyBytes_AS_STRING(sizes)
        topic.level_count = <uint32_t>len(levels)
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
