"""JetStream's small words: times, durations, header lines, and the document of a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mainstem.model.nats_headers import header_value, with_lines
from mainstem.model.times import NO_TIME, time_ns, time_text
from mainstem.protocols.nats.documents import parse
from mainstem.protocols.nats.jetstream.errors import JsError, invalid_json

NUMBER_MAX = (1 << 63) - 1
NUMBER_DIGITS_MAX = 20


def status(code: int, text: str, lines: Iterable[tuple[str, object]] = ()) -> bytes:
    more = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"NATS/1.0 {code} {text}\r\n{more}\r\n".encode()


def document(payload: bytes, known: frozenset[str] | None = None) -> dict[str, Any]:
    """A request's JSON object; an empty payload is an empty one. Keys that are not known are refused."""
    if not payload.strip():
        return {}
    try:
        found = parse(payload)
    except ValueError as error:
        raise invalid_json(str(error)) from None
    if not isinstance(found, dict):
        raise invalid_json("json: cannot unmarshal into Go value")
    if known is not None:
        check_keys(found, known)
    return found


def check_keys(found: dict[str, Any], known: frozenset[str]) -> None:
    for key in found:
        if key not in known:
            raise invalid_json(f'json: unknown field "{key}"')


def number(found: dict[str, Any], key: str, default: int = 0) -> int:
    value = found.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not -NUMBER_MAX <= value <= NUMBER_MAX:
        raise invalid_json(f"json: cannot unmarshal value into Go struct field {key}")
    return value


def unsigned(found: dict[str, Any], key: str) -> int:
    value = number(found, key)
    if value < 0:
        raise invalid_json(f"json: cannot unmarshal number {value} into Go struct field {key} of type uint64")
    return value


def numbers(found: dict[str, Any], key: str) -> list[int]:
    value = found.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid_json(f"json: cannot unmarshal value into Go struct field {key} of type []time.Duration")
    return [number({key: one}, key) for one in value]


def string(found: dict[str, Any], key: str) -> str:
    value = found.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise invalid_json(f"json: cannot unmarshal value into Go struct field {key} of type string")
    return value


def flag(found: dict[str, Any], key: str) -> bool:
    value = found.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid_json(f"json: cannot unmarshal value into Go struct field {key} of type bool")
    return bool(value)


def texts(found: dict[str, Any], key: str) -> list[str]:
    value = found.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise invalid_json(f"json: cannot unmarshal value into Go struct field {key} of type []string")
    return value


def objects(found: dict[str, Any], key: str, known: frozenset[str] | None = None) -> dict[str, Any]:
    value = found.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid_json(f"json: cannot unmarshal value into Go struct field {key}")
    if known is not None:
        check_keys(value, known)
    return value


def metadata(found: dict[str, Any]) -> dict[str, str]:
    """Without what a server itself puts there."""
    given = objects(found, "metadata")
    return {key: string(given, key) for key in given if not key.startswith("_nats.")}


def metadata_size(found: dict[str, Any]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in metadata(found).items())


__all__ = [
    "NO_TIME",
    "JsError",
    "check_keys",
    "document",
    "flag",
    "header_value",
    "metadata",
    "metadata_size",
    "number",
    "numbers",
    "objects",
    "status",
    "string",
    "texts",
    "time_ns",
    "time_text",
    "unsigned",
    "with_lines",
]
