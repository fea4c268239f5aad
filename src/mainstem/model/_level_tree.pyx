# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What both tries stand on: names cut into levels, as a tree in a few flat arrays.

28-byte nodes in one array, their texts in one arena, and one open-addressing hash table (parent, text) -> node with
linear probing, seeded so that nobody can aim at it. Node 0 is the root; as a link 0 means none.

Where a topic parts from all others, what is left of it is one node, a TAIL: `site/4711/temperature/celsius` costs one node
beyond those it shares. The table knows a tail by its first level. It is cut in two when another topic shares that.
"""

import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

from mainstem.model.topic_filter import MANY, ONE, filter_levels

cdef extern from *:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    static inline uint64_t mainstem_mix(uint64_t a, uint64_t b) {
    #ifdef __SIZEOF_INT128__
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    #else
        a ^= b; a *= 0xff51afd7ed558ccdULL; a ^= a >> 32; a *= 0xc4ceb9fe1a85ec53ULL; return a ^ (a >> 29);
    #endif
    }
    static inline uint32_t mainstem_level_hash(uint64_t seed, uint32_t parent, const char *text, uint32_t length) {
        uint64_t state = mainstem_mix(seed ^ parent, 0x9e3779b97f4a7c15ULL ^ length), word;
        for (; length >= 8; text += 8, length -= 8) {
            memcpy(&word, text, 8);
            state = mainstem_mix(state ^ word, 0xe7037ed1a0b428dbULL ^ seed);
        }
        word = 0;
        if (length) memcpy(&word, text, length);  /* the text of an empty level may be NULL */
        return (uint32_t)mainstem_mix(state ^ word, 0x8ebc6af09c88c6e3ULL ^ seed);
    }
    /* Look-ups hit a large table at random: with 4 KiB pages most of their time is address translation. */
    static inline void *mainstem_zeroed_table(size_t size) {
        void *table = NULL;
        if (size < ((size_t)4 << 20)) return calloc(1, size);
        if (posix_memalign(&table, (size_t)2 << 20, size)) return NULL;
    #ifdef MADV_HUGEPAGE
        madvise(table, size, MADV_HUGEPAGE);
    #endif
        memset(table, 0, size);
        return table;
    }
    #define mainstem_lowest_bit(word) ((uint32_t)__builtin_ctzll(word))
    """
    uint32_t mainstem_level_hash(uint64_t, uint32_t, const char*, uint32_t) noexcept nogil
    uint32_t mainstem_lowest_bit(uint64_t) noexcept nogil
    void* mainstem_zeroed_table(size_t) noexcept nogil

cdef enum:
    NODES_PER_BREATH = 20_000   # a search lets other threads run this often (about every millisecond)
    RESTARTS_MAX = 3

cdef uint64_t ARENA_DEAD_MAX = 1 << 20
cdef bytes _ONE = ONE
cdef bytes _MANY = MANY


