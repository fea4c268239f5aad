"""Who gets which partitions, decided by the broker: `uniform` (even and sticky) and `range` (contiguous per topic)."""

from __future__ import annotations

from collections.abc import Mapping

TopicPartition = tuple[bytes, int]  # topic id, partition
ASSIGNORS = ("uniform", "range")


def assign(
    assignor: str,
    wants: Mapping[str, set[bytes]],
    partitions: Mapping[bytes, int],
    held: Mapping[str, set[TopicPartition]],
) -> dict[str, set[TopicPartition]]:
    """`wants`: member → topic ids, `partitions`: topic id → count, `held`: what each was to have before."""
    if assignor == "range":
        return _range(wants, partitions)
    return _uniform(wants, partitions, held)


def _range(wants: Mapping[str, set[bytes]], partitions: Mapping[bytes, int]) -> dict[str, set[TopicPartition]]:
    result: dict[str, set[TopicPartition]] = {member: set() for member in wants}
    for topic, count in partitions.items():
        members = sorted(member for member, topics in wants.items() if topic in topics)
        at = 0
        for n, member in enumerate(members):
            size = count // len(members) + (1 if n < count % len(members) else 0)
            result[member].update((topic, index) for index in range(at, at + size))
            at += size
    return result


def _uniform(
    wants: Mapping[str, set[bytes]], partitions: Mapping[bytes, int], held: Mapping[str, set[TopicPartition]]
) -> dict[str, set[TopicPartition]]:
    """Keep what may be kept, give the rest to the least loaded, then move single partitions until it is even."""
    result: dict[str, set[TopicPartition]] = {member: set() for member in sorted(wants)}
    free: list[TopicPartition] = []
    owner = {one: member for member, ones in held.items() if member in result for one in ones}
    for topic, count in sorted(partitions.items()):
        for index in range(count):
            member = owner.get((topic, index))
            if member is not None and topic in wants[member]:
                result[member].add((topic, index))
            else:
                free.append((topic, index))
    for one in free:
        eligible = [member for member in result if one[0] in wants[member]]
        if eligible:
            result[min(eligible, key=lambda member: len(result[member]))].add(one)
    _even_out(result, wants)
    return result


def _even_out(result: dict[str, set[TopicPartition]], wants: Mapping[str, set[bytes]]) -> None:
    moved = True
    while moved:
        moved = False
        for poor in sorted(result, key=lambda member: len(result[member])):
            for rich in sorted(result, key=lambda member: -len(result[member])):
                if len(result[rich]) - len(result[poor]) < 2:
                    break
                one = next((one for one in sorted(result[rich], reverse=True) if one[0] in wants[poor]), None)
                if one is not None:
                    result[rich].discard(one)
                    result[poor].add(one)
                    moved = True
                    break
            if moved:
                break


def assign_shared(wants: Mapping[str, set[bytes]], partitions: Mapping[bytes, int]) -> dict[str, set[TopicPartition]]:
    """For share groups: everyone may read every partition. The queue behind them decides who gets which record."""
    return {
        member: {(topic, index) for topic in topics for index in range(partitions.get(topic, 0))}
        for member, topics in wants.items()
    }
