# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a delivery says: what its subscriptions ask of it, and what is worked out once per record.

See `outbound.py`; the plain `tests/oracles/mqtt_outbound.py` says the same.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free

from mainstem.broker.delivery._live cimport RecordRef
from mainstem.codec._batch cimport get_u16, get_u32, put_u32

from mainstem.codec.batch import encode_headers

cdef enum:
    ORIGIN_MQTT = 1

cdef int64_t NS = 1_000_000_000


cdef class Grant:
    """What one subscription, or several that overlap, asks of a delivery. Never changed once made."""

    def __init__(self, int qos, *, bint no_local=False, bint retain_as_published=False, bytes identifiers=b"",
                 bint meta=False, int packet_id=0, Grant own=None):
        self.qos = qos
        self.no_local = no_local
        self.own = own  # with No Local: what the client's own messages are delivered under, None for not at all
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers
        self.meta = meta
        self.packet_id = packet_id

    @staticmethod
    def merged(grants):
        """Overlapping subscriptions are served by one copy: the highest QoS, all identifiers. Those with No Local have no
        part in the client's own messages."""
        cdef list others = [one for one in grants if not one.no_local]
        cdef bint no_local = len(others) < len(grants)
        return Grant(
            max([one.qos for one in grants]),
            no_local=no_local,
            retain_as_published=any([one.retain_as_published for one in grants]),
            identifiers=b"".join([one.identifiers for one in grants]),
            meta=any([one.meta for one in grants]),
            own=Grant.merged(others) if no_local and others else None,
        )


def ref_of(record):
    """A stored record (model.Record) as the window that `offer` takes."""
    cdef RecordRef ref = RecordRef()
    cdef bytes value = record.value, key = record.key
    cdef bytes headers = encode_headers(record.headers) if record.headers else b""
    ref.owner = (value, key, headers)
    ref.value_len = ref.key_len = -1
    if value is not None:
        ref.value_at, ref.value_len = <const uint8_t*>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
    if key is not None:
        ref.key_at, ref.key_len = <const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
    ref.headers_at, ref.headers_len = <const uint8_t*>PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers)
    ref.header_count = len(record.headers)
    ref.flags, ref.origin, ref.topic = record.flags, int(record.origin), record.topic
    ref.offset, ref.stamp, ref.time_ms = record.offset, record.stamp, record.time_ms
    ref.serial = 1
    return ref


cdef class Encoder:
    """What is worked out once per record, however many subscribers it has. One for all connections of a server."""

    def __init__(self, translate, describe):
        self.translate = translate
        self.describe = describe

    def __dealloc__(self):
        free(self.packets[0])
        free(self.packets[1])

    cdef int load(self, RecordRef record) except -1:
        cdef const uint8_t* found = NULL
        cdef Py_ssize_t size = 0
        if record is self.record and record.serial == self.serial:
            return 0
        self.record, self.serial = record, record.serial
        self.packet_sizes[0] = self.packet_sizes[1] = 0
        self.properties, self.properties_size = NULL, 0
        self.expired = False
        self.kept = None
        if record.origin == ORIGIN_MQTT:
            if record.header_count and record.find_header("ms-mqtt", 7, &found, &size) and size > 0:
                self.properties, self.properties_size = found, size
                self._expire(record)
        else:
            self.kept = self.translate(record, self.now_ns)
            if self.kept is None:
                self.expired = True
            else:
                self.properties = <const uint8_t*>PyBytes_AS_STRING(self.kept)
                self.properties_size = PyBytes_GET_SIZE(self.kept)
        return 0

    cdef int _expire(self, RecordRef record) except -1:
        """Count the message expiry down from when it was appended. The properties were checked when they came in."""
        cdef const uint8_t* at = self.properties
        cdef const uint8_t* end = at + self.properties_size
        cdef int64_t interval, passed = self.now_ns - record.stamp
        cdef int identifier
        while at < end:
            identifier = at[0]
            if identifier == 2:
                break
            at += 2 if identifier == 1 else 3 + get_u16(at + 1)
            if identifier == 38:
                at += 2 + get_u16(at)
        if at >= end:
            return 0
        interval = get_u32(at + 1)
        if passed > interval * NS:
            self.expired = True
        elif passed >= NS:
            self.kept = PyBytes_FromStringAndSize(<const char*>self.properties, self.properties_size)
            put_u32(<uint8_t*>PyBytes_AS_STRING(self.kept) + (at + 1 - self.properties),
                    <uint32_t>(interval - passed // NS))
            self.properties = <const uint8_t*>PyBytes_AS_STRING(self.kept)
        return 0
