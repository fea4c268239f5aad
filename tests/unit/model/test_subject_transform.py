"""Subject transforms, as nats-server does them."""

from __future__ import annotations

import pytest

from mainstem.model.errors import InvalidArgument
from mainstem.model.subject_transform import SubjectTransform


@pytest.mark.parametrize(
    ("source", "destination", "subject", "becomes"),
    [
        ("a", "b", "a", "b"),
        ("a", "b", "a.c", None),
        (">", ">", "x.y", "x.y"),
        ("", "to.>", "x.y", "to.x.y"),
        ("a.>", "b.c.>", "a.x.y", "b.c.x.y"),
        ("a.>", "b.>", "a", None),
        ("a.*.*", "b.$2.$1", "a.x.y", "b.y.x"),
        ("a.*.*", "b.{{wildcard(2)}}", "a.x.y", "b.y"),
        ("a.*.>", "{{wildcard(1)}}.>", "a.x.y.z", "x.y.z"),
        ("*", "{{split(1,-)}}", "-a--b-c-", "a.b.c"),
        ("*", "{{left(1,2)}}.{{right(1,2)}}", "abcd", "ab.cd"),
        ("*", "{{SplitFromLeft(1,3)}}", "abcde", "abc.de"),
        ("*", "{{splitFromRight(1,3)}}", "abcde", "ab.cde"),
        ("*", "{{sliceFromLeft(1,2)}}", "abcde", "ab.cd.e"),
        ("*", "{{sliceFromRight(1,2)}}", "abcde", "a.bc.de"),
        ("*", "{{left(1,9)}}", "abc", "abc"),
        ("*", "p.{{random(1)}}", "abc", "p.0"),
    ],
)
def test_a_subject_becomes_what_the_destination_says(
    source: str, destination: str, subject: str, becomes: str | None
) -> None:
    assert SubjectTransform(source, destination).match(subject) == becomes


def test_partitions_spread_subjects_and_are_always_the_same() -> None:
    transform = SubjectTransform("*", "{{partition(4,1)}}")
    found = [transform.match(f"key{n}") for n in range(100)]
    assert set(found) == {"0", "1", "2", "3"} and found == [transform.match(f"key{n}") for n in range(100)]


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("a.>", "b"),
        ("a", "b.>"),
        ("a.*", "b.*"),
        ("a..b", "c"),
        ("a.*", "{{wildcard(2)}}"),
        ("a.*", "{{wildcard()}}"),
        ("a.*", "{{unknown(1)}}"),
        ("a.*", "{{split(1)}}"),
    ],
)
def test_what_cannot_be_is_refused(source: str, destination: str) -> None:
    with pytest.raises(InvalidArgument):
        SubjectTransform(source, destination)
