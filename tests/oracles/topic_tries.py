"""The tries in plain Python: the oracle of the compiled ones.

A node is a dict from level to node; the values of a FilterTrie node lie under a key that is no level.
The format of `TopicTrie.dump` is drawn in `topic_tries.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from mainstem.model.errors import CorruptFrame, InvalidName, NotFound, Overloaded
from mainstem.model.topic_dump import DUMP_TOPIC, TOPICS_MAX, checked_dump, dump_head
from mainstem.model.topic_filter import MANY, MQTT_BYTES_MAX, ONE, filter_levels

_Node = dict[Any, Any]


class FilterTrie:
    """Which of many filters mean this topic?"""

    def __init__(self) -> None:
        self._root: _Node = {}
        self._count = 0

    def __len__(self) -> int:
        """How many (filter, value) pairs there are."""
        return self._count

    def add(self, topic_filter: bytes, value: object) -> None:
        node = self._root
        for level in filter_levels(topic_filter):
            node = node.setdefault(level, {})
        pairs = node.setdefault(None, {})
        if (topic_filter, value) not in pairs:
            pairs[topic_filter, value] = None
            self._count += 1

    def remove(self, topic_filter: bytes, value: object) -> bool:
        """Whether the pair was there."""
        path = [self._root]
        levels = filter_levels(topic_filter)
        for level in levels:
            if level not in path[-1]:
                return False
            path.append(path[-1][level])
        pairs = path[-1].get(None, {})
        if (topic_filter, value) not in pairs:
            return False
        del pairs[topic_filter, value]
        self._count -= 1
        if not pairs:
            del path[-1][None]
        for parent, level, node in zip(reversed(path[:-1]), reversed(levels), reversed(path[1:]), strict=True):
            if node:
                break
            del parent[level]
        return True

    def match(self, topic: bytes) -> list[object]:
        """The values of all filters that mean the topic: each once per filter it was added with."""
        levels = topic.split(b"/")
        hidden = levels[0].startswith(b"$")
        active = [self._root]
        if not hidden and MANY in self._root:
            active.append(self._root[MANY])
        many = {id(node) for node in active[1:]}  # the nodes in `active` that stand for a `#`
        for depth, level in enumerate(levels):
            following: list[_Node] = []
            following_many: set[int] = set()
            for node in active:
                if id(node) in many:
                    _activate_many(node, following, following_many)
                for wanted in (level,) if hidden and depth == 0 else (level, ONE):
                    child = node.get(wanted)
                    if child is not None:
                        following.append(child)
                        if MANY in child:
                            _activate_many(child[MANY], following, following_many)
            active, many = following, following_many
        return [value for node in active for _, value in node.get(None, ())]


def _activate_many(node: _Node, active: list[_Node], many: set[int]) -> None:
    if id(node) not in many:
        many.add(id(node))
        active.append(node)


class TopicTrie:
    """Which of many topics does this filter mean? Gives each topic a small number."""

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self.topics_max = topics_max
        self._root: _Node = {}
        self._numbers: dict[bytes, int] = {}
        self._names: list[bytes | None] = [None]
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def numbers_end(self) -> int:
        """One more than the largest number ever given: the size of an array indexed by number."""
        return len(self._names)

    def number(self, topic: bytes) -> int:
        """The topic's number, from 1; a topic that is not yet there is added."""
        found = self._numbers.get(topic)
        if found is not None:
            return found
        _check_addable(topic, len(self._numbers), self.topics_max)
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._names)
            self._names.append(None)
        self._insert(topic, number)
        return number

    def find(self, topic: bytes) -> int:
        """The topic's number, or 0."""
        return self._numbers.get(topic, 0)

    def name(self, number: int) -> bytes:
        name = self._names[number] if 0 < number < len(self._names) else None
        if name is None:
            raise NotFound(f"there is no topic number {number}")
        return name

    def remove(self, number: int) -> None:
        """Forget the topic; its number may be given to another."""
        name = self.name(number)
        levels = name.split(b"/")
        path = [self._root]
        for level in levels:
            path.append(path[-1][level])
        del path[-1][None], self._numbers[name]
        self._names[number] = None
        self._free.append(number)
        for parent, level, node in zip(reversed(path[:-1]), reversed(levels), reversed(path[1:]), strict=True):
            if node:
                break
            del parent[level]

    def put(self, number: int, topic: bytes) -> None:
        """Add a topic under the number it had before; whoever has either now is removed."""
        if not 0 < number < 0xFFFFFFFF or len(topic) > MQTT_BYTES_MAX:
            raise InvalidName(f"no topic of {len(topic)} bytes can have the number {number}")
        if topic in self._numbers:
            self.remove(self._numbers[topic])
        if number < len(self._names):
            if self._names[number] is not None:
                self.remove(number)
            self._free.remove(number)
        else:
            self._free.extend(range(number - 1, len(self._names) - 1, -1))
            self._names.extend([None] * (number + 1 - len(self._names)))
        self._insert(topic, number)

    def put_all(self, packed: bytes) -> bool:
        at = 0
        while at + DUMP_TOPIC.size <= len(packed):
            number, length = DUMP_TOPIC.unpack_from(packed, at)
            at += DUMP_TOPIC.size + length
            if at > len(packed):
                return False
            self.put(number, bytes(packed[at - length : at]))
        return at == len(packed)

    def match(self, topic_filter: bytes) -> array[int]:
        """The numbers of all topics that the filter means, in no particular order."""
        wanted = filter_levels(topic_filter)
        return array("I", _walk(self._root, wanted, _closure(wanted, {0}), top=True))

    def bitmap(self, topic_filter: bytes) -> bytearray:
        """The same as bits: number n is bit n % 8 of byte n // 8."""
        bits = bytearray((len(self._names) + 7) // 8)
        for number in self.match(topic_filter):
            bits[number >> 3] |= 1 << (number & 7)
        return bits

    def memory_bytes(self) -> int:
        """An estimate; the compiled trie counts exactly."""
        return sum(len(name) + 400 for name in self._numbers)

    def dump(self) -> bytes:
        body = bytearray()
        for name, number in sorted(self._numbers.items(), key=lambda item: item[0].split(b"/")):
            body += DUMP_TOPIC.pack(number, len(name))
            body += name
        return dump_head(len(self._numbers), len(self._names), body) + bytes(body)

    def load(self, data: bytes | bytearray | memoryview) -> None:
        """Replace everything by what `dump` wrote. Raises CorruptFrame for anything else, and is then empty."""
        self.__init__(self.topics_max)  # type: ignore[misc]
        count, end, body = checked_dump(data)
        self._names = [None] * end
        at = 0
        for _ in range(count):
            if at + DUMP_TOPIC.size > len(body):
                self._reject()
            number, length = DUMP_TOPIC.unpack_from(body, at)
            at += DUMP_TOPIC.size + length
            if at > len(body) or not 0 < number < end or self._names[number] is not None:
                self._reject()
            self._insert(bytes(body[at - length : at]), number)
        self._free = [number for number in range(end - 1, 0, -1) if self._names[number] is None]

    def _insert(self, topic: bytes, number: int) -> None:
        node = self._root
        for level in topic.split(b"/"):
            node = node.setdefault(level, {})
        node[None] = number
        self._numbers[topic] = number
        self._names[number] = topic

    def _reject(self) -> None:
        self.__init__(self.topics_max)  # type: ignore[misc]
        raise CorruptFrame("the topic dictionary is damaged: its entries do not add up")


def _check_addable(topic: bytes, count: int, topics_max: int) -> None:
    if len(topic) > MQTT_BYTES_MAX:
        raise InvalidName(f"topic of {len(topic)} bytes, limit {MQTT_BYTES_MAX}")
    if count >= topics_max:
        raise Overloaded(f"{count} topics, limit {topics_max}: delete topics or shorten their retention")


def _closure(wanted: list[bytes], states: set[int]) -> frozenset[int]:
    """A `#` may also stand for nothing."""
    return frozenset(states | {s + 1 for s in states if s < len(wanted) and wanted[s] == MANY})


def _walk(node: _Node, wanted: list[bytes], states: frozenset[int], *, top: bool = False) -> Iterator[int]:
    """Depth first, each node once, with the set of places in the filter that it may stand at."""
    stack = [(node, states, top)]
    while stack:
        node, states, top = stack.pop()
        if len(wanted) in states and None in node:
            yield node[None]
        for level, child in node.items():
            if level is None:
                continue
            following = set()
            for state in states:
                if state == len(wanted):
                    continue
                if wanted[state] in (ONE, MANY):
                    if not (top and level.startswith(b"$")):
                        following.add(state + (wanted[state] == ONE))
                elif wanted[state] == level and not (top and state > 0 and level.startswith(b"$")):
                    following.add(state + 1)
            if following:
                stack.append((child, _closure(wanted, following), False))
