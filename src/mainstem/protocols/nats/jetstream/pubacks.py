"""Who waits for a PubAck, without an object for each message: replies and places in their batch, in arrays.

    PUB subject reply n ──wire──▶ record into the open batch, reply into its `PubAcks` ──durable──▶ all acks at once:
    MSG reply sid n CRLF {"stream":"S","seq":N} CRLF …       N = the batch's first offset + the record's place + 1

A stream's `Gate` is what the wire keeps of it. Publishes that ask for more than to be stored (`publishing.py`) are acked
through it too, so that acks leave in the order of publishing.
"""

from __future__ import annotations

from mainstem.protocols.nats.jetstream._pubacks import Gate

__all__ = ["Gate"]
