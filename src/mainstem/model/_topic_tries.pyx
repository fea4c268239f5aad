# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The tries; `_level_tree.pyx` holds the nodes. The plain `tests/oracles/topic_tries.py` says the same."""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from mainstem.model._level_tree cimport HAS_MANY, HAS_ONE, IS_MANY, TAIL, LevelSearch, LevelTree, Node, grown

from mainstem.model.topic_dump import TOPICS_MAX, checked_dump, dump_head
from mainstem.model.errors import CorruptFrame, InvalidName, NotFound, Overloaded
from mainstem.model.topic_filter import MANY, MQTT_BYTES_MAX, ONE, filter_levels

cdef bytes _ONE = ONE
cdef bytes _MANY = MANY


class _Values(dict):
    """The values of one filter, once there are two; only the keys count."""


class _Respelled(tuple):
    """(filter, value) of a filter that is written differently from the one whose node it shares."""


cdef inline bint _push(ActiveSet* active, uint32_t node) noexcept nogil:
    cdef uint32_t* nodes
    if active.count == active.capacity:
        nodes = <uint32_t*>PyMem_RawRealloc(active.nodes, (active.capacity * 2 + 64) * sizeof(uint32_t))
        if nodes == NULL:
            return False
        active.nodes = nodes
        active.capacity = active.capacity * 2 + 64
    active.nodes[active.count] = node
    active.count += 1
    return True