cdef class LevelTree:
    def __cinit__(self):
        self.seed = int.from_bytes(os.urandom(8), "little") | 1
        self.grow_nodes(16)
        self.grow_slots(16)
        memset(self.nodes, 0, sizeof(Node))
        self.nodes[0].marks = LIVE
        self.node_end = 1

    def __dealloc__(self):
        PyMem_RawFree(self.nodes)
        free(self.slots)
        PyMem_RawFree(self.arena)

    cdef int grow_nodes(self, uint64_t count) except -1:
        if count <= self.node_capacity:
            return 0
        cdef uint64_t capacity = grown(self.node_capacity, count)
        if capacity >= 0xFFFFFFFF:
            raise MemoryError("more than four thousand million levels")
        cdef Node* nodes = <Node*>PyMem_RawRealloc(self.nodes, capacity * sizeof(Node))
        if nodes == NULL:
            raise MemoryError()
        self.nodes = nodes
        self.node_capacity = <uint32_t>capacity
        return 0

    cdef int grow_slots(self, uint64_t count) except -1:
        """Room for `count` nodes at a load of at most 4/5."""
        cdef uint64_t capacity = self.slot_mask + 1 if self.slots != NULL else 16
        while capacity * 4 < count * 5:
            capacity *= 2
        if self.slots != NULL and capacity == <uint64_t>self.slot_mask + 1:
            return 0
        cdef uint64_t* slots = <uint64_t*>mainstem_zeroed_table(capacity * sizeof(uint64_t))
        if slots == NULL:
            raise MemoryError()
        cdef uint32_t mask = <uint32_t>(capacity - 1), at
        cdef uint64_t old
        if self.slots != NULL:
            for old in range(<uint64_t>self.slot_mask + 1):
                if self.slots[old]:
                    at = <uint32_t>(self.slots[old] >> 32) & mask
                    while slots[at]:
                        at = (at + 1) & mask
                    slots[at] = self.slots[old]
        free(self.slots)
        self.slots = slots
        self.slot_mask = mask
        return 0

    cdef int grow_arena(self, uint64_t size) except -1:
        if size <= self.arena_capacity:
            return 0
        cdef uint64_t capacity = grown(self.arena_capacity, size)
        if size > 0xFFFFFFFF:
            raise MemoryError("more than 4 GiB of level names")
        cdef char* arena = <char*>PyMem_RawRealloc(self.arena, capacity)
        if arena == NULL:
            raise MemoryError()
        self.arena = arena
        self.arena_capacity = capacity
        return 0

    cdef void compact_arena(self) noexcept:
        """Copy what is in use. Without memory for the copy the waste simply stays."""
        cdef uint64_t capacity = self.arena_end - self.arena_dead + 16, end = 0
        cdef char* arena = <char*>PyMem_RawMalloc(capacity)
        cdef uint32_t node
        if arena == NULL:
            return
        for node in range(1, self.node_end):
            if self.nodes[node].marks & LIVE:
                memcpy(arena + end, self.arena + self.nodes[node].text, self.nodes[node].length)
                self.nodes[node].text = <uint32_t>end
                end += self.nodes[node].length
        PyMem_RawFree(self.arena)
        self.arena = arena
        self.arena_capacity = capacity
        self.arena_end = end
        self.arena_dead = 0

    cdef uint32_t child(self, uint32_t parent, const char* text, uint32_t length) noexcept nogil:
        """The child whose (first) level has that text, or 0."""
        cdef uint32_t hash = mainstem_level_hash(self.seed, parent, text, length)
        cdef uint32_t at = hash & self.slot_mask
        cdef uint64_t slot = self.slots[at]
        cdef Node* node
        while slot:
            if slot >> 32 == hash:
                node = self.nodes + <uint32_t>slot
                if node.parent == parent \
                        and (node.length == length or (node.marks & TAIL and node.length > length
                                                       and self.arena[node.text + length] == c"/")) \
                        and memcmp(self.arena + node.text, text, length) == 0:
                    return <uint32_t>slot
            at = (at + 1) & self.slot_mask
            slot = self.slots[at]
        return 0

    cdef uint32_t add_child(self, uint32_t parent, const char* text, uint32_t length) except 0:
        """A child of one level that is known not to be there."""
        self.grow_arena(self.arena_end + length)
        if length:  # an empty level may be the first: there is no arena yet
            memcpy(self.arena + self.arena_end, text, length)
        cdef uint32_t index = self.link_child(parent, <uint32_t>self.arena_end, length)
        self.arena_end += length
        return index

    cdef uint32_t link_child(self, uint32_t parent, uint32_t text, uint32_t length) except 0:
        """A child whose text lies in the arena: one level."""
        cdef uint32_t index
        self.grow_slots(self.node_count + 1)
        if self.node_free:
            index = self.node_free
            self.node_free = self.nodes[index].next_sibling
        else:
            self.grow_nodes(<uint64_t>self.node_end + 1)
            index = self.node_end
            self.node_end += 1
        cdef Node* node = self.nodes + index
        memset(node, 0, sizeof(Node))
        node.parent = parent
        node.text = text
        node.length = <uint16_t>length
        node.marks = LIVE
        node.next_sibling = self.nodes[parent].first_child
        if node.next_sibling:
            self.nodes[node.next_sibling].previous_sibling = index
        self.nodes[parent].first_child = index
        cdef uint64_t hash = mainstem_level_hash(self.seed, parent, self.arena + text, length)
        cdef uint32_t at = <uint32_t>hash & self.slot_mask
        while self.slots[at]:
            at = (at + 1) & self.slot_mask
        self.slots[at] = hash << 32 | index
        self.node_count += 1
        return index

    cdef uint32_t first_length(self, uint32_t index) noexcept nogil:
        """Of the first level of its text."""
        cdef Node* node = self.nodes + index
        cdef const char* text = self.arena + node.text
        if not node.marks & TAIL:
            return node.length
        return <uint32_t>(<const char*>memchr(text, c"/", node.length) - text)

    cdef void remove_branch(self, uint32_t leaf) noexcept:
        """Free the node and its ancestors as far as nothing hangs on them."""
        cdef uint32_t parent
        while leaf and not self.nodes[leaf].number and not self.nodes[leaf].first_child:
            parent = self.nodes[leaf].parent
            self.unlink(leaf)
            leaf = parent
        if self.arena_dead > ARENA_DEAD_MAX and self.arena_dead * 2 > self.arena_end:
            self.compact_arena()

    cdef void unlink(self, uint32_t index) noexcept:
        cdef Node* node = self.nodes + index
        cdef uint32_t at, home
        cdef uint32_t hole = mainstem_level_hash(
            self.seed, node.parent, self.arena + node.text, self.first_length(index)
        ) & self.slot_mask
        while <uint32_t>self.slots[hole] != index:
            hole = (hole + 1) & self.slot_mask
        at = (hole + 1) & self.slot_mask
        while self.slots[at]:  # close the gap: move up whoever may stand nearer to its home
            home = <uint32_t>(self.slots[at] >> 32) & self.slot_mask
            if ((at - home) & self.slot_mask) >= ((at - hole) & self.slot_mask):
                self.slots[hole] = self.slots[at]
                hole = at
            at = (at + 1) & self.slot_mask
        self.slots[hole] = 0
        if node.previous_sibling:
            self.nodes[node.previous_sibling].next_sibling = node.next_sibling
        else:
            self.nodes[node.parent].first_child = node.next_sibling
        if node.next_sibling:
            self.nodes[node.next_sibling].previous_sibling = node.previous_sibling
        self.arena_dead += node.length
        node.marks = 0
        node.next_sibling = self.node_free
        self.node_free = index
        self.node_count -= 1


