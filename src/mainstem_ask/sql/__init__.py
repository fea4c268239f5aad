"""SQL over topics, views and tables by DuckDB: the rows of `mainstem sql`, without Spark's start."""
