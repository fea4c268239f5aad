"""The way of one message: `stations.py` tells where it stands now, `tracer.py` writes down when it came there."""
