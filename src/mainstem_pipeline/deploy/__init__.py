"""Pipelines that are kept running on a machine: what is deployed there, and the supervisor that runs it."""
