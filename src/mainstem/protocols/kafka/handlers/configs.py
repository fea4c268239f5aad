"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mainstem.broker.rights.access import Action
from mainstem.model.errors import InvalidArgument, MainstemError
from mainstem.protocols.kafka.broker_settings import broker_settings
from mainstem.protocols.kafka.config_table import (
    CLUSTER_WIDE,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    Kind,
    Origin,
    Setting,
    checked,
    find_setting,
    policy_for,
    shown_value,
    topic_origin,
)
from mainstem.protocols.kafka.errors import ErrorCode, code_of
from mainstem.protocols.kafka.handlers.permission import absent, may, may_group, may_see
from mainstem.protocols.kafka.messages import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from mainstem.broker.topics.policy import Policy
    from mainstem.protocols.kafka.adapter import Request

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
NODE_NAME = "1"


class _Refused(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


# -- describing --------------------------------------------------------------------------------------------------------


async def describe_configs(request: Request) -> Any:
    answer, work = DescribeConfigsResponse(), request.service.broker.turns.slices(request.namespace.name)
    for asked in request.body.resources:
        if work.over:
            await work.next()
        one = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        answer.results.append(one)
        try:
            entries = _entries(request, asked.resource_type, asked.resource_name)
        except _Refused as refusal:
            one.error_code, one.error_message = refusal.code, refusal.message
            continue
        except MainstemError as fault:
            one.error_code, one.error_message = code_of(fault), fault.message
            continue
        wanted = set(asked.configuration_keys or ())  # none: all
        one.configs = [_shown(request, *entry) for entry in entries if not wanted or entry[0].name in wanted]
    return answer


def _entries(request: Request, kind: int, name: str) -> list[tuple[Setting, str, Origin, bool, str]]:
    """(setting, value, where it comes from, read-only, default) of one resource."""
    if kind == TOPIC:
        topic = _topic(request, name)
        policy, config = _settings_of(request, topic)
        base = request.namespace.policy(topic.canonical)
        return [
            (
                setting,
                shown_value(setting, policy, config),
                topic_origin(setting, config),
                topic.view is not None,
                shown_value(setting, base, {}),
            )
            for setting in TOPIC_SETTINGS.values()
        ]
    if kind == BROKER and name in (NODE_NAME, ""):
        shown = broker_settings(request.service.config, request.connection.dialled(), request.service.broker.options)
        return [
            (s, s.default, Origin.CLUSTER if s.name in CLUSTER_WIDE else Origin.STATIC_BROKER, True, s.default)
            for s in shown
            if name or s.name in CLUSTER_WIDE  # without a name: what is set for all brokers
        ]
    if kind == GROUP and name:
        if not may_group(request, Action.DESCRIBE, name):
            raise _Refused(
                ErrorCode.GROUP_AUTHORIZATION_FAILED, f"{request.principal.name} may not describe group {name}"
            )
        config = request.service.group_configs.get(request.group_key(name), {})
        default = request.service.shares.default
        return [
            (s, config.get(s.name, default(s.name)), _group_origin(s, config), False, default(s.name))
            for s in GROUP_SETTINGS.values()
        ]
    if kind in (BROKER_LOGGER, CLIENT_METRICS):
        return []
    raise _Refused(
        ErrorCode.INVALID_REQUEST, f"there is no resource {name!r} of type {kind}; the broker is {NODE_NAME}"
    )


def _group_origin(setting: Setting, config: dict[str, str]) -> Origin:
    return Origin.GROUP if setting.name in config else Origin.DEFAULT


def _shown(request: Request, setting: Setting, value: str, origin: Origin, read_only: bool, default: str) -> Any:
    answer = DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=setting.name,
        value=value,
        read_only=read_only,
        config_source=origin,
        config_type=setting.kind,
        documentation=setting.doc or None if request.body.include_documentation else None,
    )
    if request.body.include_synonyms:
        synonym = DescribeConfigsResponse.DescribeConfigsSynonym
        if origin in (Origin.TOPIC, Origin.GROUP):
            answer.synonyms.append(synonym(name=setting.name, value=value, source=origin))
        if setting.name in CLUSTER_WIDE:
            answer.synonyms.append(synonym(name=setting.name, value=default, source=Origin.CLUSTER))
        if setting.synonym or origin is Origin.CLUSTER:
            answer.synonyms.append(synonym(name=setting.synonym or setting.name, value=default, source=Origin.DEFAULT))
    return answer


