"""Pure functions of the compiled modules once more, in plain Python: what the property tests and the fuzzers compare with.

Change an oracle with its `.pyx`. What has state (delivery, sinks, tickets, flushing) has none: its tests say what it does.
"""
