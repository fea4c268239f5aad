# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a start replays of the journal, as entries of a snapshot: whoever loads many of these by the million replays them so.

    a batch of state records → per record u32 name size, u32 value size (0xFFFFFFFF = null), name, value  (`snapshot.py`)
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

from mainstem.codec._batch cimport BATCH_HEAD_SIZE, RecordParts, put_u32, read_record
from mainstem.codec._frames cimport BatchHead, bounded_batch_head

from mainstem.codec.compression import inflate
from mainstem.model.errors import CorruptFrame

cdef enum:
    CODEC_MASK = 7
    SIZES_BYTES = 8
    NULL_VALUE = 0xFFFFFFFF


def entries_of_batch(batch, *, inflated_bytes_max):
    """Of the batch behind a state frame's head, whose checksum is known to fit: one entry for each offset."""
    cdef Py_buffer view
    cdef BatchHead head
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef bytes inflated
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>view.buf
        head = bounded_batch_head(at, view.len, 0)
        end = at + head.size
        at += BATCH_HEAD_SIZE
        if head.attributes & CODEC_MASK:
            records = PyBytes_FromStringAndSize(<const char*>at, end - at)
            inflated = inflate(head.attributes & CODEC_MASK, records, inflated_bytes_max)
            at = <const uint8_t*>PyBytes_AS_STRING(inflated)
            end = at + PyBytes_GET_SIZE(inflated)
        return _packed(at, end, head.count)
    finally:
        PyBuffer_Release(&view)


cdef bytes _packed(const uint8_t* first, const uint8_t* end, int32_t count):
    cdef const uint8_t* at = first
    cdef RecordParts parts
    cdef Py_ssize_t size = 0
    cdef int32_t place
    cdef bytes packed
    cdef uint8_t* to
    for place in range(count):
        at = read_record(at, end, &parts)
        if at == NULL:
            raise CorruptFrame(f"record {place} of {count} is malformed")
        size += SIZES_BYTES + max(parts.key_size, 0) + max(parts.value_size, 0)
    if at != end:
        raise CorruptFrame(f"{end - at} bytes follow the last of {count} records")
    packed = PyBytes_FromStringAndSize(NULL, size)
    to, at = <uint8_t*>PyBytes_AS_STRING(packed), first
    for place in range(count):
        at = read_record(at, end, &parts)
        put_u32(to, <uint32_t>max(parts.key_size, 0))
        put_u32(to + 4, <uint32_t>NULL_VALUE if parts.value_size < 0 else <uint32_t>parts.value_size)
        to += SIZES_BYTES
        if parts.key_size > 0:
            memcpy(to, parts.key, parts.key_size)
            to += parts.key_size
        if parts.value_size > 0:
            memcpy(to, parts.value, parts.value_size)
            to += parts.value_size
    return packed
