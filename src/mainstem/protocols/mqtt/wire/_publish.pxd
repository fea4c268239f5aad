# cython: language_level=3
from libc.stdint cimport uint8_t


cdef struct Fields:
    # One PUBLISH in place.
    int qos
    int retain
    int packet_id
    const uint8_t* topic
    Py_ssize_t topic_size
    const uint8_t* properties
    Py_ssize_t properties_size
    const uint8_t* payload
    Py_ssize_t payload_size
    int alias
    Py_ssize_t alias_at  # where its property stands among the properties, -1: nowhere
    int is_text  # the payload says that it is UTF-8
    int is_special  # it has properties that the broker must look at


cdef int read_publish(int version, object limits, int flags, const uint8_t* at, const uint8_t* end,
                      Fields* fields) except -1
