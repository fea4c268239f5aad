# cython: language_level=3
"""What other compiled modules may cimport to read frames in place. FORMAT.md draws the bytes."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t


ctypedef struct FrameFields:
    int kind
    int origin
    uint8_t epoch_check
    uint32_t payload_size
    uint32_t topic_id
    int64_t base_offset
    int64_t stamp
    int64_t durable_offset
    uint32_t count


# Why a frame is refused; `frame_error` spells it out.
cdef enum FrameFault:
    FAULT_NONE = 0
    FAULT_SHORT = 1
    FAULT_MAGIC = 2
    FAULT_HEAD_CRC = 3
    FAULT_VERSION = 4
    FAULT_KIND = 5
    FAULT_COUNT = 6
    FAULT_PAYLOAD_SIZE = 7
    FAULT_CUT_OFF = 8
    FAULT_BATCH_LENGTH = 9
    FAULT_BATCH_OFFSET = 10
    FAULT_BATCH_EPOCH = 11
    FAULT_BATCH_MAGIC = 12
    FAULT_BATCH_COUNT = 13
    FAULT_BATCH_CRC = 14


ctypedef struct PackedBatches:
    Py_ssize_t size
    Py_ssize_t records
    int64_t next_offset


# Both return a FrameFault. `size` is what the buffer holds from `at` on.
cdef int parse_frame(const uint8_t* at, Py_ssize_t size, uint64_t log_id, FrameFields* fields) noexcept nogil
cdef int check_frame(const uint8_t* at, const FrameFields* fields, bint with_crc) noexcept nogil
cdef object frame_error(int fault, Py_ssize_t pos)
cdef int pack_frames(
    uint8_t* at, Py_ssize_t size, uint64_t log_id, int64_t start_offset, int64_t end_offset, Py_ssize_t bytes_max,
    PackedBatches* packed,
) noexcept nogil


cdef class FrameHead:
    cdef readonly Py_ssize_t pos  # where the frame begins in the buffer that was read
    cdef readonly int kind
    cdef readonly int origin
    cdef readonly uint32_t topic_id
    cdef readonly int64_t base_offset
    cdef readonly int64_t stamp
    cdef readonly int64_t durable_offset
    cdef readonly uint32_t count
    cdef readonly Py_ssize_t payload_size
    cdef readonly Py_ssize_t size


cdef class BatchHead:
    cdef readonly int64_t base_offset
    cdef readonly Py_ssize_t size
    cdef readonly int32_t leader_epoch
    cdef readonly uint32_t crc
    cdef readonly int attributes
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t first_time_ms
    cdef readonly int64_t max_time_ms
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly int32_t count


# CorruptFrame where the bytes from `at` on cannot be a batch's head and the batch; `pos` is for its words.
cdef BatchHead bounded_batch_head(const uint8_t* at, Py_ssize_t size, Py_ssize_t pos)
