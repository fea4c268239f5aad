"""Which threads and processes get a processor first. Linux; elsewhere all are alike.

A thread that wakes up waits until whoever is on the processor has had its slice: 3 to 5 ms, and longer behind several, even
beside a process that is nicer. Since Linux 6.12 a thread may ask for a shorter slice. It then runs as soon as it wakes, for
it owes nobody anything: in the long run all have the same share of the processors as before. See ADR 105.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct

SLICE_NS = 100_000  # the least that may be asked for
SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}.get(platform.machine(), 0)
RESET_ON_FORK = 1
ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, niceness, priority, slice in ns, deadline, period


def answer_at_once() -> None:
    """For the calling thread, and not for the threads and processes that it starts. What cannot be had is not needed."""
    with contextlib.suppress(AttributeError, OSError):
        if not SYS_SCHED_SETATTR or os.sched_getscheduler(0) != os.SCHED_OTHER:
            return  # somebody has chosen something better
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        if niceness < 0:
            return  # the same: and what it starts must not lose that
        wanted = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, RESET_ON_FORK, niceness, 0, SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(SYS_SCHED_SETATTR, 0, wanted, 0)


def come_first() -> None:
    """For the calling thread, which hardly computes: it runs as soon as it wakes, whoever is on the processor, where the
    process has the right to ask for that (root, CAP_SYS_NICE, a limit of real-time priority). Elsewhere it answers at
    once. See ADR 108."""
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER and os.getpriority(os.PRIO_PROCESS, 0) >= 0:
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (AttributeError, OSError):
        answer_at_once()


def leave_a_core(pid: int) -> None:
    """For another process, which has just begun: of several cores it and its threads leave one to the others. However nice
    it is, Linux looks only every few milliseconds whether somebody else should have a core that it computes on."""
    with contextlib.suppress(AttributeError, OSError):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(pid, cores[1:])


def yield_to_others(pid: int, nicer_by: int) -> None:
    """For another process or, on Linux, another thread: it gets what the others leave, and a little of what they want."""
    with contextlib.suppress(AttributeError, OSError):  # it has ended, or it may not
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + nicer_by)
