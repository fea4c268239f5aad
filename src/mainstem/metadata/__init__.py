"""The small consistent facts: which topics, logs, views and declarations exist. Never records, never shared topics."""
