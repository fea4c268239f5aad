class Walker:
    def __init__(self, program: list[int]) -> None: ...
    def unfit(self, values: list[bytes | None], head: bytes, bytes_max: int) -> list[int]:
        """The places of those that do not begin with `head` and go on as the schema says. What is empty or None fits."""
