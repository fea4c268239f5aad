"""DescribeUserScramCredentials and AlterUserScramCredentials: the SCRAM side of the broker's users.

A client salts the password itself, so what it brings opens SCRAM logins only: a user made here can log in by PLAIN, MQTT,
AMQP or HTTP once it has a password (`mainstem user passwd`). Rights are the broker's rules, as for every user.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mainstem.broker.identity.passwords import SCRAM_HASHES, scram_document
from mainstem.metadata.store import Written
from mainstem.model.errors import MainstemError
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import is_admin
from mainstem.protocols.kafka.messages import AlterUserScramCredentialsResponse, DescribeUserScramCredentialsResponse

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}  # by Kafka's numbers
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384
NOT_ADMIN = "only an admin may see and change users"


def describe(request: Request) -> Any:
    if not is_admin(request):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeUserScramCredentialsResponse(error_code=code, error_message=NOT_ADMIN)
    answer = DescribeUserScramCredentialsResponse()
    users = request.service.access.users
    asked = Counter(one.name for one in request.body.users or ())
    for name in sorted(asked or users):
        one = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(user=name)
        credentials = users[name].credentials if name in users else {}
        kept = [number for number, mechanism in MECHANISMS.items() if credentials.get(mechanism)]
        if asked[name] > 1:
            one.error_code, one.error_message = ErrorCode.DUPLICATE_RESOURCE, f"{name} is named twice"
        elif not kept:
            if not asked:
                continue
            one.error_code, one.error_message = ErrorCode.RESOURCE_NOT_FOUND, f"{name} has no SCRAM credentials"
        else:
            one.credential_infos = [
                DescribeUserScramCredentialsResponse.CredentialInfo(
                    mechanism=number, iterations=credentials[MECHANISMS[number]]["iterations"]
                )
                for number in kept
            ]
        answer.results.append(one)
    return answer


async def alter(request: Request) -> Any:
    body = request.body
    kind = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    changes = [*body.deletions, *body.upsertions]
    if not is_admin(request):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        names = dict.fromkeys(one.name for one in changes)
        return AlterUserScramCredentialsResponse(
            results=[kind(user=name, error_code=code, error_message=NOT_ADMIN) for name in names]
        )
    by_user: dict[str, list[Any]] = {}
    for one in changes:
        by_user.setdefault(one.name, []).append(one)
    answer = AlterUserScramCredentialsResponse()
    for name, wanted in by_user.items():
        try:
            code, why, written = _alter_one(request, name, wanted)
            if written is not None:
                await written
        except MainstemError as fault:
            code, why = code_of(fault), fault.message
        answer.results.append(kind(user=name, error_code=code, error_message=why))
    return answer


def _alter_one(request: Request, name: str, wanted: list[Any]) -> tuple[ErrorCode, str | None, Written | None]:
    """All that one user's request asks for, or nothing."""
    access = request.service.access
    user = access.users.get(name)
    credentials = dict(user.credentials) if user is not None else {}
    if len({one.mechanism for one in wanted}) < len(wanted):
        return ErrorCode.DUPLICATE_RESOURCE, f"{name}: a mechanism is named twice", None
    for one in wanted:
        mechanism = MECHANISMS.get(one.mechanism)
        if mechanism is None:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"mechanism {one.mechanism} is not SCRAM-SHA-256 or -512", None
        if not hasattr(one, "salted_password"):
            if credentials.pop(mechanism, None) is None:
                return ErrorCode.RESOURCE_NOT_FOUND, f"{name} has no {mechanism} credentials", None
            continue
        if not ITERATIONS_MIN <= one.iterations <= ITERATIONS_MAX or not one.name:
            why = f"iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}, and a user has a name"
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, why, None
        credentials[mechanism] = scram_document(mechanism, bytes(one.salt), one.iterations, bytes(one.salted_password))
    if user is not None:
        return ErrorCode.NONE, None, access.set_password(name, credentials or dict.fromkeys(SCRAM_HASHES))
    return ErrorCode.NONE, None, access.add_user(name, credentials, namespace=request.namespace.name)


HANDLERS = {50: describe, 51: alter}
