"""What the registry refuses: the error codes and texts that clients of Confluent's registry know."""

from __future__ import annotations

from mainstem.model.errors import ClientFault

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")


class SchemaFault(ClientFault):
    """`error_code`: the registry's; its first three digits are the HTTP status."""

    code = "MS-1009"

    def __init__(self, error_code: int, message: str, *, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.error_code = error_code

    @property
    def status(self) -> int:
        return self.error_code if self.error_code < 1000 else self.error_code // 100


def subject_not_found(subject: str) -> SchemaFault:
    return SchemaFault(40401, f"Subject '{subject}' not found.", fix="mainstem schema ls")


def version_not_found(version: int | str) -> SchemaFault:
    return SchemaFault(40402, f"Version {version} not found.", fix="mainstem schema describe SUBJECT")


def schema_not_found(schema_id: int | str | None = None) -> SchemaFault:
    return SchemaFault(40403, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def subject_soft_deleted(subject: str) -> SchemaFault:
    return SchemaFault(40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> SchemaFault:
    return SchemaFault(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> SchemaFault:
    return SchemaFault(
        40406, f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"
    )


def version_not_soft_deleted(subject: str, version: int) -> SchemaFault:
    return SchemaFault(
        40407, f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    )


def no_level(subject: str) -> SchemaFault:
    return SchemaFault(40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_mode(subject: str) -> SchemaFault:
    return SchemaFault(40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(subject: str, messages: list[str]) -> SchemaFault:
    details = ", ".join(messages)
    return SchemaFault(
        409,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: [{details}]',
    )


def invalid_schema(why: str) -> SchemaFault:
    return SchemaFault(42201, f"Invalid schema: {why}")


def invalid_version(version: str) -> SchemaFault:
    return SchemaFault(
        42202,
        f"The specified version '{version}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"',
    )


def invalid_level() -> SchemaFault:
    return SchemaFault(
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
        "forward_transitive, and full_transitive",
    )


def invalid_mode() -> SchemaFault:
    return SchemaFault(42204, f"Invalid mode. Valid values are {', '.join(MODES)}.")


def not_permitted(why: str) -> SchemaFault:
    return SchemaFault(42205, why)


def referenced(subject: str, version: int) -> SchemaFault:
    return SchemaFault(
        42206,
        f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}.",
    )


def invalid_subject(subject: str) -> SchemaFault:
    return SchemaFault(42208, f"The specified subject '{subject}' is not a valid.")


def not_checked(why: str, *, fix: str = "") -> SchemaFault:
    """The process that checks schemas could not."""
    return SchemaFault(50001, f"Error in the backend: {why}", fix=fix)
