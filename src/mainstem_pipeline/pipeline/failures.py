"""How a pipeline can end, each with its own exit code."""

from __future__ import annotations

import re

from mainstem.model.errors import ConfigError, DiskFull, MainstemError, Overloaded
from mainstem_pipeline.client import BrokerUnreachable
from mainstem_pipeline.lake.commits import Fenced
from mainstem_pipeline.lake.room import WORDS
from mainstem_pipeline.session import HANDSHAKE
from mainstem_pipeline.slices import DataLoss

DONE, FAILED, BAD_FILE, DATA_LOSS, BAD_RECORDS, SINK_FAILED, UNREACHABLE = 0, 1, 2, 3, 4, 5, 69
MESSAGE_CHARACTERS_MAX = 1_000


class BadRecords(MainstemError):
    """Too many records of a batch could not be used."""

    code = "MS-7005"


class SinkFailed(MainstemError):
    """A sink did not take the batch."""

    code = "MS-7006"


class FlowFailed(MainstemError):
    """A flow ended for a reason of its own: its SQL, its Python, its data."""

    code = "MS-7007"


EXIT_CODES: tuple[tuple[type[MainstemError], int], ...] = (
    (ConfigError, BAD_FILE),
    (DataLoss, DATA_LOSS),
    (BadRecords, BAD_RECORDS),
    (BrokerUnreachable, UNREACHABLE),
    (SinkFailed, SINK_FAILED),
    (Fenced, SINK_FAILED),
    (DiskFull, SINK_FAILED),
)
# Errors of the source come out of Spark as text: their class names are in it.
KNOWN: dict[str, type[MainstemError]] = {
    "DataLoss": DataLoss,
    "BrokerUnreachable": BrokerUnreachable,
    "DiskFull": DiskFull,
    "Overloaded": Overloaded,
}
_RAISED = re.compile(r"^(?:[\w.]*\.)?(\w+): (.+)$", re.MULTILINE)
_OURS = re.compile(r"^mainstem(?:_pipeline)?\.[\w.]+: (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^(?:: |Caused by: )[\w.$]+(?:Error|Exception): |^An error occurred while calling \S+$")
_NOISE = re.compile(r"\s*SQLSTATE: \w+(?:;? \(?line (\d+),? pos (\d+)\)?)?;?\s*$")
_FIX = re.compile(r"\s*\(fix: (.+)\)$", re.DOTALL)  # as errors of ours end when only their text is left


def exit_code(error: Exception) -> int:
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), FAILED)


def is_transient(error: Exception) -> bool:
    """Whether starting the flow again may help: nothing is lost by it, batches are done once."""
    if isinstance(error, DiskFull):
        return False
    return isinstance(error, BrokerUnreachable | Overloaded) or bool(HANDSHAKE.search(str(error)))


def understood(error: Exception, flow: str) -> MainstemError:
    """A failure of Spark in our words: what a Python error said, without the pages around it."""
    if isinstance(error, MainstemError):
        return error
    text = str(error)
    for name, message in reversed(_RAISED.findall(text)):
        kind = KNOWN.get(name)
        if kind is not None:
            return _told(kind, flow, _short(message))
    if any(word in text for word in WORDS):  # Spark's own files: its checkpoints, what it spills
        return DiskFull(f"flow {flow}: {reason_of(text)}", fix="free space, then run it again: it goes on where it was")
    return _told(FlowFailed, flow, reason_of(text))


def shortly(error: Exception) -> MainstemError:
    """Anything that Spark raised outside a flow, in one sentence."""
    if isinstance(error, MainstemError):
        return error
    text = str(error)
    fix = "--debug shows where it comes from"
    if "JAVA_GATEWAY_EXITED" in text:
        fix = f"look at the end of Spark's log, and at the settings under spark: in the file; {fix}"
    elif "masters are unresponsive" in text or "Master removed our application" in text:
        fix = f"check --master: does a Spark master answer there? {fix}"
    return FlowFailed(f"Spark failed: {reason_of(text) or type(error).__name__}", fix=fix)


def _told(kind: type[MainstemError], flow: str, reason: str) -> MainstemError:
    """The fix that the text ends with is one again."""
    fix = _FIX.search(reason)
    return kind(f"flow {flow}: {_FIX.sub('', reason)}", fix=fix[1] if fix is not None else "")


def reason_of(text: str) -> str:
    """The one line of an error's text that says what is wrong."""
    ours = _OURS.findall(text)
    if ours:
        return _short(ours[-1])
    raised = [f"{name}: {message}" for name, message in _RAISED.findall(text) if name.endswith(("Error", "Exception"))]
    lines = [line for line in (_JAVA.sub("", one) for one in text.splitlines()) if line.strip()]
    for line in lines:
        if line.startswith("[") and "Traceback" not in line:  # Spark's own class of error, and its sentence
            return _short(line)
    return _short(raised[-1] if raised else lines[0] if lines else text)


def _short(text: str) -> str:
    told = _NOISE.sub(lambda found: f" (line {found[1]}, column {found[2]})" if found[1] else "", text.strip())
    return told[:MESSAGE_CHARACTERS_MAX]
