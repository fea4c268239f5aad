"""The console: pages rendered here, live parts by htmx and server-sent events, nothing loaded from elsewhere."""
