cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef struct Node:
    uint32_t parent
    uint32_t first_child
    uint32_t next_sibling      # of a free node: the next free node
    uint32_t previous_sibling
    uint32_t text              # where its text begins in the arena: one level, or several of a TAIL
    uint32_t number            # TopicTrie: the topic's number; FilterTrie: the place of its values; 0 = none
    uint16_t length
    uint16_t marks

cdef enum:  # marks
    LIVE = 1
    IS_MANY = 2
    HAS_ONE = 4
    HAS_MANY = 8
    TAIL = 16   # all levels that are left of a topic, of which nothing else has the first one

cdef inline uint64_t grown(uint64_t capacity, uint64_t wanted) noexcept nogil:
    """By half while small, by an eighth when large: memory stays close to what is used."""
    cdef uint64_t step = capacity // 2 if capacity < 65536 else capacity // 8
    return max(wanted, capacity + step + 16)

cdef class LevelTree:
    cdef Node* nodes
    cdef uint64_t* slots           # hash and node: a look-up touches no node but the right one
    cdef char* arena
    cdef uint32_t node_end, node_capacity, node_free, node_count, slot_mask
    cdef uint64_t arena_end, arena_capacity, arena_dead, seed, removals

    cdef uint32_t child(self, uint32_t parent, const char* text, uint32_t length) noexcept nogil
    cdef uint32_t add_child(self, uint32_t parent, const char* text, uint32_t length) except 0
    cdef uint32_t link_child(self, uint32_t parent, uint32_t text, uint32_t length) except 0
    cdef uint32_t first_length(self, uint32_t node) noexcept nogil
    cdef void remove_branch(self, uint32_t leaf) noexcept
    cdef int grow_nodes(self, uint64_t count) except -1
    cdef int grow_slots(self, uint64_t count) except -1
    cdef int grow_arena(self, uint64_t size) except -1
    cdef void compact_arena(self) noexcept
    cdef void unlink(self, uint32_t node) noexcept

cdef struct Wanted:
    const char* text
    uint32_t length
    uint32_t kind     # 0 a literal level, else HAS_ONE or IS_MANY

@cython.final
cdef class LevelSearch:
    cdef LevelTree trie
    cdef list levels
    cdef Wanted* wanted
    cdef uint64_t* places         # one set per depth, and behind them one for the levels of a tail
    cdef uint8_t* single          # per depth: the node was looked up, its siblings do not count
    cdef uint32_t count, words, depth, depth_capacity, node
    cdef uint32_t* found
    cdef uint64_t found_count, found_capacity

    cdef int run(self) except -1
    cdef int _deepen(self) except -1
    cdef void _place(self, uint64_t* places, uint32_t place) noexcept nogil
    cdef void _begin(self) noexcept
    cdef bint _advance(self) except -1
    cdef bint _literal(self, uint64_t places) noexcept nogil
    cdef uint32_t _only_child(self) noexcept nogil
    cdef bint _step(self, uint32_t child) noexcept nogil
    cdef bint _step_level(self, uint64_t* before, const char* text, uint32_t length, bint hidden) noexcept nogil
    cdef bint _step_tail(self, uint32_t child) noexcept nogil
    cdef bint _visit(self, uint32_t child) except -1
