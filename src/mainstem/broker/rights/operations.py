"""Every operation there is, the right it needs, and who can ask for it: one table for all protocols.

The HTTP endpoints name their line of it, and are checked by it; docs/http-api.md tells it; the authorisation tests are made
from it. What an operation needs is said by its scope:

    public      nothing: nobody is asked who they are
    login       a login; what is told is the caller's own
    object      the right on each object that it names, in the caller's namespace
    each        nothing: it lists, and shows only objects on which the caller has the right
    whole       the right on every topic of the namespace (`#`, and nothing denied)
    namespace   the right on the namespace itself (`manage`)
    broker      an admin: it concerns the broker, or more than one namespace

An admin may do everything, and may name another namespace; everyone else has but their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mainstem.broker.rights.rules import Action, Kind


class Scope(StrEnum):
    PUBLIC = "public"
    LOGIN = "login"
    OBJECT = "object"
    EACH = "each"
    WHOLE = "whole"
    NAMESPACE = "namespace"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Need:
    """What one operation needs."""

    operation: str
    scope: Scope
    action: Action | None = None
    kind: Kind | None = None
    protocols: tuple[str, ...] = ("http",)

    def __str__(self) -> str:
        match self.scope:
            case Scope.PUBLIC:
                return "nothing"
            case Scope.LOGIN:
                return "a login"
            case Scope.OBJECT:
                return f"`{self.action}` on the {self.kind}"
            case Scope.EACH:
                return f"a login; shows what the caller may `{self.action}`"
            case Scope.WHOLE:
                return f"`{self.action}` on all of the namespace (`#`)"
            case Scope.NAMESPACE:
                return f"`{self.action}` on the namespace"
            case Scope.BROKER:
                return "an admin"


_TOPIC, _QUEUE, _EXCHANGE, _GROUP = Kind.TOPIC, Kind.QUEUE, Kind.EXCHANGE, Kind.GROUP
_TRANSACTION, _NAMESPACE = Kind.TRANSACTION, Kind.NAMESPACE
_PUBLISH, _CONSUME, _CREATE, _CONFIGURE = Action.PUBLISH, Action.CONSUME, Action.CREATE, Action.CONFIGURE
_DELETE, _DESCRIBE, _MANAGE = Action.DELETE, Action.DESCRIBE, Action.MANAGE
_NAMED, _EACH, _WHOLE, _OWN, _BROKER = Scope.OBJECT, Scope.EACH, Scope.WHOLE, Scope.NAMESPACE, Scope.BROKER
_EVERYWHERE = ("mqtt", "kafka", "amqp", "http")
_KAFKA, _AMQP, _NATS = ("kafka", "http"), ("amqp", "http"), ("nats", "http")

TABLE = (
    Need("health.read", Scope.PUBLIC),
    Need("metrics.read", Scope.PUBLIC),  # or a login: [http] metrics_public
    Need("metrics.per-object", _BROKER),
    Need("console.login", Scope.PUBLIC),  # the login page, an OpenID Connect provider, logout
    Need("self.read", Scope.LOGIN),
    Need("overview.read", Scope.LOGIN),
    Need("overview.rates", _BROKER),
    Need("history.read", Scope.LOGIN),  # the broker's: an admin; of an object: `describe` on it
    Need("topic.publish", _NAMED, _PUBLISH, _TOPIC, (*_EVERYWHERE, "nats")),
    Need("topic.consume", _NAMED, _CONSUME, _TOPIC, (*_EVERYWHERE, "nats")),
    Need("topic.create", _NAMED, _CREATE, _TOPIC, _KAFKA),
    Need("topic.configure", _NAMED, _CONFIGURE, _TOPIC, _KAFKA),
    Need("topic.delete", _NAMED, _DELETE, _TOPIC, _KAFKA),
    Need("topic.describe", _NAMED, _DESCRIBE, _TOPIC, _KAFKA),
    Need("topic.list", _EACH, _DESCRIBE, _TOPIC, _KAFKA),
    Need("view.create", _NAMED, _CREATE, _TOPIC),  # and `consume` on everything it shows
    Need("view.consume", _NAMED, _CONSUME, _TOPIC, _EVERYWHERE),
    Need("view.delete", _NAMED, _DELETE, _TOPIC),
    Need("view.describe", _NAMED, _DESCRIBE, _TOPIC),
    Need("view.list", _EACH, _DESCRIBE, _TOPIC),
    Need("stream.create", _NAMED, _CREATE, _TOPIC, _NATS),  # on all topics that a stream of JetStream takes
    Need("stream.configure", _NAMED, _CONFIGURE, _TOPIC),
    Need("stream.consume", _NAMED, _CONSUME, _TOPIC, ("nats",)),
    Need("stream.purge", _NAMED, _DELETE, _TOPIC, ("nats",)),
    Need("stream.delete", _NAMED, _DELETE, _TOPIC, ("nats",)),
    Need("stream.describe", _NAMED, _DESCRIBE, _TOPIC, _NATS),
    Need("stream.list", _EACH, _DESCRIBE, _TOPIC),
    Need("queue.create", _NAMED, _CREATE, _QUEUE, ("mqtt", "amqp", "http")),  # and `consume` on what enters it
    Need("queue.consume", _NAMED, _CONSUME, _QUEUE, _EVERYWHERE),
    Need("queue.configure", _NAMED, _CONFIGURE, _QUEUE),
    Need("queue.purge", _NAMED, _CONSUME, _QUEUE, _AMQP),
    Need("queue.redrive", _NAMED, _CONSUME, _QUEUE),
    Need("queue.delete", _NAMED, _DELETE, _QUEUE, _AMQP),
    Need("queue.describe", _NAMED, _DESCRIBE, _QUEUE, _AMQP),
    Need("queue.list", _EACH, _DESCRIBE, _QUEUE),
    Need("policy.list", _OWN, _MANAGE, _NAMESPACE),  # of queues
    Need("policy.put", _OWN, _MANAGE, _NAMESPACE),
    Need("policy.remove", _OWN, _MANAGE, _NAMESPACE),
    Need("exchange.create", _NAMED, _CREATE, _EXCHANGE, _AMQP),
    Need("exchange.publish", _NAMED, _PUBLISH, _EXCHANGE, _AMQP),
    # On all topics that the binding means; and of a queue that is bound `publish`, `create` or `configure` (`may_bind`).
    Need("exchange.bind", _NAMED, _CONSUME, _TOPIC, _AMQP),
    Need("exchange.delete", _NAMED, _DELETE, _EXCHANGE, _AMQP),
    Need("exchange.describe", _NAMED, _DESCRIBE, _EXCHANGE, _AMQP),
    Need("exchange.list", _EACH, _DESCRIBE, _EXCHANGE),
    Need("group.consume", _NAMED, _CONSUME, _GROUP, ("kafka",)),  # join, commit, fetch offsets
    Need("group.create", _NAMED, _CREATE, _GROUP),
    Need("group.reset", _NAMED, _CONFIGURE, _GROUP, _KAFKA),
    Need("group.delete", _NAMED, _DELETE, _GROUP, _KAFKA),
    Need("group.describe", _NAMED, _DESCRIBE, _GROUP, _KAFKA),
    Need("group.list", _EACH, _DESCRIBE, _GROUP, _KAFKA),
    Need("transaction.publish", _NAMED, _PUBLISH, _TRANSACTION, ("kafka",)),
    Need("transaction.describe", _NAMED, _DESCRIBE, _TRANSACTION, ("kafka",)),
    Need("transaction.list", _EACH, _DESCRIBE, _TRANSACTION, ("kafka",)),
    Need("schema.list", _EACH, _DESCRIBE, _TOPIC),  # of the topic that the subject is about
    Need("schema.describe", _NAMED, _DESCRIBE, _TOPIC),  # or `consume`, or `publish`
    Need("schema.register", _NAMED, _CONFIGURE, _TOPIC),  # also a subject's level and mode
    Need("schema.delete", _NAMED, _DELETE, _TOPIC),
    Need("schema.configure-all", _OWN, _MANAGE, _NAMESPACE),
    Need("session.list", _OWN, _MANAGE, _NAMESPACE),
    Need("session.describe", _OWN, _MANAGE, _NAMESPACE),
    Need("session.delete", _OWN, _MANAGE, _NAMESPACE),
    Need("cursor.list", _OWN, _MANAGE, _NAMESPACE),
    Need("connection.list", _OWN, _MANAGE, _NAMESPACE),
    Need("connection.describe", _OWN, _MANAGE, _NAMESPACE),
    Need("connection.end", _OWN, _MANAGE, _NAMESPACE),
    Need("trace.list", _EACH, _CONSUME, _TOPIC),
    Need("query.run", _EACH, _CONSUME, _TOPIC),
    Need("search.run", _EACH, _CONSUME, _TOPIC),
    Need("scan.read", _EACH, _CONSUME, _TOPIC),
    Need("stage.write", _EACH, _PUBLISH, _TOPIC),
    Need("catalog.read", _WHOLE, _CONSUME, _TOPIC),  # the lake, as an Iceberg REST catalog
    Need("catalog.write", _WHOLE, _PUBLISH, _TOPIC),
    Need("archive.list", _WHOLE, _CONSUME, _TOPIC),
    Need("archive.report", _WHOLE, _CONSUME, _TOPIC),
    Need("archive.forget", _WHOLE, _CONSUME, _TOPIC),
    Need("pipeline.list", _WHOLE, _CONSUME, _TOPIC),
    Need("pipeline.tell", _WHOLE, _CONSUME, _TOPIC),
    Need("definitions.read", _OWN, _MANAGE, _NAMESPACE),
    Need("definitions.write", _BROKER),
    Need("namespace.list", _BROKER),
    Need("namespace.describe", _OWN, _MANAGE, _NAMESPACE),
    Need("namespace.add", _BROKER),
    Need("namespace.alter", _BROKER),
    Need("namespace.remove", _BROKER),
    Need("user.list", _BROKER),
    Need("user.describe", _BROKER),
    Need("user.add", _BROKER),
    Need("user.alter", _BROKER),
    Need("user.remove", _BROKER),
    Need("role.list", _BROKER),
    Need("role.put", _BROKER),
    Need("role.remove", _BROKER),
    Need("rule.explain", _BROKER),
    Need("rule.list", _BROKER, protocols=_KAFKA),
    Need("rule.add", _BROKER, protocols=_KAFKA),
    Need("rule.remove", _BROKER, protocols=_KAFKA),
    Need("quota.list", _BROKER, protocols=("kafka",)),  # by HTTP they are the user's and the namespace's
    Need("quota.alter", _BROKER, protocols=("kafka",)),
    Need("events.read", _BROKER),
    Need("config.read", _BROKER),
    Need("log.list", _BROKER),
    Need("backup.make", _BROKER),
    Need("work.list", Scope.LOGIN),
    Need("node.read", Scope.LOGIN),
    Need("aliveness.test", _OWN, _MANAGE, _NAMESPACE),
)
NEEDS: dict[str, Need] = {need.operation: need for need in TABLE}
