"""The shared log's topic index: the offsets of a topic, or of all topics a filter means, without reading the log."""

from __future__ import annotations

from mainstem.log._topic_index_reference import TopicIndex

__all__ = ["TopicIndex"]
