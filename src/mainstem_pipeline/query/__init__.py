"""SQL over topics, views and tables, hot and cold in one answer."""