def _topic(request: Request, name: str) -> Any:
    topic = request.topics.find(name)
    if topic is None and absent(request, name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    if topic is None or not may_see(request, topic.canonical):
        raise _Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{request.principal.name} may not describe {name}")
    return topic


def _settings_of(request: Request, topic: Any) -> tuple[Policy, Mapping[str, str]]:
    if topic.topic is not None:
        return topic.topic.policy, topic.topic.config
    return request.namespace.policy(topic.canonical), {}


# -- altering ----------------------------------------------------------------------------------------------------------


async def alter_configs(request: Request) -> Any:
    """Replaces all that was set: what is not named goes back to its default."""
    answer = AlterConfigsResponse()
    for asked in request.body.resources:
        values = {one.name: one.value or "" for one in asked.configs}
        one = AlterConfigsResponse.AlterConfigsResourceResponse(
            resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        answer.responses.append(one)
        one.error_code, one.error_message = await _change(request, asked, lambda kind, old, new=values: new)
    return answer


async def incremental_alter_configs(request: Request) -> Any:
    answer = IncrementalAlterConfigsResponse()
    for asked in request.body.resources:
        one = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
            resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        answer.responses.append(one)
        one.error_code, one.error_message = await _change(
            request, asked, lambda kind, old, steps=asked.configs: _stepped(kind, old, steps)
        )
    return answer


def _stepped(settings: Mapping[str, Setting], old: Mapping[str, str], steps: list[Any]) -> dict[str, str]:
    new = dict(old)
    seen: set[str] = set()
    for step in steps:
        if step.name in seen:
            raise _Refused(ErrorCode.INVALID_REQUEST, f"{step.name} is named twice")
        seen.add(step.name)
        if step.config_operation == DELETE:  # what nobody knows is not set either
            new.pop(step.name, None)
            continue
        setting = find_setting(settings, step.name)
        if step.config_operation == SET:
            if step.value is None:
                raise _Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for {step.name}")
            new[step.name] = step.value
        elif step.config_operation in (APPEND, SUBTRACT):
            if setting.kind is not Kind.LIST:
                raise _Refused(ErrorCode.INVALID_CONFIG, f"{step.name} is not a list: it can only be set or deleted")
            now = [part for part in new.get(step.name, setting.default).split(",") if part]
            parts = [part.strip() for part in (step.value or "").split(",")]
            if step.config_operation == APPEND:
                now += [part for part in parts if part not in now]
            else:
                now = [part for part in now if part not in parts]
            new[step.name] = ",".join(now)
        else:
            raise _Refused(ErrorCode.INVALID_REQUEST, f"operation {step.config_operation} is not one of 0 to 3")
    return new


async def _change(request: Request, asked: Any, change: Any) -> tuple[ErrorCode, str | None]:
    try:
        if asked.resource_type == TOPIC:
            await _change_topic(request, asked.resource_name, change)
        elif asked.resource_type == GROUP:
            _change_group(request, asked.resource_name, change)
        elif asked.resource_type in (BROKER, BROKER_LOGGER):
            raise _Refused(
                ErrorCode.POLICY_VIOLATION, "the broker's own settings are in its configuration file (mainstem config)"
            )
        else:
            raise _Refused(ErrorCode.INVALID_REQUEST, f"resources of type {asked.resource_type} have no settings here")
    except _Refused as refusal:
        return refusal.code, refusal.message
    except MainstemError as fault:
        return code_of(fault), fault.message
    return ErrorCode.NONE, None


async def _change_topic(request: Request, name: str, change: Any) -> None:
    found = _topic(request, name)
    if not may(request, Action.CONFIGURE, found.canonical):
        raise _Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{request.principal.name} may not alter {name}")
    if found.topic is None:
        raise _Refused(ErrorCode.INVALID_CONFIG, f"{name} is a view; it has no settings of its own")
    _, config = _settings_of(request, found)
    new = checked(TOPIC_SETTINGS, change(TOPIC_SETTINGS, config))
    kept = {"partitions": found.count, "layout": found.topic.policy.layout}
    base = request.namespace.policy(found.canonical).with_changes(kept)
    policy = policy_for(base, new)
    if request.body.validate_only:
        return
    topic = request.topics.declare(found).topic
    assert topic is not None
    old = topic.policy
    moves = policy.engine != old.engine or policy.dedicated != old.dedicated
    moves = moves or (not policy.dedicated and policy.stem_key() != old.stem_key())
    broker = request.service.broker
    if moves:
        await broker.relocate_topic(request.namespace, topic, policy)
    await broker.alter_topic(request.namespace, topic, policy, kafka=new)


def _change_group(request: Request, name: str, change: Any) -> None:
    if not name:
        raise _Refused(ErrorCode.INVALID_REQUEST, "a group without a name has no settings")
    if not may_group(request, Action.CONFIGURE, name):
        raise _Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"{request.principal.name} may not alter group {name}")
    key = request.group_key(name)
    new = checked(GROUP_SETTINGS, change(GROUP_SETTINGS, request.service.group_configs.get(key, {})))
    reset = new.get("share.auto.offset.reset", "latest")
    if reset not in ("earliest", "latest") and not reset.startswith("by_duration:"):
        raise InvalidArgument(
            f"share.auto.offset.reset {reset!r} is not one of earliest, latest, by_duration:<ISO 8601>"
        )
    if not request.body.validate_only:
        request.service.coordinator.set_group_config(key, new)
        request.service.shares.follow_settings(request.namespace, name)


def list_config_resources(request: Request) -> Any:
    wanted = set(request.body.resource_types) or {TOPIC, BROKER, GROUP}
    kind = ListConfigResourcesResponse.ConfigResource
    answer = ListConfigResourcesResponse()
    if request.version == 0:  # client metrics only
        return answer
    if TOPIC in wanted:
        seen = (topic for topic in request.topics.listed() if may_see(request, topic.canonical))
        answer.config_resources += [kind(resource_name=topic.name, resource_type=TOPIC) for topic in seen]
    if BROKER in wanted:
        answer.config_resources.append(kind(resource_name=NODE_NAME, resource_type=BROKER))
    if GROUP in wanted:
        names = (request.service.group_name(request.namespace, key) for key in request.service.group_configs)
        answer.config_resources += [
            kind(resource_name=name, resource_type=GROUP)
            for name in names
            if name is not None and may_group(request, Action.DESCRIBE, name)
        ]
    return answer


HANDLERS = {32: describe_configs, 33: alter_configs, 44: incremental_alter_configs, 74: list_config_resources}
