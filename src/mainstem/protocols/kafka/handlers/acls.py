"""DescribeAcls, CreateAcls, DeleteAcls: rules are kept on canonical topics for all protocols, not in Kafka's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainstem.protocols.kafka.errors import ErrorCode
from mainstem.protocols.kafka.messages import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse

if TYPE_CHECKING:
    from mainstem.protocols.kafka.adapter import Request

WHY = "No Authorizer is configured: access is ruled for all protocols with `mainstem user allow USER ACTION FILTER`"


def describe_acls(request: Request) -> Any:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=WHY)


def create_acls(request: Request) -> Any:
    result = CreateAclsResponse.AclCreationResult
    refusal = result(error_code=ErrorCode.SECURITY_DISABLED, error_message=WHY)
    return CreateAclsResponse(results=[refusal for _ in request.body.creations])


def delete_acls(request: Request) -> Any:
    result = DeleteAclsResponse.DeleteAclsFilterResult
    refusal = result(error_code=ErrorCode.SECURITY_DISABLED, error_message=WHY)
    return DeleteAclsResponse(filter_results=[refusal for _ in request.body.filters])


HANDLERS = {29: describe_acls, 30: create_acls, 31: delete_acls}
