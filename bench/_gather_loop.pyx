# cython: language_level=3, boundscheck=False, wraparound=False
"""The loop of a wire parser without the parsing: what publishing one record costs when C calls the log's open batch."""

from libc.stdint cimport int64_t, uint8_t

from mainstem.log._gather cimport Gather, TopicRef


def publish_each(list routes, bytes value, int origin, int64_t time_ms):
    """One record to each route, in turn, its key the topic."""
    cdef const uint8_t* value_at = value
    cdef Py_ssize_t value_len = len(value)
    cdef TopicRef route
    cdef Gather gather
    cdef bytes topic
    cdef Py_ssize_t n
    for n in range(len(routes)):
        route = <TopicRef>routes[n]
        topic = route.topic
        gather = route.gather(origin)
        gather.put_routed(route, <const uint8_t*><char*>topic, len(topic), value_at, value_len, NULL, 0, 0, time_ms, 8)
