"""Every topic has one name in each protocol, and every name is one topic."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainstem.model.cut_names import CutNames
from mainstem.model.errors import InvalidName
from mainstem.model.topic import (
    amqp_key,
    filter_of_amqp,
    is_kafka_name,
    kafka_name,
    topic_levels,
    topic_of_amqp,
    topic_of_kafka,
)
from mainstem.model.topic_filter import check_filter, matches

# Characters that mean something to some codec, and the pieces that read like escapes.
PIECES = [
    "a",
    "Z",
    "0",
    "x",
    ".",
    "_",
    "%",
    "/",
    " ",
    "-",
    "é",
    "€",
    "𝄞",
    "$",
    "2",
    "F",
    "%25",
    "%2E",
    "%2F",
    "%C3",
    "%A9",
]
PIECES += ["__", "_x2F", "_x5F", "_.", "%2525", "*", ">", ":", "\x01", "_h"]
topics = st.lists(st.sampled_from(PIECES), min_size=1, max_size=14).map("".join).map(str.encode) | st.text(
    st.characters(exclude_characters="+#\0", codec="utf-8"), min_size=1, max_size=30
).map(str.encode)
kafka_names = st.text("aZ0x_.-2F5E", min_size=1, max_size=24).filter(lambda name: name not in (".", ".."))
amqp_keys = st.lists(
    st.sampled_from([piece.encode() for piece in PIECES] + [b"\xff", b"\xc3", b"\0", b"+", b"#"]), max_size=14
).map(b"".join) | st.binary(max_size=60)


@pytest.mark.parametrize(
    ("topic", "kafka", "amqp"),
    [
        (b"sensors/dev_1/temp", "sensors.dev_1.temp", b"sensors.dev_1.temp"),
        (b"10.0.0.1/x", "10_.0_.0_.1.x", b"10%2E0%2E0%2E1.x"),
        (b"/a//b", ".a..b", b".a..b"),
        (b"a b/c", "a_x20b.c", b"a b.c"),
        (b"/", "_x2F", b"."),
        (b"//", "_x2F_x2F", b".."),
        (b"///", "...", b"..."),
        (b"a_/b", "a__.b", b"a_.b"),
        (b"a_x/b", "a__x.b", b"a_x.b"),
        ("é".encode(), "_xC3_xA9", "é".encode()),
        (b"100%/x", "100_x25.x", b"100%.x"),
        (b"a%2Fb", "a_x252Fb", b"a/b"),
        (b"a%252Fb", "a_x25252Fb", b"a%2Fb"),
        (b"a%FFb", "a_x25FFb", b"a\xffb"),
        (b"$SYS/x", "_x24SYS.x", b"$SYS.x"),
    ],
)
def test_the_spellings_of_the_table(topic: bytes, kafka: str, amqp: bytes) -> None:
    assert kafka_name(topic) == kafka
    assert topic_of_kafka(kafka) == topic
    assert amqp_key(topic) == amqp
    assert topic_of_amqp(amqp) == topic


@pytest.mark.parametrize("name", ["a__b", "__consumer_offsets", "a_", "_x2f", "_x41", "_", "a__b.c", "_x2B", "_x00"])
def test_a_kafka_name_that_no_codec_writes_stands_for_its_own_text(name: str) -> None:
    assert topic_of_kafka(name) == name.encode()
    assert kafka_name(name.encode()) == name


def test_what_looks_like_a_percent_escape_in_mqtt_but_is_none_stays_as_it_is() -> None:
    assert topic_levels(b"%C3%A9/%2e/%2F/%25") == [b"%C3%A9", b"%2e", b"/", b"%25"]
    assert amqp_key(b"%C3%A9") == b"%C3%A9"
    assert topic_of_amqp(b"%C3%A9") == b"%C3%A9"


@settings(max_examples=2000, deadline=None)
@given(topics)
@example(b"a___b")
@example(b"%25C3%25A9")
def test_a_topic_comes_back_from_every_spelling(topic: bytes) -> None:
    name = kafka_name(topic)
    assert is_kafka_name(name.encode())
    assert topic_of_kafka(name) == topic
    key = amqp_key(topic)
    assert len(key) <= 255
    assert topic_of_amqp(key) == topic


@settings(max_examples=2000, deadline=None)
@given(kafka_names)
def test_a_kafka_name_comes_back_from_its_topic(name: str) -> None:
    topic = topic_of_kafka(name)
    assert kafka_name(topic) == name
    assert b"+" not in topic
    assert b"#" not in topic
    assert b"\0" not in topic
    topic.decode()


@settings(max_examples=2000, deadline=None)
@given(amqp_keys)
def test_a_routing_key_comes_back_from_its_topic(key: bytes) -> None:
    topic = topic_of_amqp(key)
    assert amqp_key(topic) == key
    assert topic.count(b"/") == key.count(b".")
    assert not {b"+", b"#", b"\0"} & {topic[i : i + 1] for i in range(len(topic))}
    topic.decode()


def test_every_short_kafka_name_is_another_topic() -> None:
    """Exhaustively, where random names would hardly meet."""
    alphabet = "ax_.2F"
    names = [""]
    seen: dict[bytes, str] = {}
    for _ in range(6):
        names = [name + letter for name in names for letter in alphabet]
        for name in names:
            if name not in (".", ".."):
                assert seen.setdefault(topic_of_kafka(name), name) == name


def test_a_name_made_to_be_slow_is_not() -> None:
    hostile = b"%" + b"25" * 500 + b"2F"
    assert topic_of_amqp(amqp_key(hostile[:200])) == hostile[:200]
    assert len(amqp_key(hostile)) <= 255


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "é", "a b", "x" * 250])
def test_what_is_no_kafka_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        topic_of_kafka(name)


class TestLongNames:
    LONG = b"site/" + "é".encode() * 200 + b"/end"

    def test_are_cut_at_a_character_and_told_apart_by_a_hash(self) -> None:
        key = amqp_key(self.LONG)
        assert len(key) <= 255
        start, _, digest = key.rpartition(b"_h")
        start.decode()
        assert self.LONG.replace(b"/", b".").startswith(start)
        assert 197 <= len(start) <= 200
        assert len(digest) == 26
        name = kafka_name(self.LONG)
        assert len(name) == 200 + 2 + 26
        assert name.endswith(digest.decode())
        assert kafka_name(self.LONG + b"x") != name

    def test_lead_back_once_they_are_known(self) -> None:
        name, key = kafka_name(self.LONG), amqp_key(self.LONG)
        assert topic_of_kafka(name) == self.LONG
        assert topic_of_amqp(key) == self.LONG
        assert filter_of_amqp(key) == self.LONG

    def test_unknown_ones_are_refused_until_somebody_tells(self) -> None:
        names = CutNames()
        cut = CutNames().cut(self.LONG, self.LONG)
        with pytest.raises(InvalidName, match="short form"):
            names.topic_of(cut, amqp_key)
        asked: list[int] = []

        def source() -> list[bytes]:
            asked.append(1)
            return [b"short", self.LONG]

        names.sources.append(source)
        cut = amqp_key(self.LONG)
        assert names.topic_of(cut, amqp_key) == self.LONG
        assert len(names) == 1
        with pytest.raises(InvalidName):
            names.topic_of(cut[:-1] + b"7", amqp_key)
        assert asked == [1]

    def test_the_same_hash_behind_another_beginning_is_no_name(self) -> None:
        name = kafka_name(self.LONG)
        with pytest.raises(InvalidName):
            topic_of_kafka("y" + name[1:])

    def test_a_topic_that_is_spelled_like_a_cut_name_is_cut_itself(self) -> None:
        looks = kafka_name(self.LONG).encode()
        name = kafka_name(looks)
        assert name.encode() != looks
        assert topic_of_kafka(name) == looks
        assert topic_of_amqp(amqp_key(looks)) == looks
        assert topic_of_kafka(looks.decode()) == self.LONG

    def test_the_oldest_are_forgotten_when_there_are_too_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mainstem.model.cut_names.CUT_NAMES_MAX", 2)
        names = CutNames()
        for letter in (b"a", b"b", b"c"):
            names.remember(letter * 300)
        assert len(names) == 2


@pytest.mark.parametrize(
    ("pattern", "topic_filter"),
    [
        (b"a.*.c", b"a/+/c"),
        (b"#", b"#"),
        (b"a.#.z", b"a/#/z"),
        (b"a+b.x#y", b"a%2Bb/x%23y"),
        (b">.a", b"%3E/a"),
        (b"%2E", b"."),
        (b"", b""),
    ],
)
def test_a_binding_pattern_becomes_a_filter(pattern: bytes, topic_filter: bytes) -> None:
    assert filter_of_amqp(pattern) == topic_filter


def amqp_matches(pattern: list[bytes], words: list[bytes]) -> bool:
    """AMQP 0-9-1's own rule, spelled out."""
    if not pattern:
        return not words
    if pattern[0] == b"#":
        return amqp_matches(pattern[1:], words) or (bool(words) and amqp_matches(pattern, words[1:]))
    return bool(words) and pattern[0] in (b"*", words[0]) and amqp_matches(pattern[1:], words[1:])


words = st.sampled_from([b"a", b"b", b"", b"%2E", b"%2A", b"%252A", b">", b"+", b"x/y", b"\xff", b"%"])


@settings(max_examples=1000, deadline=None)
@given(st.lists(words | st.sampled_from([b"*", b"#"]), min_size=1, max_size=5), st.lists(words, min_size=1, max_size=6))
def test_a_pattern_means_the_same_keys_as_its_filter(pattern: list[bytes], key: list[bytes]) -> None:
    topic_filter = filter_of_amqp(b".".join(pattern))
    if topic_filter:
        check_filter(topic_filter)
    assert matches(topic_filter, topic_of_amqp(b".".join(key))) == amqp_matches(pattern, key)
