import pytest

from tests.protocol.mqtt.raw import Raw, unique


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_is_the_lower_of_publish_and_subscription(port: int, published: int, subscribed: int) -> None:
    topic = unique("qos")
    with Raw.connected(port) as subscriber, Raw.connected(port) as publisher:
        assert subscriber.subscribe((topic, subscribed)) == [subscribed]
        publisher.publish(topic, b"x", qos=published)
        message = subscriber.message()
        assert (message.qos, message.dup, message.retain) == (min(published, subscribed), False, False)
