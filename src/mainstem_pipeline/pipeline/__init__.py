"""Declared pipelines: one YAML file from devices to tables, checked before it runs, run by Spark."""
