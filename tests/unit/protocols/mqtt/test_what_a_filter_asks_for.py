import pytest

from mainstem.broker.sessions.keeper import share_name
from mainstem.model.errors import InvalidName
from mainstem.protocols.mqtt.subscribing.filters import Asked, Kind, parse_filter


def parse(text: bytes) -> Asked:
    return parse_filter(text, bytes_max=100, levels_max=10)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (b"a/+/#", Asked(Kind.PLAIN, b"a/+/#")),
        (b"$share/g/a/#", Asked(Kind.SHARE, b"a/#", "g")),
        (b"$queue/q", Asked(Kind.QUEUE, b"", "q")),
        (b"$queue/q/a/b", Asked(Kind.QUEUE, b"a/b", "q")),
        (b"$stream/a/#", Asked(Kind.STREAM, b"a/#")),
        (b"$stream/@earliest/a", Asked(Kind.STREAM, b"a", offset="earliest")),
        (b"$stream/@ts:2024-01-01T00:00:00Z/a", Asked(Kind.STREAM, b"a", offset="ts:2024-01-01T00:00:00Z")),
        (b"$SYS/#", Asked(Kind.SYS, b"$SYS/#")),
        (b"$other/a", Asked(Kind.PLAIN, b"$other/a")),
        (b"a/*/>", Asked(Kind.PLAIN, b"a/%2A/%3E")),
    ],
)
def test_by_its_first_level(text: bytes, asked: Asked) -> None:
    assert parse(text) == asked


@pytest.mark.parametrize(
    "text", [b"", b"a/#/b", b"a#", b"+a", b"x" * 101, b"/" * 10, b"$share/g", b"$share/+/a", b"$queue/", b"$stream/@1"]
)
def test_what_is_none(text: bytes) -> None:
    with pytest.raises(InvalidName):
        parse(text)


def test_a_group_is_its_name_and_its_filter() -> None:
    assert share_name(b"$share/g/a/#") != share_name(b"$share/g/b/#") != share_name(b"$share/h/b/#")
