"""More than one machine: cells with one fenced owner each, on PostgreSQL and an object store. See docs/cluster.md."""
