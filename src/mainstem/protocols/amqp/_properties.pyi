def check_properties(properties: bytes) -> tuple[bool, bool, bool, int]:
    """(well formed, persistent, needs a look, time in ms or 0): for tests and for the slow path."""
