"""/metrics for Prometheus: `families.py` names what there is, `collecting.py` reads it, `exposition.py` writes it."""
