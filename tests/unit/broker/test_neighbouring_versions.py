"""What a topic's settings look like in the metadata, which a broker of the version before or after this one may read."""

from __future__ import annotations

import pytest

from mainstem.broker.namespaces.settings import NamespaceSettings
from mainstem.broker.topics.policy import UNKNOWN_BEFORE, Policy
from mainstem.model.errors import InvalidArgument


def test_a_setting_that_the_version_before_refuses_is_stored_only_where_it_was_asked_for() -> None:
    assert not UNKNOWN_BEFORE.keys() & Policy().to_document().keys()
    live_only = Policy(store=False)
    assert live_only.to_document()["store"] is False
    assert Policy.of_document(live_only.to_document()) == live_only
    assert Policy.of_document(Policy(partitions=3).to_document()) == Policy(partitions=3)


def test_a_setting_of_the_version_after_this_one_is_passed_over_when_it_is_read_and_refused_when_it_is_given() -> None:
    stored = {**Policy(partitions=2).to_document(), "invented_later": 1}
    assert Policy.of_document(stored) == Policy(partitions=2)
    assert NamespaceSettings.of_document({"policy": {"invented_later": 1, "partitions": 2}}).policy == {"partitions": 2}
    with pytest.raises(InvalidArgument, match="invented_later"):
        Policy().with_changes({"invented_later": 1})
