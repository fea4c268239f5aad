"""Many filters against one topic (`FilterTrie`), one filter against many topics (`TopicTrie`): neither scans.

`TopicTrie` also numbers topics, densely from 1, so that other structures can keep four bytes for a topic. It is dumped
as (little-endian, `dump` and `load`):

    0  4s  magic "MSTT"      8  u32 CRC-32 of all that follows it     16 u32 end of numbers
    4  u32 version = 1      12  u32 number of topics
    20 for each topic, depth first: u32 number, u16 length, the name

Depth first, a topic parts from the one before it at a level that is new: loading need look nothing up.
"""

from __future__ import annotations

from mainstem.model._topic_tries import FilterTrie, TopicTrie

__all__ = ["FilterTrie", "TopicTrie"]
