# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t


cdef enum Look:
    # What a publish's properties say. SLOW: someone must read them (CC, BCC, x-delay, reply-to, user-id, expiration).
    LOOK_MALFORMED = -1
    LOOK_PERSISTENT = 1
    LOOK_SLOW = 2


cdef inline const uint8_t* skip_short(const uint8_t* at, const uint8_t* end) noexcept:
    """Behind the short string at `at`, NULL if it does not end before `end`; NULL of NULL, so that calls chain."""
    if at == NULL or at >= end or end - at < 1 + at[0]:
        return NULL
    return at + 1 + at[0]


cdef int look_at(const uint8_t* at, const uint8_t* end, int64_t* time_ms) noexcept
