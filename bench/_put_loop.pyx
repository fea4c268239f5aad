# cython: language_level=3, boundscheck=False, wraparound=False
"""The loop of a wire parser without the parsing: what `BatchBuilder.put` costs when C calls it."""

from libc.stdint cimport int64_t, uint8_t

from mainstem.codec._batch cimport BatchBuilder


def put_times(BatchBuilder builder, bytes key, bytes value, bytes headers, int header_count, int times):
    cdef const uint8_t* key_at = key
    cdef const uint8_t* value_at = value
    cdef const uint8_t* headers_at = headers
    cdef Py_ssize_t key_len = len(key), value_len = len(value), headers_len = len(headers)
    cdef int i
    for i in range(times):
        builder.put(
            key_at, key_len, value_at, value_len, headers_at, headers_len, header_count, 1_700_000_000_000 + i // 64, 8
        )
