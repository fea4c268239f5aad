# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Filled columns handed to Arrow without a copy, and their memory used again once Arrow lets go of it."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memset

from mainstem.codec._runs cimport Binary, Run, grow, put_absent, put_i32

cdef enum:
    SPARES_MAX = 256
    SPARE_BYTES_MAX = 64 << 20

# Buffers given back by Arrow, for the next rows: fresh memory costs a page fault per 4 KiB, more than the decoding does.
# Touched with the GIL held only.
cdef Run spares[SPARES_MAX]
cdef int spare_count = 0
cdef size_t spare_bytes = 0


cdef void give_back(char* data, size_t room) noexcept:
    global spare_count, spare_bytes
    if data == NULL or spare_count == SPARES_MAX or spare_bytes + room > SPARE_BYTES_MAX:
        free(data)
        return
    spares[spare_count].data, spares[spare_count].room = data, room
    spare_count += 1
    spare_bytes += room


cdef void make_ready(Run* run, size_t room) noexcept:
    """An empty run with about so much room if a spare has it; otherwise it grows from nothing."""
    global spare_count, spare_bytes
    cdef int i
    memset(run, 0, sizeof(Run))
    for i in range(spare_count):
        if room <= spares[i].room <= 4 * room:
            run.data, run.room = spares[i].data, spares[i].room
            spare_bytes -= run.room
            spare_count -= 1
            spares[i] = spares[spare_count]
            return


cdef class Block:
    """Memory handed to Arrow; given back when the last array over it goes."""

    def __dealloc__(self):
        give_back(self.run.data, self.run.room)

    def __len__(self):
        return self.run.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.run.data, <Py_ssize_t>self.run.size, 1, flags)


cdef Block take_run(Run* run):
    cdef Block block = Block.__new__(Block)
    if run.data == NULL:
        grow(run, 8)  # Arrow wants an address even for nothing
    block.run = run[0]
    make_ready(run, block.run.room)
    return block


cdef tuple take_binary(Binary* column):
    cdef int64_t nulls
    if column.absent:
        put_absent(column)
    nulls = column.nulls
    if column.rows == 0:
        put_i32(&column.offsets, 0)
    column.rows = column.nulls = 0
    valid = take_run(&column.valid) if nulls else None
    return (valid, take_run(&column.offsets), take_run(&column.data), nulls)
