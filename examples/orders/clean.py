"""Transforms of the orders example: plain functions from rows to rows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def clean(rows: DataFrame) -> DataFrame:
    """Customer ids in one spelling, and the channel an order came by: the last level of its topic."""
    return rows.withColumn("customer", F.lower(F.trim("customer"))).withColumn("channel", F.element_at("_levels", -1))
