"""The HTTP door: API, metrics, console. It calls the broker as protocols do and owns no state."""
