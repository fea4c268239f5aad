"""The lakehouse: topics as Iceberg tables, written in descriptor mode, committed exactly once, read with SQL."""