cdef class FilterTrie(LevelTree):
    """Which of many filters mean this topic?

    A search keeps the set of nodes it may stand at and moves it level by level. A node enters the set at most once per
    level (only a `#` could be reached twice: `seen` stops that), so the work is bounded whatever the filters are.
    """

    def __cinit__(self):
        self.values = [None]
        self.values_free = []

    def __dealloc__(self):
        PyMem_RawFree(self.seen)

    def __len__(self):
        return self.pair_count

    def add(self, bytes topic_filter not None, object value):
        cdef bytes level
        cdef uint32_t node = 0, next_node
        cdef list levels = filter_levels(topic_filter)
        for level in levels:
            if len(level) > MQTT_BYTES_MAX:
                raise InvalidName(f"a filter level of {len(level)} bytes, limit {MQTT_BYTES_MAX}")
        hash(value)
        for level in levels:
            next_node = self.child(node, PyBytes_AS_STRING(level), <uint32_t>PyBytes_GET_SIZE(level))
            if not next_node:
                next_node = self.add_child(node, PyBytes_AS_STRING(level), <uint32_t>PyBytes_GET_SIZE(level))
                if level == _ONE:
                    self.nodes[node].marks |= HAS_ONE
                elif level == _MANY:
                    self.nodes[node].marks |= HAS_MANY
                    self.nodes[next_node].marks |= IS_MANY
            node = next_node
        self._add_value(node, _entry(topic_filter, levels, value))

    cdef int _add_value(self, uint32_t node, object entry) except -1:
        cdef uint32_t place = self.nodes[node].number
        cdef object held
        if not place:
            if self.values_free:
                place = self.values_free.pop()
                self.values[place] = entry
            else:
                place = <uint32_t>len(self.values)
                self.values.append(entry)
            self.nodes[node].number = place
        else:
            held = self.values[place]
            if type(held) is not _Values:
                if held == entry:
                    return 0
                self.values[place] = held = _Values({held: None})
            elif entry in held:
                return 0
            held[entry] = None
        self.pair_count += 1
        return 0

    def remove(self, bytes topic_filter not None, object value):
        """Whether the pair was there."""
        cdef bytes level
        cdef uint32_t node = 0, place
        cdef list levels = filter_levels(topic_filter)
        for level in levels:
            if len(level) > MQTT_BYTES_MAX:
                return False
            node = self.child(node, PyBytes_AS_STRING(level), <uint32_t>PyBytes_GET_SIZE(level))
            if not node:
                return False
        place = self.nodes[node].number
        if not place:
            return False
        entry = _entry(topic_filter, levels, value)
        held = self.values[place]
        if type(held) is _Values:
            if entry not in held:
                return False
            del held[entry]
            if held:
                self.pair_count -= 1
                return True
        elif held != entry:
            return False
        self.values[place] = None
        self.values_free.append(place)
        self.nodes[node].number = 0
        self.pair_count -= 1
        self._forget(node)
        return True

    cdef void _forget(self, uint32_t node) noexcept:
        """As `remove_branch`, and parents learn that a wildcard child is gone."""
        cdef uint32_t parent
        cdef bint one
        while node and not self.nodes[node].number and not self.nodes[node].first_child:
            parent = self.nodes[node].parent
            one = self.nodes[node].length == 2 and memcmp(self.arena + self.nodes[node].text, b"\0+", 2) == 0
            if one:
                self.nodes[parent].marks &= ~<uint16_t>HAS_ONE
            elif self.nodes[node].marks & IS_MANY:
                self.nodes[parent].marks &= ~<uint16_t>HAS_MANY
            self.unlink(node)
            node = parent
        self.remove_branch(node)

    def match(self, bytes topic not None):
        """The values of all filters that mean the topic: each once per filter it was added with."""
        return self.match_c(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))

    cdef list match_c(self, const char* topic, Py_ssize_t size):
        cdef ActiveSet active, following
        cdef list found = []
        cdef uint32_t i
        cdef bint done
        cdef object held, entry
        if not self.pair_count:
            return found
        active.nodes = following.nodes = NULL
        active.count = active.capacity = following.count = following.capacity = 0
        try:
            self._make_seen()
            done = self._search(topic, size, &active, &following)
            if not done:
                raise MemoryError()
            for i in range(active.count):
                if self.nodes[active.nodes[i]].number:
                    held = self.values[self.nodes[active.nodes[i]].number]
                    for entry in (held if type(held) is _Values else (held,)):
                        found.append(entry[1] if type(entry) is _Respelled else entry)
        finally:
            PyMem_RawFree(active.nodes)
            PyMem_RawFree(following.nodes)
        return found

    cdef int _make_seen(self) except -1:
        cdef uint32_t* seen
        if self.seen_capacity < self.node_end:
            seen = <uint32_t*>PyMem_RawRealloc(self.seen, <uint64_t>self.node_capacity * sizeof(uint32_t))
            if seen == NULL:
                raise MemoryError()
            memset(seen + self.seen_capacity, 0, (self.node_capacity - self.seen_capacity) * sizeof(uint32_t))
            self.seen = seen
            self.seen_capacity = self.node_capacity
        if self.epoch > 0xFFFF0000:  # before it wraps: a search needs one epoch per level, at most 65,536
            memset(self.seen, 0, <uint64_t>self.seen_capacity * sizeof(uint32_t))
            self.epoch = 0
        return 0

    cdef bint _search(self, const char* topic, Py_ssize_t size, ActiveSet* active, ActiveSet* following) noexcept nogil:
        """Leave the nodes at which the whole topic is used up in `active`. False: no memory."""
        cdef const char* level = topic
        cdef const char* end = topic + size
        cdef const char* slash
        cdef uint32_t length, i, node, child
        cdef bint hidden = size > 0 and topic[0] == c"$"
        cdef bint first = True
        cdef ActiveSet swap
        self.epoch += 1
        if not _push(active, 0):
            return False
        if not hidden and self.nodes[0].marks & HAS_MANY and not _push(active, self.child(0, b"\0#", 2)):
            return False
        while True:
            slash = <const char*>memchr(level, c"/", end - level) if level < end else NULL
            length = <uint32_t>((slash if slash != NULL else end) - level)
            self.epoch += 1
            following.count = 0
            for i in range(active.count):
                node = active.nodes[i]
                if self.nodes[node].marks & IS_MANY and not self._enter(following, node):
                    return False
                child = self.child(node, level, length)
                if child and not self._enter(following, child):
                    return False
                if self.nodes[node].marks & HAS_ONE and not (first and hidden) \
                        and not self._enter(following, self.child(node, b"\0+", 2)):
                    return False
            swap = active[0]
            active[0] = following[0]
            following[0] = swap
            if slash == NULL or active.count == 0:
                return True
            first = False
            level = slash + 1

    cdef bint _enter(self, ActiveSet* active, uint32_t node) noexcept nogil:
        if self.nodes[node].marks & IS_MANY:
            if self.seen[node] == self.epoch:
                return True
            self.seen[node] = self.epoch
        if not _push(active, node):
            return False
        if self.nodes[node].marks & HAS_MANY:
            return self._enter(active, self.child(node, b"\0#", 2))  # one deep: no `#` has a `#` below it
        return True


