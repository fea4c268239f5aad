"""Asking the log: SQL by DuckDB and search, answered while one looks. The broker never imports it; it starts it."""
