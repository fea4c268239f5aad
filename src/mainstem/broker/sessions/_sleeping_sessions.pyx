# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sessions whose clients are away, as the bytes a snapshot has of them: looked at, packed and loaded by the million.

    asleep = the value of its "session" entry, then that of its "place" entry (`sessions.py`), both MessagePack

Only what the broker itself wrote is read here. What looks otherwise (another version's, or damaged) is not taken: its
caller decodes it the long way, and is told what is wrong with it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_SetItem
from cpython.list cimport PyList_Append
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from zlib import crc32

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint32_t mainstem_get32(const unsigned char *at) {
        uint32_t value; memcpy(&value, at, 4); return __builtin_bswap32(value);
    }
    static inline uint64_t mainstem_get64(const unsigned char *at) {
        uint64_t value; memcpy(&value, at, 8); return __builtin_bswap64(value);
    }
    static inline unsigned char *mainstem_set32(unsigned char *at, uint32_t value) {
        value = __builtin_bswap32(value); memcpy(at, &value, 4); return at + 4;
    }
    """
    uint32_t mainstem_get32(const uint8_t*) noexcept nogil
    uint64_t mainstem_get64(const uint8_t*) noexcept nogil
    uint8_t* mainstem_set32(uint8_t*, uint32_t) noexcept nogil

cdef enum:
    SIZES_BYTES = 8
    NEVER = 0xFFFFFFFF
    NULL_VALUE = 0xFFFFFFFF
    NS = 1000000000

cdef bytes _SESSION = b"session\0"
cdef bytes _PLACE = b"place\0"
cdef bytes _RECEIVED = b"received\0"
cdef bytes _SHARE = b"$share/"
cdef bytes _NO_PLACE = b"\x92\x00\x90"  # position 0, nothing in flight


cdef struct Reader:
    const uint8_t* at
    const uint8_t* end
    bint bad


cdef struct Facts:
    uint64_t expiry_seconds, left_ns, oldest
    uint32_t subscriptions, place_at, left_at, left_end
    bint holds  # it subscribes with QoS 1 or 2
    bint concerns_others  # No Local, or a shared subscription
    bint in_flight


cdef inline uint64_t _big_endian(Reader* reader, uint32_t size) noexcept nogil:
    cdef uint64_t value = 0
    if reader.end - reader.at < size:
        reader.bad = True
        return 0
    while size:
        value = value << 8 | reader.at[0]
        reader.at += 1
        size -= 1
    return value


cdef uint64_t _number(Reader* reader) noexcept nogil:
    """An integer that is not negative, or a boolean."""
    cdef uint8_t code
    if reader.at >= reader.end:
        reader.bad = True
        return 0
    code = reader.at[0]
    reader.at += 1
    if code < 0x80:
        return code
    if code == 0xC2 or code == 0xC3:
        return code & 1
    if code < 0xCC or code > 0xCF:
        reader.bad = True
        return 0
    return _big_endian(reader, 1 << (code - 0xCC))


cdef uint32_t _length(Reader* reader, uint8_t fix, uint8_t fix_mask, uint8_t code_16) noexcept nogil:
    """Of an array (0x90, 0x0F, 0xDC): in the code, or in 2 or 4 bytes behind it."""
    cdef uint8_t code
    if reader.at >= reader.end:
        reader.bad = True
        return 0
    code = reader.at[0]
    reader.at += 1
    if code & ~fix_mask == fix:
        return code & fix_mask
    if code != code_16 and code != code_16 + 1:
        reader.bad = True
        return 0
    return <uint32_t>_big_endian(reader, 2 if code == code_16 else 4)


cdef uint32_t _array(Reader* reader) noexcept nogil:
    return _length(reader, 0x90, 0x0F, 0xDC)


cdef uint32_t _bytes(Reader* reader) noexcept nogil:
    """The length of a binary or a string; the reader stands at its first byte, and all of it is there."""
    cdef uint8_t code
    cdef uint32_t size = 0, value = 0
    if reader.at >= reader.end:
        reader.bad = True
        return 0
    code = reader.at[0]
    reader.at += 1
    if code & 0xE0 == 0xA0:
        value = code & 0x1F
    elif 0xC4 <= code <= 0xC6:
        size = 1 << (code - 0xC4)
    elif 0xD9 <= code <= 0xDB:
        size = 1 << (code - 0xD9)
    else:
        reader.bad = True
        return 0
    if size:
        value = <uint32_t>_big_endian(reader, size)
    if reader.end - reader.at < value:
        reader.bad = True
        return 0
    return value


cdef bint _facts(const uint8_t* at, uint64_t size, Facts* facts, list filters) except -1:
    """False where it is not what the broker writes. `filters`, if given, gets those of QoS 1 and 2."""
    cdef Reader reader
    cdef uint32_t fields, parts, length, one
    cdef uint64_t qos, start, earliest = 0, position, stamp
    reader.at, reader.end, reader.bad = at, at + size, False
    facts.holds = facts.concerns_others = False
    fields = _array(&reader)
    facts.expiry_seconds = _number(&reader)
    facts.left_at = <uint32_t>(reader.at - at)
    facts.left_ns = _number(&reader)
    facts.left_end = <uint32_t>(reader.at - at)
    facts.subscriptions = _array(&reader)
    if reader.bad or (fields != 3 and fields != 4):
        return False
    for one in range(facts.subscriptions):
        parts = _array(&reader)
        length = _bytes(&reader)
        if reader.bad or parts != 9:
            return False
        name = reader.at
        reader.at += length
        qos = _number(&reader)
        if length >= 7 and memcmp(name, PyBytes_AS_STRING(_SHARE), 7) == 0:
            facts.concerns_others = True
        if _number(&reader):
            facts.concerns_others = True
        _number(&reader)
        _number(&reader)
        start = _number(&reader)
        for _ in range(3):
            _number(&reader)
        if reader.bad:
            return False
        earliest = start if one == 0 else min(earliest, start)
        if qos:
            facts.holds = True
            if filters is not None:
                filters.append(PyBytes_FromStringAndSize(<const char*>name, length))
    if fields == 4:
        reader.at += _bytes(&reader)
    facts.place_at = <uint32_t>(reader.at - at)
    if _array(&reader) != 2:
        return False
    position = max(_number(&reader), earliest)  # no place was journaled yet
    facts.oldest = position
    parts = _array(&reader)
    facts.in_flight = parts > 0
    for one in range(parts):
        if _array(&reader) != 3:
            return False
        _number(&reader)
        _number(&reader)
        stamp = _number(&reader)
        if reader.bad:
            return False
        facts.oldest = min(facts.oldest, stamp)
    return not reader.bad and reader.at == reader.end


cdef inline bint _may_sleep(Facts* facts) noexcept nogil:
    return facts.left_ns != 0 and not facts.concerns_others


def split(bytes packed not None):
    """(value of its "session" entry, value of its "place" entry)."""
    cdef Facts facts
    if not _facts(<const uint8_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), &facts, None):
        raise ValueError("no sleeping session")
    return packed[: facts.place_at], packed[facts.place_at :]


def entries_of(bytes key not None, bytes static not None, bytes place not None):
    """(what it is asleep, its entries of a snapshot)."""
    cdef bytes packed = static + place
    return packed, _entries(key, packed, <uint32_t>PyBytes_GET_SIZE(static))


def subscriptions_of(bytes packed not None):
    """How many a session has that may sleep; -1 if this one may not."""
    cdef Facts facts
    if not _facts(<const uint8_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), &facts, None):
        return -1
    return facts.subscriptions if _may_sleep(&facts) else -1


def held_by(bytes packed not None):
    """(stamp of the oldest record it may still need, its filters of QoS 1 and 2); None if it holds nothing."""
    cdef Facts facts
    cdef list filters = []
    _facts(<const uint8_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), &facts, filters)
    return (facts.oldest, filters) if facts.holds else None


def pack(list keys not None, dict asleep not None):
    """These, which sleep, as entries of a snapshot."""
    cdef list parts = []
    cdef bytes key, packed
    cdef Facts facts
    for key in keys:
        packed = asleep[key]
        _facts(<const uint8_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), &facts, None)
        parts.append(_entries(key, packed, facts.place_at))
    return b"".join(parts)


cdef bytes _entries(bytes key, bytes packed, uint32_t place_at):
    """name size, value size, kind 0x00 namespace 0x00 key, value; of both."""
    cdef const char* name = PyBytes_AS_STRING(key)
    cdef uint32_t key_size = <uint32_t>PyBytes_GET_SIZE(key)
    cdef const char* zero = <const char*>memchr(name, 0, key_size)
    cdef uint32_t namespace_size = (<uint32_t>(zero - name) if zero != NULL else key_size) + 1
    cdef uint32_t tail = namespace_size + key_size
    cdef uint32_t size = <uint32_t>PyBytes_GET_SIZE(packed)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 2 * (SIZES_BYTES + tail) + 8 + 6 + size)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(made)
    at = _head(at, _SESSION, name, namespace_size, key_size, place_at)
    memcpy(at, PyBytes_AS_STRING(packed), place_at)
    at = _head(at + place_at, _PLACE, name, namespace_size, key_size, size - place_at)
    memcpy(at, PyBytes_AS_STRING(packed) + place_at, size - place_at)
    return made


cdef uint8_t* _head(
    uint8_t* at, bytes kind, const char* key, uint32_t namespace_size, uint32_t key_size, uint32_t value_size
) noexcept:
    cdef uint32_t kind_size = <uint32_t>PyBytes_GET_SIZE(kind)
    at = mainstem_set32(at, kind_size + namespace_size + key_size)
    at = mainstem_set32(at, value_size)
    memcpy(at, PyBytes_AS_STRING(kind), kind_size)
    at += kind_size
    memcpy(at, key, namespace_size - 1)
    at[namespace_size - 1] = 0
    memcpy(at + namespace_size, key, key_size)
    return at + namespace_size + key_size


cdef bint _is_of(const uint8_t* at, const uint8_t* end, bytes kind, const uint8_t* tail, uint32_t tail_size) noexcept:
    """Whether an entry of that kind and of the same namespace and key begins there."""
    cdef uint32_t kind_size = <uint32_t>PyBytes_GET_SIZE(kind)
    return (
        end - at >= SIZES_BYTES + kind_size + tail_size
        and mainstem_get32(at) == kind_size + tail_size
        and memcmp(at + SIZES_BYTES, PyBytes_AS_STRING(kind), kind_size) == 0
        and memcmp(at + SIZES_BYTES + kind_size, tail, tail_size) == 0
    )


def load(
    list asleep not None, dict expiries not None, set undecided not None, bytes data not None, uint64_t begin, uint64_t limit
):
    """Take sessions from a snapshot for as long as they come: (where it stopped, entries, sessions, subscriptions).

    `expiries` gets the keys of those that end some day, by second; `undecided` those that may not sleep as they are.
    """
    cdef const uint8_t* first = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* at = first + begin
    cdef const uint8_t* end = first + min(limit, <uint64_t>PyBytes_GET_SIZE(data))
    cdef const uint8_t* tail
    cdef const uint8_t* value
    cdef const uint8_t* place
    cdef const uint8_t* zero
    cdef uint32_t tail_size, size, place_size, shards = <uint32_t>len(asleep)
    cdef uint64_t entries = 0, sessions = 0, subscriptions = 0
    cdef Facts facts
    cdef bytes key, packed
    while end - at >= SIZES_BYTES + 8 and memcmp(at + SIZES_BYTES, PyBytes_AS_STRING(_SESSION), 8) == 0:
        tail, tail_size, size = at + SIZES_BYTES + 8, mainstem_get32(at) - 8, mainstem_get32(at + 4)
        if end - tail < <int64_t>tail_size + size:
            break
        value = tail + tail_size
        place = value + size
        if not _is_of(place, end, _PLACE, tail, tail_size):
            break  # an older version wrote all places behind all sessions
        place_size = mainstem_get32(place + 4)
        place += SIZES_BYTES + 6 + tail_size
        if end - place < place_size or _is_of(place + place_size, end, _RECEIVED, tail, tail_size):
            break
        zero = <const uint8_t*>memchr(tail, 0, tail_size)
        if zero == NULL:
            break
        key = PyBytes_FromStringAndSize(<const char*>zero + 1, tail_size - (zero + 1 - tail))
        packed = PyBytes_FromStringAndSize(NULL, size + place_size)
        memcpy(PyBytes_AS_STRING(packed), value, size)
        memcpy(PyBytes_AS_STRING(packed) + size, place, place_size)
        if not _facts(<const uint8_t*>PyBytes_AS_STRING(packed), size + place_size, &facts, None):
            break
        at = place + place_size
        entries += 2
        PyDict_SetItem(asleep[<uint32_t>crc32(key) % shards], key, packed)
        sessions += 1
        subscriptions += facts.subscriptions
        if _may_sleep(&facts):
            _plan(expiries, _expiry_second(&facts), key)
        else:
            undecided.add(key)
    return at - first, entries, sessions, subscriptions


def replay(
    list awake not None, list asleep not None, dict expiries not None, set undecided not None, bytes data not None,
    uint64_t begin, uint64_t limit, int64_t offset, dict taken not None,
):
    """Apply entries of the journal to sessions that are not awake, for as long as they are simple:
    (where it stopped, entries, how many sessions more there are, and how many subscriptions more).

    A session's static part comes as a whole, so does its end. A place is simple where nothing is and was in flight.
    `offset` is that of the first entry; `taken` says of some keys up to which offset the snapshot has their changes.
    """
    cdef const uint8_t* first = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* at = first + begin
    cdef const uint8_t* end = first + min(limit, <uint64_t>PyBytes_GET_SIZE(data))
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef const uint8_t* zero
    cdef uint32_t name_size, value_size, kind_size, shard, shards = <uint32_t>len(asleep)
    cdef uint64_t entries = 0
    cdef int64_t sessions = 0, subscriptions = 0
    cdef bytes key
    while end - at >= SIZES_BYTES:
        name_size, value_size, name = mainstem_get32(at), mainstem_get32(at + 4), at + SIZES_BYTES
        value = name + name_size
        if end - name < <int64_t>name_size + (0 if value_size == NULL_VALUE else <int64_t>value_size):
            break
        kind_size = _kind_size(name, name_size)
        zero = <const uint8_t*>memchr(name + kind_size, 0, name_size - kind_size) if kind_size else NULL
        if zero == NULL:
            break  # another kind
        key = PyBytes_FromStringAndSize(<const char*>zero + 1, value - zero - 1)
        shard = <uint32_t>crc32(key) % shards
        if not taken or offset + <int64_t>entries > <int64_t>taken.get(key, -1):
            if key in <dict>awake[shard]:
                break
            if kind_size == 6:
                if not _replay_place(<dict>asleep[shard], key, value, value_size):
                    break
            elif value_size == NULL_VALUE:
                _replay_end(<dict>asleep[shard], key, &sessions, &subscriptions)
            elif not _replay_session(
                <dict>asleep[shard], expiries, undecided, key, value, value_size, &sessions, &subscriptions
            ):
                break
        entries += 1
        at = value + (0 if value_size == NULL_VALUE else value_size)
    return at - first, entries, sessions, subscriptions


cdef inline uint32_t _kind_size(const uint8_t* name, uint32_t size) noexcept nogil:
    """With the zero behind it; 0: it is none that is replayed here."""
    if size > 8 and memcmp(name, b"session\0", 8) == 0:
        return 8
    if size > 6 and memcmp(name, b"place\0", 6) == 0:
        return 6
    return 0


cdef int _replay_end(dict asleep, bytes key, int64_t* sessions, int64_t* subscriptions) except -1:
    cdef Facts facts
    cdef bytes before = asleep.pop(key, None)
    if before is not None:
        _facts(<const uint8_t*>PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before), &facts, None)
        sessions[0] -= 1
        subscriptions[0] -= facts.subscriptions
    return 0


cdef bint _replay_session(
    dict asleep, dict expiries, set undecided, bytes key, const uint8_t* value, uint32_t size,
    int64_t* sessions, int64_t* subscriptions,
) except -1:
    """False where it has to be decoded the long way."""
    cdef PyObject* found = PyDict_GetItem(asleep, key)
    cdef bytes place = _NO_PLACE
    cdef uint64_t planned = 0, second
    cdef Facts facts
    cdef Facts earlier
    cdef const uint8_t* place_at = <const uint8_t*>PyBytes_AS_STRING(_NO_PLACE)
    cdef Py_ssize_t place_size = PyBytes_GET_SIZE(_NO_PLACE)
    cdef bytes packed
    if found != NULL:
        place = <bytes>found
        _facts(<const uint8_t*>PyBytes_AS_STRING(place), PyBytes_GET_SIZE(place), &earlier, None)
        place_at = <const uint8_t*>PyBytes_AS_STRING(place) + earlier.place_at
        place_size = PyBytes_GET_SIZE(place) - earlier.place_at
        planned = _expiry_second(&earlier) if _may_sleep(&earlier) else 0
    packed = PyBytes_FromStringAndSize(NULL, size + place_size)
    memcpy(PyBytes_AS_STRING(packed), value, size)
    memcpy(PyBytes_AS_STRING(packed) + size, place_at, place_size)
    if not _facts(<const uint8_t*>PyBytes_AS_STRING(packed), size + place_size, &facts, None) or facts.place_at != size:
        return False
    sessions[0] += found == NULL
    subscriptions[0] += <int64_t>facts.subscriptions - (<int64_t>earlier.subscriptions if found != NULL else 0)
    PyDict_SetItem(asleep, key, packed)
    if not _may_sleep(&facts):
        undecided.add(key)
    elif not undecided or key not in undecided:
        second = _expiry_second(&facts)
        if not 0 < planned <= second:  # else it is looked at then, and planned again
            _plan(expiries, second, key)
    return True


cdef bint _replay_place(dict asleep, bytes key, const uint8_t* value, uint32_t size) except -1:
    """False where it has to be decoded the long way. What is no session's is left out."""
    cdef PyObject* found = PyDict_GetItem(asleep, key)
    cdef const char* before
    cdef Reader reader
    cdef Facts facts
    cdef bytes packed
    if found == NULL or size == NULL_VALUE:
        return True
    reader.at, reader.end, reader.bad = value, value + size, False
    if _array(&reader) != 3:
        return False
    _number(&reader)
    if reader.bad or reader.end - reader.at != 2 or reader.at[0] != 0x90 or reader.at[1] != 0x90:
        return False  # some identifiers ended, or began
    before = PyBytes_AS_STRING(<bytes>found)
    _facts(<const uint8_t*>before, PyBytes_GET_SIZE(<bytes>found), &facts, None)
    if facts.in_flight:
        return False
    packed = PyBytes_FromStringAndSize(NULL, facts.place_at + size - 1)
    memcpy(PyBytes_AS_STRING(packed), before, facts.place_at)
    memcpy(PyBytes_AS_STRING(packed) + facts.place_at, value, size - 1)
    PyBytes_AS_STRING(packed)[facts.place_at] = <char>0x92
    PyDict_SetItem(asleep, key, packed)
    return True


def settle(list asleep not None, dict expiries not None, set undecided not None, uint64_t now_ns):
    """Everything is replayed, and nobody is here: those whose client was here left just now. The keys of those that have
    to wake, because they concern others."""
    cdef uint32_t shard, shards = <uint32_t>len(asleep)
    cdef list others = []
    cdef PyObject* found
    cdef bytes key, packed
    cdef Facts facts
    for key in undecided:
        shard = <uint32_t>crc32(key) % shards
        found = PyDict_GetItem(<dict>asleep[shard], key)
        if found == NULL:
            continue  # it ended, or is awake
        packed = <bytes>found
        _facts(<const uint8_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), &facts, None)
        if facts.concerns_others:
            others.append(key)
            continue
        if not facts.left_ns:
            packed = packed[: facts.left_at] + b"\xcf" + now_ns.to_bytes(8, "big") + packed[facts.left_end :]
            PyDict_SetItem(<dict>asleep[shard], key, packed)
            facts.left_ns = now_ns
        _plan(expiries, _expiry_second(&facts), key)
    return others


cdef inline uint64_t _expiry_second(Facts* facts) noexcept nogil:
    """The first second in which it has expired; 0: never."""
    return 0 if facts.expiry_seconds == NEVER else (facts.left_ns + NS - 1) // NS + facts.expiry_seconds


cdef int _plan(dict expiries, uint64_t second, bytes key) except -1:
    cdef PyObject* found
    if not second:
        return 0
    found = PyDict_GetItem(expiries, second)
    if found == NULL:
        expiries[second] = [key]
    else:
        PyList_Append(<list>found, key)
    return 0
