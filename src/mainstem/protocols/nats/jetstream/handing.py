"""Messages of a consumer on their way to those who pull, from the log's frames straight into the clients' buffers.

    MSG subject sid $JS.ACK.<stream>.<consumer>.1.<stream seq>.<consumer seq>.<stamp>.<pending> size CRLF payload CRLF

Pulls that wait get a message each, in turns. It is the way of the plain ones: unread messages, given for the first time, to
pulls that each have one listener and no limit in bytes. `delivery.py` gives everything else message by message.
"""

from __future__ import annotations

from mainstem.protocols.nats.jetstream._handing import Handing, Target

__all__ = ["Handing", "Target"]
