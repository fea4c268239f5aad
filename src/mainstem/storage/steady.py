"""Writing and reading large files so that nobody else waits for it. A new file:

    written     |==========|====|        256 KiB by one system call
    begun                  ^    the kernel was asked to bring everything before it to the disk
    waited for        ^         the piece before the last one is there

One system call that copies tens of megabytes keeps its core for milliseconds: few kernels let another thread in before its
end. And a disk that is given tens of megabytes at once has a queue, at whose end the small sync of another file waits. So
a thread writes piece by piece, and never has more than two pieces on their way to the disk. It reads piece by piece, too.

What is on the disk may still be in its volatile cache, which a sync of any file empties: after 50 MB that took 10 to 20 ms,
for whoever asked. So the thread syncs every 4 MiB, and finds little left to do at its end, as others do meanwhile.
"""

from __future__ import annotations

from mainstem.storage._steady import read_steadily, read_steadily_into, write_steadily

STEADY_BYTES_MIN = 1 << 20  # less is read by one system call

__all__ = ["STEADY_BYTES_MIN", "read_steadily", "read_steadily_into", "write_steadily"]
