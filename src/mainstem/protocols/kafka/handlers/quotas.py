"""DescribeClientQuotas and AlterClientQuotas: Kafka's words for the quotas of users, which hold for every protocol.

    {user: NAME}            the user's own
    producer_byte_rate      publish_bytes_per_s
    consumer_byte_rate      consume_bytes_per_s

Quotas of client ids and addresses, of the default user and Kafka's other keys do not exist here, and are refused. Those of a
namespace are `mainstem namespace alter`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.broker.namespaces.quotas import USER, Limits
from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import is_admin
from mainstem.protocols.kafka.messages import AlterClientQuotasResponse, DescribeClientQuotasResponse

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

EXACT, DEFAULT, ANY = range(3)  # how an entity is matched
KEYS = {"producer_byte_rate": "publish_bytes_per_s", "consumer_byte_rate": "consume_bytes_per_s"}
NOT_ADMIN = "only an admin may see and change quotas"


def describe(request: Request) -> Any:
    if not is_admin(request):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeClientQuotasResponse(error_code=code, error_message=NOT_ADMIN, entries=None)
    body, answer = request.body, DescribeClientQuotasResponse(error_message=None, entries=[])
    by_type = {one.entity_type: one for one in body.components}
    if len(by_type) != len(body.components):
        answer.error_code, answer.error_message = ErrorCode.INVALID_REQUEST, "an entity type is named twice"
        return answer
    asked = by_type.pop("user", None)
    if by_type or (asked is None and body.strict and body.components):
        return answer  # entities that have no quotas here
    for name, user in sorted(request.service.access.users.items()):
        values = _values(user.quota)
        if values and (asked is None or asked.match_type == ANY or (asked.match_type == EXACT and asked.match == name)):
            entity = DescribeClientQuotasResponse.EntityData(entity_type="user", entity_name=name)
            answer.entries.append(DescribeClientQuotasResponse.EntryData(entity=[entity], values=values))
    return answer


def _values(limits: Limits) -> list[Any]:
    return [
        DescribeClientQuotasResponse.ValueData(key=key, value=float(getattr(limits, name)))
        for key, name in KEYS.items()
        if getattr(limits, name)
    ]


async def alter(request: Request) -> Any:
    answer = AlterClientQuotasResponse()
    for entry in request.body.entries:
        one = AlterClientQuotasResponse.EntryData(error_message=None)
        one.entity = [
            AlterClientQuotasResponse.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
            for part in entry.entity
        ]
        one.error_code, one.error_message = await _alter(request, entry)
        answer.entries.append(one)
    return answer


async def _alter(request: Request, entry: Any) -> tuple[int, str | None]:
    if not is_admin(request):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOT_ADMIN
    if [part.entity_type for part in entry.entity] != ["user"] or entry.entity[0].entity_name is None:
        return (
            ErrorCode.INVALID_REQUEST,
            "only a user that is named has a quota; a namespace's: mainstem namespace alter",
        )
    unknown = [op.key for op in entry.ops if op.key not in KEYS]
    if unknown:
        return ErrorCode.INVALID_REQUEST, f"unknown quota {unknown[0]!r}; known are {', '.join(KEYS)}"
    access, name = request.service.access, entry.entity[0].entity_name
    given = {KEYS[op.key]: None if op.remove else int(op.value) for op in entry.ops}
    try:
        limits = access.user(name).quota.changed(given, USER)
        if not request.body.validate_only:
            await access.set_quota(name, limits)
    except MainstemError as fault:
        return ErrorCode.RESOURCE_NOT_FOUND if fault.code == "MS-1001" else code_of(fault), fault.message
    return ErrorCode.NONE, None


HANDLERS = {48: describe, 49: alter}
