from mainstem.protocols.kafka.adapter import KafkaConnection

class PlainFetches:
    def __init__(self, connection: KafkaConnection) -> None:
        """`connection` has logged in."""
    def take(self, data: memoryview) -> bool:
        """Whether the request was one, and is answered."""
