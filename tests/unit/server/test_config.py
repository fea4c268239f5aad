"""Configuration: layers in order, every problem at once, with line, reason and suggestion."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mainstem.broker.topics.policy import Policy as BrokerPolicy
from mainstem.server.config import ConfigProblems, load_config, show_config
from mainstem.server.config_reference import reference_page
from mainstem.server.explanations import CATALOGUE
from mainstem.server.listeners import LISTENERS, TLS_LISTENERS
from mainstem.server.settings import SECTIONS, Config, Policy, Topics
from mainstem.server.toml_lines import locate_keys
from mainstem.server.units import parse_duration_ms, parse_size_bytes, show_duration_ms, show_size_bytes

ROOT = Path(__file__).parents[3]


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mainstem.toml"
    file.write_text(text)
    return file


def test_defaults_need_nothing() -> None:
    config = load_config()
    ports: Any = config.listeners
    assert (ports.host, ports.mqtt_port, config.topics.durability) == ("127.0.0.1", 1883, "sync")
    assert all(shown.source == "default" for shown in show_config(config))


def test_each_layer_wins_over_the_one_before(tmp_path: Path) -> None:
    file = write(tmp_path, '[listeners]\nmqtt_port = 1\nkafka_port = 2\namqp_port = 3\n[topics]\ndurability = "os"\n')
    environment = {"MAINSTEM_LISTENERS__KAFKA_PORT": "20", "MAINSTEM_LISTENERS__AMQP_PORT": "30", "MAINSTEM_URL": "x"}
    config = load_config(file, environment, ["listeners.amqp_port=300"])
    ports: Any = config.listeners
    assert (ports.mqtt_port, ports.kafka_port, ports.amqp_port, ports.ws_port) == (1, 20, 300, 8083)
    sources = {shown.key: shown.source for shown in show_config(config)}
    assert sources["listeners.mqtt_port"] == "mainstem.toml:2"
    assert sources["listeners.kafka_port"] == "MAINSTEM_LISTENERS__KAFKA_PORT"
    assert sources["listeners.amqp_port"] == "--set"
    assert sources["listeners.ws_port"] == "default"


def test_policies_keep_their_order_and_take_kafka_names(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[policies."sensors/#"]\nretention.ms = "7d"\nmax.message.bytes = "1MiB"\n[policies.orders]\nretention.bytes = -1\n',
    )
    config = load_config(file, {}, ["policies.a/+.engine=rocksdb"])
    assert list(config.policies) == ["sensors/#", "orders", "a/+"]
    assert config.policies["sensors/#"].retention_ms == 7 * 86_400_000
    assert config.policies["sensors/#"].message_bytes_max == 1 << 20
    assert config.policies["orders"].retention_bytes == -1
    assert config.policies["orders"].retention_ms is None
    assert config.policies["a/+"].engine == "rocksdb"


def test_every_problem_is_told_at_once_with_line_reason_and_suggestion(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[listeners]\nhost = "127.0.0.1"\nmqtt_port = "18883x"  # why\n\n'
        '[policies."s/#"]\nretention.mss = "7d"\n[limit]\nx = 1\n[mqtt]\ndurability = "os"\n',
    )
    with pytest.raises(ConfigProblems) as caught:
        load_config(file, {"MAINSTEM_HTTP__CONSOLE": "maybe"}, ["nonsense"])
    text = str(caught.value)
    assert len(caught.value.problems) == 6
    assert "error[MS-4002] [listeners] mqtt_port: expected a port number or \"off\", got '18883x'" in text
    assert (
        '  mainstem.toml:6  retention.mss = "7d"\n                   ^^^^^^^^^^^^^ did you mean `retention.ms`?\n'
        in text
    )
    assert "did you mean [limits]?" in text
    assert "did you mean `topics.durability`?" in text
    assert "environment MAINSTEM_HTTP__CONSOLE" in text
    assert text.endswith(
        "6 problems; nothing was started. Check again: mainstem config check    More: mainstem explain MS-4002"
    )


def test_a_file_that_is_not_toml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblems, match=r"not TOML: .*line 2"):
        load_config(write(tmp_path, "[a]\nb = = 3\n"))


def test_a_missing_file_is_a_problem_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblems, match="is not there"):
        load_config(tmp_path / "none.toml")


def test_a_port_can_be_switched_off() -> None:
    ports: Any = load_config(flags=["listeners.amqp_port=off"]).listeners
    assert ports.amqp_port is None


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("30s", 30_000), ("1h30m", 5_400_000), ("1.5h", 5_400_000), ("7d", 604_800_000), ("42", 42)],
)
def test_durations_are_read_as_people_write_them(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms
    assert parse_duration_ms(show_duration_ms(ms)) == ms


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), ("10GB", 10**10), ("1k", 1024), ("7", 7), ("1.5 KiB", 1536)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size
    assert parse_size_bytes(show_size_bytes(size)) == size


@pytest.mark.parametrize("text", ["", "7 parsecs", "d7", "7d!", "-3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("value", ["9" * 30, "9999999999999999d", "9" * 400 + "d"])
def test_what_no_64_bits_hold_is_refused(value: str) -> None:
    for key in ("limits.drain_ms", "topics.retention_ms"):
        with pytest.raises(ConfigProblems, match="is more than"):
            load_config(flags=[f"{key}={value}"])


def test_an_odd_digit_is_no_number() -> None:
    for flag in ("topics.durability=interval:²", "limits.topics_max=--5", "mqtt.receive_max=²"):
        with pytest.raises(ConfigProblems, match="expected"):
            load_config(flags=[flag])


def test_the_locator_sees_through_quotes_arrays_and_strings() -> None:
    text = '[a."b.c"]\nx.y = 1\nlist = [\n  "k = 3",\n]\nlong = """\nz = 5\n"""\nlast = 2\n'
    lines = locate_keys(text)
    assert lines[("a", "b.c")] == 1
    assert lines[("a", "b.c", "x", "y")] == 2
    assert lines[("a", "b.c", "last")] == 9
    assert ("a", "b.c", "z") not in lines


def test_the_reference_page_is_what_the_code_says() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert page == reference_page(), "run: mainstem config reference > docs/configuration.md"
    for section, kind in SECTIONS.items():
        assert f"`[{section}]`" in page
        for one in fields(kind):
            assert f"| `{one.name}` |" in page


def test_every_section_is_in_the_config() -> None:
    names = {one.name for one in fields(Config)}
    assert names == {*SECTIONS, "policies", "sources"}


def test_every_error_code_in_the_source_is_explained() -> None:
    used = {
        code
        for file in (ROOT / "src").rglob("*.py*")
        if file.suffix in (".py", ".pyx")
        for code in re.findall(r"MS-\d{4}", file.read_text())
    }
    assert used <= set(CATALOGUE)


def test_every_setting_is_read_by_someone() -> None:
    """A setting that nobody reads is a promise not kept."""
    files = [file for file in (ROOT / "src/mainstem").rglob("*.py") if file.name != "settings.py"]
    source = "\n".join(file.read_text() for file in files)
    listed = {*LISTENERS.values(), *TLS_LISTENERS.values()}  # read by name, all in one place
    of_topics = {one.name for one in fields(Topics)} - {"auto_create"}
    assert of_topics <= {one.name for one in fields(BrokerPolicy)}
    assert {one.name for one in fields(Policy)} == of_topics
    for section, kind in SECTIONS.items():
        for one in fields(kind):
            if section != "topics" and one.name not in listed:
                assert re.search(rf"\b{section}\.{one.name}\b|\.{one.name}\b", source), f"[{section}] {one.name}"
