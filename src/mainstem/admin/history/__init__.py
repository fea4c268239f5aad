"""Figures over time, for charts: `rings.py` keeps them, `figures.py` takes them, `keeper.py` writes them to the log."""
