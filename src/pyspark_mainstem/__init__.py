"""Found by Spark by its name: packages called `pyspark_*` that have a `DefaultSource` are registered by themselves.

Kept tiny, because Spark waits only ten seconds for the process that imports it.
"""

from mainstem_pipeline.source import MainstemSource as DefaultSource

__all__ = ["DefaultSource"]
