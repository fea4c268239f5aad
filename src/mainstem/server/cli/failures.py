"""What only a command line can fail with."""

from __future__ import annotations

from mainstem.model.errors import MainstemError

EX_FAILED, EX_UNAVAILABLE, EX_CONFIG = 1, 69, 78


class Unreachable(MainstemError):
    """Nobody answers at the address."""

    code = "MS-6001"


class WrongPeer(MainstemError):
    """Somebody answers, but it is not a Mainstem, or not that protocol."""

    code = "MS-6002"


class MissingExtra(MainstemError):
    """A part of Mainstem that needs packages which are not installed."""

    code = "MS-6003"


class Refused(MainstemError):
    """The broker answered, and said no."""

    code = "MS-6004"


class SystemRefused(MainstemError):
    """A file, a directory or the command's own output: the operating system said no."""

    code = "MS-6005"