@cython.final
cdef class LevelSearch:
    """The numbers of the nodes that a filter means: one walk, depth first, each node at most once.

    With each node goes the set of places in the filter that it may stand at, as bits; place `count` is the end. A set
    of one literal place needs no walk over the children but one look-up.
    """

    def __cinit__(self, LevelTree trie, bytes topic_filter):
        cdef uint32_t i
        cdef bytes level
        self.trie = trie
        self.levels = filter_levels(topic_filter)
        self.count = <uint32_t>len(self.levels)
        self.words = (self.count + 64) // 64
        self.wanted = <Wanted*>PyMem_RawMalloc(self.count * sizeof(Wanted))
        if self.wanted == NULL:
            raise MemoryError()
        for i in range(self.count):
            level = self.levels[i]
            self.wanted[i].text = PyBytes_AS_STRING(level)
            self.wanted[i].length = <uint32_t>PyBytes_GET_SIZE(level)
            self.wanted[i].kind = HAS_ONE if level == _ONE else IS_MANY if level == _MANY else 0
        self._deepen()

    def __dealloc__(self):
        PyMem_RawFree(self.wanted)
        PyMem_RawFree(self.places)
        PyMem_RawFree(self.single)
        PyMem_RawFree(self.found)

    cdef int _deepen(self) except -1:
        cdef uint32_t capacity = self.depth_capacity * 2 + 16
        cdef uint64_t* places = <uint64_t*>PyMem_RawRealloc(self.places, (<uint64_t>capacity + 1) * self.words * 8)
        if places == NULL:
            raise MemoryError()
        self.places = places
        cdef uint8_t* single = <uint8_t*>PyMem_RawRealloc(self.single, capacity)
        if single == NULL:
            raise MemoryError()
        self.single = single
        self.depth_capacity = capacity
        return 0

    cdef void _place(self, uint64_t* places, uint32_t place) noexcept nogil:
        places[place >> 6] |= <uint64_t>1 << (place & 63)
        if place < self.count and self.wanted[place].kind == IS_MANY:
            place += 1
            places[place >> 6] |= <uint64_t>1 << (place & 63)

    cdef int run(self) except -1:
        """Numbers into `found`. Breathes: if topics were removed meanwhile it begins again, at last without breathing."""
        cdef uint32_t breath = 0, restarts = 0
        cdef uint64_t removals = self.trie.removals
        self._begin()
        while self._advance():
            breath += 1
            if breath >= NODES_PER_BREATH and restarts < RESTARTS_MAX:
                breath = 0
                with nogil:
                    pass
                if self.trie.removals != removals:
                    removals = self.trie.removals
                    restarts += 1
                    self._begin()
        return 0

    cdef void _begin(self) noexcept:
        self.depth = 0
        self.node = 0
        self.found_count = 0
        memset(self.places, 0, self.words * 8)
        self._place(self.places, 0)

    cdef bint _advance(self) except -1:
        """To the next node of the walk; False at its end."""
        cdef LevelTree trie = self.trie
        cdef uint32_t child
        if self.depth + 1 >= self.depth_capacity:
            self._deepen()
        child = self._only_child()
        if child:
            self.depth += 1
            self.single[self.depth] = True
            return self._visit(child)
        if self.words > 1 or not self._literal(self.places[self.depth]):
            child = trie.nodes[self.node].first_child
            self.depth += 1
            while child:
                if self._step(child):
                    self.single[self.depth] = False
                    return self._visit(child)
                child = trie.nodes[child].next_sibling
            self.depth -= 1
        while self.depth:  # up, until somebody has a sibling left
            if not self.single[self.depth]:
                child = trie.nodes[self.node].next_sibling
                while child:
                    if self._step(child):
                        return self._visit(child)
                    child = trie.nodes[child].next_sibling
            self.node = trie.nodes[self.node].parent
            self.depth -= 1
        return False

    cdef bint _literal(self, uint64_t places) noexcept nogil:
        """Whether the set is one place that wants a literal level (or the end, which wants none)."""
        cdef uint32_t place = mainstem_lowest_bit(places)
        return places & (places - 1) == 0 and (place == self.count or self.wanted[place].kind == 0)

    cdef uint32_t _only_child(self) noexcept nogil:
        cdef uint64_t places
        cdef uint32_t place, child
        if self.words > 1:
            return 0
        places = self.places[self.depth]
        place = mainstem_lowest_bit(places)
        if not self._literal(places) or place == self.count:
            return 0
        child = self.trie.child(self.node, self.wanted[place].text, self.wanted[place].length)
        if child:
            self.depth += 1
            self.places[self.depth] = 0
            self._place(self.places + self.depth, place + 1)
            if not self._step_tail(child):
                child = 0
            self.depth -= 1
        return child

    cdef bint _step(self, uint32_t child) noexcept nogil:
        """The set of the child from that of its parent; whether anything is left of it. `depth` is the child's."""
        cdef const char* text = self.trie.arena + self.trie.nodes[child].text
        cdef bint hidden = self.depth == 1 and self.trie.nodes[child].length > 0 and text[0] == c"$"
        cdef uint64_t* before = self.places + (self.depth - 1) * self.words
        return self._step_level(before, text, self.trie.first_length(child), hidden) and self._step_tail(child)

    cdef bint _step_tail(self, uint32_t child) noexcept nogil:
        """On through the other levels of a tail; the set of its depth is that of the first one."""
        cdef Node* node = self.trie.nodes + child
        cdef uint64_t* before = self.places + <uint64_t>self.depth_capacity * self.words
        cdef const char* level
        cdef const char* end
        cdef const char* slash
        if not node.marks & TAIL:
            return True
        level = self.trie.arena + node.text + self.trie.first_length(child)
        end = self.trie.arena + node.text + node.length
        while level < end:  # at a slash
            level += 1
            slash = <const char*>memchr(level, c"/", end - level) if level < end else NULL
            memcpy(before, self.places + self.depth * self.words, self.words * 8)
            if not self._step_level(before, level, <uint32_t>((slash if slash != NULL else end) - level), False):
                return False
            level = slash if slash != NULL else end
        return True

    cdef bint _step_level(self, uint64_t* before, const char* text, uint32_t length, bint hidden) noexcept nogil:
        """The set of this depth, from the one before a level."""
        cdef uint64_t* places = self.places + self.depth * self.words
        cdef bint any_left = False
        cdef uint32_t word, place
        cdef uint64_t left
        memset(places, 0, self.words * 8)
        for word in range(self.words):
            left = before[word]
            while left:
                place = word * 64 + mainstem_lowest_bit(left)
                left &= left - 1
                if place == self.count:
                    continue
                if self.wanted[place].kind:
                    if not hidden:
                        self._place(places, place + (self.wanted[place].kind == HAS_ONE))
                        any_left = True
                elif self.wanted[place].length == length and not (hidden and place) \
                        and memcmp(self.wanted[place].text, text, length) == 0:
                    self._place(places, place + 1)
                    any_left = True
        return any_left

    cdef bint _visit(self, uint32_t child) except -1:
        cdef uint32_t* found
        cdef uint64_t last = (self.places + self.depth * self.words)[self.count >> 6]
        self.node = child
        if self.trie.nodes[child].number and last >> (self.count & 63) & 1:
            if self.found_count == self.found_capacity:
                found = <uint32_t*>PyMem_RawRealloc(self.found, (self.found_capacity * 2 + 64) * sizeof(uint32_t))
                if found == NULL:
                    raise MemoryError()
                self.found = found
                self.found_capacity = self.found_capacity * 2 + 64
            self.found[self.found_count] = self.trie.nodes[child].number
            self.found_count += 1
        return True
