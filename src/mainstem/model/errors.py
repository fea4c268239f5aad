"""Everything Mainstem raises on purpose. The class says who is at fault and what happens next.

MainstemError
├── ClientFault        answer with the protocol's own code, keep the connection
│   ├── NotFound           a topic, view, queue, group or log that is not there
│   ├── AlreadyExists      a name that is taken, or would merge with another
│   ├── InvalidName        a topic, filter or other name that cannot be
│   ├── InvalidArgument    a setting or argument that makes no sense
│   ├── NotAuthorized
│   ├── OffsetOutOfRange
│   ├── MessageTooLarge
│   ├── InvalidRecord      a value that does not match the schema of its topic
│   ├── NotStored          a topic that is live only (`store = false`) was asked to keep something
│   └── Conflict           what it was to change was changed by someone else meanwhile
├── PeerViolation      the bytes break the protocol: say so if it can be said, then close
├── Overloaded         a bounded resource is full: refuse, and let the peer retry
│   ├── DiskFull
│   └── QuotaExceeded      of a namespace or a user
├── ConfigError        the operator's file, flag or data directory: say all of it, then exit 78
└── StorageFault       a promise to the disk was not kept
    ├── CorruptFrame       bytes that do not validate
    │   └── UnreadableBatch    the checksum fits: a client sent records that cannot be read
    └── DamagedLog         acked data is damaged: the log is not served until repaired
"""

from __future__ import annotations


class MainstemError(Exception):
    """Carries a stable code (`mainstem explain CODE`) and, where there is one, the command that fixes it."""

    code: str = "MS-0000"

    def __init__(self, message: str, *, fix: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        if code:
            self.code = code


class ClientFault(MainstemError):
    code = "MS-1000"


class NotFound(ClientFault):
    code = "MS-1001"


class AlreadyExists(ClientFault):
    code = "MS-1002"


class InvalidName(ClientFault):
    code = "MS-1003"


class InvalidArgument(ClientFault):
    code = "MS-1004"


class NotAuthorized(ClientFault):
    code = "MS-1005"


class OffsetOutOfRange(ClientFault):
    code = "MS-1006"

    def __init__(self, asked: int, start: int, end: int) -> None:
        super().__init__(f"offset {asked} is outside {start}..{end}")
        self.asked, self.start, self.end = asked, start, end


class MessageTooLarge(ClientFault):
    code = "MS-1007"


class Conflict(ClientFault):
    code = "MS-1008"


class InvalidRecord(ClientFault):
    code = "MS-1010"


class NotStored(ClientFault):
    code = "MS-1011"


class PeerViolation(MainstemError):
    code = "MS-2000"


class Overloaded(MainstemError):
    code = "MS-3000"


class DiskFull(Overloaded):
    code = "MS-3001"


class QuotaExceeded(Overloaded):
    code = "MS-3003"


class ConfigError(MainstemError):
    code = "MS-4000"


class StorageFault(MainstemError):
    code = "MS-5000"


class CorruptFrame(StorageFault):
    code = "MS-5001"


class UnreadableBatch(CorruptFrame):
    code = "MS-5003"


class DamagedLog(StorageFault):
    code = "MS-5002"
