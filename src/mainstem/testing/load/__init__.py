"""The load generator: one compiled process that drives any broker and counts what it really did."""