cdef object _entry(bytes topic_filter, list levels, object value):
    """The value itself where the filter is written in the one spelling all equal filters share, as it mostly is."""
    spelled = b"/".join([b"+" if level == _ONE else b"#" if level == _MANY else level for level in levels])
    if spelled == topic_filter and type(value) is not _Values and type(value) is not _Respelled:
        return value
    return _Respelled((topic_filter, value))


cdef class TopicTrie(LevelTree):
    """Which of many topics does this filter mean? Gives each topic a small number."""

    def __cinit__(self, uint32_t topics_max=TOPICS_MAX):
        self.topics_max = topics_max
        self.number_end = 1

    def __dealloc__(self):
        PyMem_RawFree(self.node_of)
        PyMem_RawFree(self.numbers_free)

    def __len__(self):
        return self.topic_count

    @property
    def numbers_end(self):
        """One more than the largest number ever given: the size of an array indexed by number."""
        return self.number_end

    def number(self, bytes topic not None):
        """The topic's number, from 1; a topic that is not yet there is added."""
        return self.number_c(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))

    def find(self, bytes topic not None):
        """The topic's number, or 0."""
        return self.find_c(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))

    cdef uint32_t find_c(self, const char* topic, Py_ssize_t size) noexcept nogil:
        cdef const char* end = topic + size
        cdef const char* slash
        cdef uint32_t node = 0
        while True:
            slash = <const char*>memchr(topic, c"/", end - topic) if topic < end else NULL
            node = self.child(node, topic, <uint32_t>((slash if slash != NULL else end) - topic))
            if self.nodes[node].marks & TAIL:
                if self.nodes[node].length != end - topic or memcmp(self.arena + self.nodes[node].text, topic, end - topic):
                    return 0
                return self.nodes[node].number
            if slash == NULL or not node:
                return self.nodes[node].number
            topic = slash + 1

    cdef uint32_t number_c(self, const char* topic, Py_ssize_t size) except 0:
        cdef uint32_t number = self.find_c(topic, size)
        if number:
            return number
        if self.topic_count >= self.topics_max:
            raise Overloaded(f"{len(self)} topics, limit {self.topics_max}: delete topics or shorten their retention")
        if size > MQTT_BYTES_MAX:
            raise InvalidName(f"topic of {size} bytes, limit {MQTT_BYTES_MAX}")
        if self.free_stale:
            self._list_free()
        number = self.numbers_free[self.free_count - 1] if self.free_count else self.number_end
        self._insert(0, topic, size, number, NULL)
        if self.free_count:
            self.free_count -= 1
        else:
            self.number_end += 1
        return number

    cdef int _insert(self, uint32_t node, const char* topic, Py_ssize_t size, uint32_t number, Trail* trail) except -1:
        """Add a topic that is not there below `node`; with a trail, note its nodes and where the level of each ends."""
        cdef const char* level = topic
        cdef const char* end = topic + size
        cdef const char* slash
        cdef uint32_t parent, length
        self._grow_numbers(<uint64_t>number + 1)
        while True:
            slash = <const char*>memchr(level, c"/", end - level) if level < end else NULL
            length = <uint32_t>((slash if slash != NULL else end) - level)
            parent = node
            node = self.child(parent, level, length)
            if not node:
                node = self._add_tail(parent, level, length, <uint32_t>(end - level))
                slash = NULL
            elif self.nodes[node].marks & TAIL:
                self._cut_tail(node)
            if trail != NULL:
                trail.nodes[trail.depth] = node
                trail.ends[trail.depth] = <uint32_t>(level + length - trail.name)
                trail.depth += 1
            if slash == NULL:
                break
            level = slash + 1
        self.nodes[node].number = number
        self.node_of[number] = node
        self.topic_count += 1
        return 0

    cdef uint32_t _add_tail(self, uint32_t parent, const char* text, uint32_t first, uint32_t length) except 0:
        """All that is left of a topic, as one node; nothing has its first level yet."""
        self.grow_arena(self.arena_end + length)
        memcpy(self.arena + self.arena_end, text, length)
        cdef uint32_t node = self.link_child(parent, <uint32_t>self.arena_end, first)
        self.arena_end += length
        self.nodes[node].length = <uint16_t>length
        if first < length:
            self.nodes[node].marks |= TAIL
        return node

    cdef int _cut_tail(self, uint32_t node) except -1:
        """Another topic has its first level: what follows that becomes a child, with the number."""
        cdef uint32_t first = self.first_length(node), number = self.nodes[node].number
        cdef uint32_t rest = self.nodes[node].text + first + 1, length = self.nodes[node].length - first - 1
        cdef const char* slash = <const char*>memchr(self.arena + rest, c"/", length) if length else NULL
        cdef uint32_t child = self.link_child(
            node, rest, <uint32_t>(slash - (self.arena + rest)) if slash != NULL else length
        )
        self.nodes[child].length = <uint16_t>length
        self.nodes[child].number = number
        if slash != NULL:
            self.nodes[child].marks |= TAIL
        self.node_of[number] = child
        self.nodes[node].length = <uint16_t>first
        self.nodes[node].number = 0
        self.nodes[node].marks &= ~<uint16_t>TAIL
        self.arena_dead += 1  # the slash
        self.removals += 1  # a search that stands here begins again
        return 0

    cdef int _insert_along(self, Trail* trail, const char* topic, Py_ssize_t size, uint32_t number) except -1:
        """As `_insert`, beginning where the topic parts from the one before it."""
        cdef uint32_t shared = 0, depth = 0, limit = min(<uint32_t>size, trail.size)
        while shared < limit and topic[shared] == trail.name[shared]:
            shared += 1
        while depth < trail.depth and trail.ends[depth] <= shared and trail.ends[depth] < size \
                and topic[trail.ends[depth]] == c"/" and not self.nodes[trail.nodes[depth]].marks & TAIL:
            depth += 1
        cdef uint32_t start = trail.ends[depth - 1] + 1 if depth else 0
        trail.name = topic
        trail.size = <uint32_t>size
        trail.depth = depth
        return self._insert(trail.nodes[depth - 1] if depth else 0, topic + start, size - start, number, trail)

    cdef int _grow_numbers(self, uint64_t end) except -1:
        cdef uint64_t capacity
        cdef uint32_t* node_of
        if end > self.number_capacity:
            capacity = grown(self.number_capacity, end)
            node_of = <uint32_t*>PyMem_RawRealloc(self.node_of, capacity * sizeof(uint32_t))
            if node_of == NULL:
                raise MemoryError()
            memset(node_of + self.number_capacity, 0, (capacity - self.number_capacity) * sizeof(uint32_t))
            self.node_of = node_of
            self.number_capacity = <uint32_t>capacity
        return 0

    def name(self, uint32_t number):
        cdef uint32_t node = self._node(number), at = node
        cdef Py_ssize_t size = -1
        while at:
            size += self.nodes[at].length + 1
            at = self.nodes[at].parent
        cdef bytes name = PyBytes_FromStringAndSize(NULL, size)
        self._spell(node, PyBytes_AS_STRING(name) + size)
        return name

    cdef uint32_t _node(self, uint32_t number) except 0:
        if not 0 < number < self.number_end or not self.node_of[number]:
            raise NotFound(f"there is no topic number {number}")
        return self.node_of[number]

    cdef void _spell(self, uint32_t node, char* end) noexcept nogil:
        """Write the name backwards, from its end."""
        while node:
            end -= self.nodes[node].length
            memcpy(end, self.arena + self.nodes[node].text, self.nodes[node].length)
            node = self.nodes[node].parent
            if node:
                end -= 1
                end[0] = c"/"

    def remove(self, uint32_t number):
        """Forget the topic; its number may be given to another."""
        cdef uint32_t node = self._node(number)
        if not self.free_stale:
            self._free_number(number)
        self.node_of[number] = 0
        self.nodes[node].number = 0
        self.topic_count -= 1
        self.removals += 1
        self.remove_branch(node)

    def put(self, uint32_t number, bytes topic not None):
        """Add a topic under the number it had before; whoever has either now is removed."""
        self._put(number, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))

    def put_all(self, const uint8_t[::1] packed not None):
        """The same for many: per topic u32 number, u16 length, the name, little-endian. False if that does not add up."""
        cdef Py_ssize_t at = 0, size = packed.shape[0]
        cdef uint32_t number, count = 0
        cdef uint16_t length
        while at + 6 <= size:
            memcpy(&length, &packed[at + 4], 2)
            at += 6 + length
            count += 1
        self.reserve(count, size)
        at = 0
        while at + 6 <= size:
            memcpy(&number, &packed[at], 4)
            memcpy(&length, &packed[at + 4], 2)
            at += 6 + length
            if at > size:
                return False
            self._put(number, <const char*>&packed[0] + at - length, length)
        return at == size

    cdef int _put(self, uint32_t number, const char* topic, Py_ssize_t size) except -1:
        cdef uint32_t before = self.find_c(topic, size)
        if not 0 < number < 0xFFFFFFFF or size > MQTT_BYTES_MAX:
            raise InvalidName(f"no topic of {size} bytes can have the number {number}")
        self.free_stale = True
        if before:
            self.remove(before)
        if number < self.number_end and self.node_of[number]:
            self.remove(number)
        self._insert(0, topic, size, number, NULL)
        self.number_end = max(self.number_end, number + 1)
        return 0

    cdef int _list_free(self) except -1:
        cdef uint32_t number
        self.free_count = 0
        for number in range(self.number_end - 1, 0, -1):
            if not self.node_of[number]:
                self._free_number(number)
        self.free_stale = False
        return 0

    cdef int _free_number(self, uint32_t number) except -1:
        cdef uint64_t capacity
        cdef uint32_t* numbers
        if self.free_count == self.free_capacity:
            capacity = grown(self.free_capacity, 64)
            numbers = <uint32_t*>PyMem_RawRealloc(self.numbers_free, capacity * sizeof(uint32_t))
            if numbers == NULL:
                raise MemoryError()
            self.numbers_free = numbers
            self.free_capacity = <uint32_t>capacity
        self.numbers_free[self.free_count] = number
        self.free_count += 1
        return 0

    def match(self, bytes topic_filter not None):
        """The numbers of all topics that the filter means, in no particular order."""
        cdef LevelSearch search = LevelSearch(self, topic_filter)
        search.run()
        numbers = array("I")
        numbers.frombytes((<const char*>search.found)[:search.found_count * sizeof(uint32_t)])
        return numbers

    def bitmap(self, bytes topic_filter not None):
        """The same as bits: number n is bit n % 8 of byte n // 8."""
        cdef LevelSearch search = LevelSearch(self, topic_filter)
        cdef uint64_t i
        search.run()
        bits = bytearray((self.number_end + 7) // 8)
        cdef uint8_t[::1] view = bits
        for i in range(search.found_count):
            view[search.found[i] >> 3] |= 1 << (search.found[i] & 7)
        return bits

    def reserve(self, uint32_t count, uint64_t names_bytes):
        """So many topics are about to come, with names of so many bytes: few of them will share nothing."""
        self.grow_nodes(<uint64_t>self.node_end + count + count // 8)
        self.grow_slots(<uint64_t>self.node_count + count + count // 8)
        self.grow_arena(self.arena_end + names_bytes // 2)

    def memory_bytes(self):
        """All that is allocated, used or not."""
        return (<uint64_t>self.node_capacity * sizeof(Node) + (<uint64_t>self.slot_mask + 1) * sizeof(uint64_t)
                + (<uint64_t>self.number_capacity + self.free_capacity) * sizeof(uint32_t) + self.arena_capacity)

    def dump(self):
        """In the format drawn in topic_tries.py: depth first."""
        cdef uint32_t node = 0, number
        cdef uint16_t length
        cdef bytearray body = bytearray(self._dump_size())
        cdef char* at = <char*>body
        while True:
            if self.nodes[node].first_child:
                node = self.nodes[node].first_child
            else:
                while node and not self.nodes[node].next_sibling:
                    node = self.nodes[node].parent
                if not node:
                    break
                node = self.nodes[node].next_sibling
            number = self.nodes[node].number
            if number:
                length = self._length(node)
                memcpy(at, &number, 4)
                memcpy(at + 4, &length, 2)
                at += 6 + length
                self._spell(node, at)
        return dump_head(len(self), self.number_end, body) + body

    cdef uint16_t _length(self, uint32_t node) noexcept nogil:
        cdef uint32_t size = 0
        while node:
            size += self.nodes[node].length + 1
            node = self.nodes[node].parent
        return <uint16_t>(size - 1)

    cdef uint64_t _dump_size(self) noexcept nogil:
        cdef uint64_t size = 0
        cdef uint32_t number
        for number in range(1, self.number_end):
            if self.node_of[number]:
                size += 6 + self._length(self.node_of[number])
        return size

    def load(self, object data):
        """Replace everything by what `dump` wrote. Raises CorruptFrame for anything else, and is then empty."""
        self._clear()
        count, end, body = checked_dump(data)
        self._grow_numbers(end)
        self.number_end = end
        self.reserve(count, len(body))
        cdef uint32_t* room = <uint32_t*>PyMem_RawMalloc(2 * 65536 * sizeof(uint32_t))
        if room == NULL:
            raise MemoryError()
        try:
            self._load(body, count, Trail(name=NULL, size=0, depth=0, nodes=room, ends=room + 65536))
        finally:
            PyMem_RawFree(room)

    cdef int _load(self, const uint8_t[::1] body, uint32_t count, Trail trail) except -1:
        cdef uint64_t at = 0, size = body.shape[0]
        cdef uint32_t number, i
        cdef uint16_t length
        for i in range(count):
            if at + 6 > size:
                self._reject()
            memcpy(&number, &body[at], 4)
            memcpy(&length, &body[at + 4], 2)
            at += 6 + length
            if at > size or not 0 < number < self.number_end or self.node_of[number]:
                self._reject()
            self._insert_along(&trail, <const char*>&body[0] + at - length, length, number)
        self.free_stale = True
        return 0

    cdef int _reject(self) except -1:
        self._clear()
        raise CorruptFrame("the topic dictionary is damaged: its entries do not add up")

    cdef void _clear(self) noexcept:
        self.removals += 1
        self.node_end = 1
        self.node_count = self.node_free = self.free_count = self.topic_count = 0
        self.free_stale = False
        self.number_end = 1
        self.arena_end = self.arena_dead = 0
        self.nodes[0].first_child = 0
        memset(self.slots, 0, (<uint64_t>self.slot_mask + 1) * sizeof(uint64_t))
        if self.number_capacity:
            memset(self.node_of, 0, <uint64_t>self.number_capacity * sizeof(uint32_t))
