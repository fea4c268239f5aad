"""Spark reads and writes the log: the data source and sink, declared pipelines, and the lakehouse.

The broker never imports this package; this package sees of the broker only `model` and `codec`, and its HTTP API.
"""
