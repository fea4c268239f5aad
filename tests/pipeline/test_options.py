"""Options of the data source, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem.model.errors import InvalidArgument
from mainstem_pipeline.options import read_options

BASE = {"subscribe": "orders"}


def parsed(streaming: bool = False, **options: str) -> Any:
    return read_options({**BASE, **options}, streaming=streaming)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "exactly one of the options"),
        ({"subscribe": "a", "filter": "b"}, "subscribe and filter are given"),
        ({"subscrbe": "a"}, "did you mean subscribe"),
        ({"subscribe": "a", "startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"subscribePattern": "a("}, "not a regular expression"),
        ({"assign": "[]"}, "must be a JSON object"),
        ({"assign": '{"a": 0}'}, "must look like"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "must be earliest, latest"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": "x"}}'}, "must look like"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "cannot start at the latest"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, "cannot end at the earliest"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "-5"}, "whole number of at least 1"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"subscribe": "a", "columns": "key,valeu"}, "did you mean value"),
        ({"subscribe": " , "}, "names no topic"),
        ({"assign": "{}"}, "must look like"),
        ({"assign": '{"a": ["x"]}'}, "must look like"),
        ({"subscribe": "a", "startingOffsets": "{}"}, "must look like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {}}'}, "must look like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -7}}'}, "must look like"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": true}}'}, "must look like"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": "{}"}, "must look like"),
        ({"subscribe": "a", "endingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "must look like"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "lates"}, "must be error or latest"),
        ({"subscribe": "a", "retrySeconds": "soon"}, "must be a number of seconds"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_meant(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        read_options(given, streaming=False)


@pytest.mark.parametrize("url", ["http://host:port", "ftp://host", "http://host:99999"])
def test_an_address_that_is_none_is_told_with_what_one_looks_like(url: str) -> None:
    with pytest.raises(InvalidArgument, match="not a broker's address"):
        parsed(url=url).connection.client()


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidArgument, match="availableNow"):
        parsed(streaming=True, endingOffsets="latest")


def test_defaults_are_the_kafka_sources() -> None:
    batch, stream = parsed(), parsed(streaming=True)
    assert (batch.start.word, batch.end.word, stream.start.word) == ("earliest", "latest", "latest")
    assert batch.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert batch.fail_on_data_loss


def test_option_names_are_read_in_any_case() -> None:
    assert read_options({"SUBSCRIBE": "a", "includeheaders": "TRUE"}, streaming=False).columns[-1] == "headers"


def test_a_filter_brings_the_topics_levels_along() -> None:
    assert read_options({"filter": "a/#"}, streaming=False).columns[-4:] == (
        "canonical_topic",
        "levels",
        "origin",
        "content_type",
    )


def test_a_job_of_the_kafka_source_finds_the_broker_on_the_same_host() -> None:
    options = parsed(**{"kafka.bootstrap.servers": "db7:9092,db8:9092", "kafka.security.protocol": "PLAINTEXT"})
    assert options.connection.url == "http://db7:7070"
