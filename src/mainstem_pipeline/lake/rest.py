"""The lake as an Iceberg REST catalog: what each request does, over the SQL catalog of the warehouse.

    python -m mainstem_pipeline.lake.rest WAREHOUSE [CATALOG]     a question a line, as the broker asks:
    {"method", "path": ["namespaces", ...], "body", "keys"}  →  {"status", "body"}

Of a bucket, a loaded table's `config` tells the endpoint and the region, and with `keys` (the broker says who gets them: see
[lake] share_keys) the keys that the broker itself uses.

A commit checks its requirements, writes the new metadata file (fsynced in a folder), and moves all its tables in one
SQL transaction, each only if it stands where the check saw it: whoever lost the race gets 409, and its files are removed. A
process that dies in between leaves the tables where they were.

What others may not do: put a table, its metadata or its manifests outside the warehouse, set properties that choose how
files are opened, append to an archive's raw table (rewriting and deleting there is allowed, as by Spark's procedures),
raise a table that archives or pipelines write to format 3 (they write format 2).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg import exceptions as iceberg

from mainstem_pipeline.lake.catalog import S3_TIMEOUTS, LakeOptions, open_catalog
from mainstem_pipeline.lake.commits import EPOCH, PREFIX, archive_source
from mainstem_pipeline.lake.format3 import FORMAT_MAX, LINEAGE, check_kept, check_whole, metadata_json, with_defaults

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import CommitTableRequest, StagedTable, Table

Answer = tuple[int, Any]
TABLES_MAX = 50  # of one transaction
# Properties by which pyiceberg or an engine chooses code, hosts or places: not for those who share the catalog.
CHOOSING = (
    *("py-", "s3.", "gcs.", "adls.", "hf.", "hdfs.", "client.", "write.metadata.path", "write.data.path"),
    *("write.py-location-provider", "write.location-provider", "write.object-storage", "write.folder-storage"),
)
SECRET = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
    "POST /v1/{prefix}/namespaces/{namespace}/register",
    "POST /v1/{prefix}/tables/rename",
    "POST /v1/{prefix}/transactions/commit",
]
ERRORS: tuple[tuple[type[Exception], int, str], ...] = (  # the first that fits
    (iceberg.NoSuchTableError, 404, "NoSuchTableException"),
    (iceberg.NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (iceberg.NamespaceAlreadyExistsError, 409, "AlreadyExistsException"),
    (iceberg.TableAlreadyExistsError, 409, "AlreadyExistsException"),
    (iceberg.NamespaceNotEmptyError, 409, "NamespaceNotEmptyException"),
    (iceberg.CommitFailedException, 409, "CommitFailedException"),
    (PermissionError, 403, "ForbiddenException"),
    (FileNotFoundError, 404, "NotFoundException"),
    (iceberg.ValidationException, 400, "BadRequestException"),
    (iceberg.ValidationError, 400, "BadRequestException"),
    (ValueError, 400, "BadRequestException"),
    (KeyError, 400, "BadRequestException"),
    (TypeError, 400, "BadRequestException"),
)


class Rest:
    def __init__(self, lake: LakeOptions) -> None:
        self._lake = lake
        self._catalog: SqlCatalog = open_catalog(lake)  # type: ignore[assignment]
        self._keys = False  # of the question that is being answered

    def answer(self, method: str, path: Sequence[str], body: Any, *, keys: bool = False) -> Answer:
        self._keys = keys
        try:
            handler, names = self._found(method, path)
            return handler(*names, body) if method == "POST" or path == ["namespaces"] else handler(*names)
        except Exception as error:
            for kind, status, name in ERRORS:
                if isinstance(error, kind):
                    return status, problem(status, name, icebergs_words(str(error)) or type(error).__name__)
            # Whether a commit happened is not known: the client must look before it tries again.
            name = "CommitStateUnknownException" if method == "POST" else "InternalServerError"
            return 500, problem(500, name, f"{type(error).__name__}: {error}")

    def _found(self, method: str, path: Sequence[str]) -> tuple[Callable[..., Answer], list[str]]:
        match method, *path:
            case "GET", "config":
                return self._config, []
            case "GET", "namespaces":
                return self._namespaces, []
            case "POST", "namespaces":
                return self._create_namespace, []
            case "GET" | "HEAD", "namespaces", space:
                return self._namespace, [space]
            case "DELETE", "namespaces", space:
                return self._drop_namespace, [space]
            case "POST", "namespaces", space, "properties":
                return self._change_namespace, [space]
            case "POST", "namespaces", space, "register":
                return self._register, [space]
            case "POST", "tables", "rename":
                return self._rename, []
            case "GET", "namespaces", space, "tables":
                return self._tables, [space]
            case "POST", "namespaces", space, "tables":
                return self._create_table, [space]
            case "GET" | "HEAD", "namespaces", space, "tables", table:
                return self._load, [space, table]
            case "POST", "namespaces", space, "tables", table:
                return self._commit, [space, table]
            case "DELETE", "namespaces", space, "tables", table:
                return self._drop, [space, table]
            case "POST", "namespaces", _, "tables", _, "metrics":
                return lambda body: (204, None), []
            case "POST", "transactions", "commit":
                return self._commit_all, []
        raise iceberg.NoSuchTableError(f"there is nothing at {method} /{'/'.join(path)}")

    # -- reading

    def _config(self) -> Answer:
        return 200, {"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS}

    def _namespaces(self, body: Any) -> Answer:
        parent = _space(str(body["parent"])) if body.get("parent") else ()
        if parent:
            self._catalog.load_namespace_properties(parent)  # or there is no such namespace
        return 200, {"namespaces": [list(one) for one in self._catalog.list_namespaces(parent)]}

    def _namespace(self, space: str) -> Answer:
        """Engines that choose a new table's place (Trino) do so by the namespace's; it is told where none was set."""
        found, place = self._catalog.load_namespace_properties(_space(space)), ".".join(_space(space))
        location = f"{self._lake.location.rstrip('/')}/{place}"
        return 200, {"namespace": _space(space), "properties": {"location": location, **found}}

    def _tables(self, space: str) -> Answer:
        self._catalog.load_namespace_properties(_space(space))
        found = self._catalog.list_tables(_space(space))
        return 200, {"identifiers": [{"namespace": list(one[:-1]), "name": one[-1]} for one in found]}

    def _load(self, space: str, name: str) -> Answer:
        return 200, self._told(self._catalog.load_table((*_space(space), name)))

    def _told(self, table: Any) -> dict[str, Any]:
        found = {"metadata-location": table.metadata_location, "metadata": _metadata(table), "config": {}}
        if self._lake.is_local:
            return found
        given = self._lake.file_properties().items()
        store = {name: one for name, one in given if name.startswith("s3.") and name not in S3_TIMEOUTS}
        opened = {name: one for name, one in store.items() if self._keys or name not in SECRET}
        if "s3.endpoint" in opened:
            opened["s3.path-style-access"] = "true"
        if "s3.region" in opened:
            opened["client.region"] = opened["s3.region"]
        if self._keys:
            found["storage-credentials"] = [{"prefix": self._lake.location, "config": opened}]
        return {**found, "config": opened}

    # -- changing

    def _create_namespace(self, body: Any) -> Answer:
        space, properties = tuple(str(one) for one in body["namespace"]), dict(body.get("properties") or {})
        self._check_properties(properties)
        self._catalog.create_namespace(space, properties)
        return 200, {"namespace": list(space), "properties": properties}

    def _change_namespace(self, space: str, body: Any) -> Answer:
        removals, updates = set(body.get("removals") or ()), dict(body.get("updates") or {})
        self._check_properties(updates)
        if both := removals & set(updates):
            return 422, problem(422, "UnprocessableEntityException", f"{', '.join(sorted(both))}: removed and updated")
        done = self._catalog.update_namespace_properties(_space(space), removals, updates)
        return 200, {"updated": done.updated, "removed": done.removed, "missing": done.missing}

    def _drop_namespace(self, space: str) -> Answer:
        self._catalog.drop_namespace(_space(space))
        return 204, None

    def _create_table(self, space: str, body: Any) -> Answer:
        from pyiceberg.catalog.rest import CreateTableRequest
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

        asked = CreateTableRequest.model_validate(
            {"location": None, "partition-spec": None, "write-order": None, **body}
        )
        self._check_properties(asked.properties)
        self._check_format(asked.properties.get("format-version", "2"))
        if asked.location is not None:
            self._check_place(asked.location)
        place = (*_space(space), asked.name)
        if self._catalog.table_exists(place):
            raise iceberg.TableAlreadyExistsError(f"Table already exists: {'.'.join(place)}")
        if not asked.stage_create and not self._catalog.namespace_exists(place[:-1]):
            raise iceberg.NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(place[:-1])}")
        staged = self._catalog._create_staged_table(
            place,
            asked.table_schema,
            location=asked.location,
            partition_spec=asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            sort_order=asked.write_order or UNSORTED_SORT_ORDER,
            properties=asked.properties,
        )
        if staged.metadata.format_version >= LINEAGE:
            schema = with_defaults(staged.metadata.schema(), asked.table_schema)
            staged.metadata = staged.metadata.model_copy(update={"schemas": [schema]})
        if not asked.stage_create:
            self._write([(None, staged)])
        found = self._told(staged)
        if asked.stage_create:  # nothing exists yet: its first commit makes it
            del found["metadata-location"]
        return 200, found

    def _drop(self, space: str, name: str) -> Answer:
        self._check_free((*_space(space), name), "drops")
        self._catalog.drop_table((*_space(space), name))
        return 204, None

    def _rename(self, body: Any) -> Answer:
        source, target = (
            (*(str(one) for one in body[side]["namespace"]), str(body[side]["name"]))
            for side in ("source", "destination")
        )
        self._check_free(source, "renames")
        self._catalog.rename_table(source, target)
        return 204, None

    def _register(self, space: str, body: Any) -> Answer:
        """A table whose metadata lies in the warehouse; it must be nobody else's under another name."""
        from pyiceberg.table import StaticTable

        place, location = (*_space(space), str(body["name"])), str(body["metadata-location"])
        if body.get("overwrite"):
            raise ValueError("overwrite is not supported: register the table under a name that is free")
        self._check_place(location)
        if self._catalog.namespace_exists(place[:-1]) and self._catalog.table_exists(place):
            raise iceberg.TableAlreadyExistsError(f"Table already exists: {'.'.join(place)}")
        found = StaticTable.from_metadata(location, self._lake.file_properties())
        self._check_format(found.format_version)
        check_whole(found.io, location)
        self._check_place(found.location())
        if (source := archive_source(found)) is not None:
            raise PermissionError(f"{location} is the archive of {source}: it has one name")
        return 200, self._told(self._catalog.register_table(place, location))

    def _check_free(self, place: tuple[str, ...], does: str) -> None:
        if (source := archive_source(self._catalog.load_table(place))) is not None:
            raise PermissionError(f"{'.'.join(place)} is the archive of {source}: only its archive {does} it")

    def _commit(self, space: str, name: str, body: Any) -> Answer:
        identifier = {"namespace": list(_space(space)), "name": name}
        (done,) = self._committed([_request({**body, "identifier": identifier})])
        return 200, {"metadata-location": done.metadata_location, "metadata": _metadata(done)}

    def _commit_all(self, body: Any) -> Answer:
        changes = body["table-changes"]
        if len(changes) > TABLES_MAX:
            raise ValueError(f"{len(changes)} tables in a transaction; at most {TABLES_MAX}")
        self._committed([_request(one) for one in changes])
        return 204, None

    def _committed(self, requests: list[CommitTableRequest]) -> list[Any]:
        """All of them, or none."""
        planned: list[tuple[Table | None, StagedTable]] = []
        for request in requests:
            place = (*request.identifier.namespace.root, request.identifier.name)
            current: Table | None = None
            with contextlib.suppress(iceberg.NoSuchTableError):
                current = self._catalog.load_table(place)
            if current is None and not any(one.type == "assert-create" for one in request.requirements):
                raise iceberg.NoSuchTableError(f"there is no table {'.'.join(place)}")
            self._check_updates(request, current)
            updates = _renumbered(request.updates, current)
            staged = self._catalog._update_and_stage_table(current, place, request.requirements, updates)
            self._check_place(staged.metadata_location)
            planned.append((current, staged))
        self._write(planned)
        return [staged for _, staged in planned]

    def _write(self, planned: list[tuple[Table | None, StagedTable]]) -> None:
        """The metadata files first; then the catalog names them all, or none stays."""
        written: list[StagedTable] = []
        try:
            for _, staged in planned:
                written.append(staged)
                self._catalog._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            self._move(planned)
        except (iceberg.CommitFailedException, iceberg.NoSuchNamespaceError):
            for staged in written:
                with contextlib.suppress(OSError):
                    staged.io.delete(staged.metadata_location)
            raise

    def _move(self, planned: list[tuple[Table | None, StagedTable]]) -> None:
        """One transaction over all tables; each must still stand where it was looked at."""
        from pyiceberg.catalog.sql import IcebergTables
        from sqlalchemy import insert, update
        from sqlalchemy.exc import IntegrityError, OperationalError
        from sqlalchemy.orm import Session

        catalog = self._catalog
        try:
            with Session(catalog.engine) as session:
                for current, staged in planned:
                    *space, name = staged.name()
                    if current is None:
                        if not catalog.namespace_exists(tuple(space)):
                            raise iceberg.NoSuchNamespaceError(f"there is no namespace {'.'.join(space)}")
                        row = catalog._create_table_row(".".join(space), name, staged.metadata_location)
                        session.execute(insert(IcebergTables).values(**row))
                        continue
                    moved: Any = session.execute(
                        update(IcebergTables)
                        .where(
                            IcebergTables.catalog_name == catalog.name,
                            IcebergTables.table_namespace == ".".join(space),
                            IcebergTables.table_name == name,
                            IcebergTables.metadata_location == current.metadata_location,
                        )
                        .values(
                            metadata_location=staged.metadata_location,
                            previous_metadata_location=current.metadata_location,
                        )
                    )
                    if moved.rowcount != 1:
                        raise iceberg.CommitFailedException(
                            f"table {'.'.join(staged.name())} was changed by another commit"
                        )
                session.commit()
        except IntegrityError:
            raise iceberg.CommitFailedException("another commit made the same table first") from None
        except OperationalError as error:
            raise iceberg.CommitFailedException(f"another process holds the catalog: {error.orig}") from None

    # -- what others may not do

    def _check_updates(self, request: CommitTableRequest, current: Table | None) -> None:
        source = archive_source(current) if current is not None else None
        for update in request.updates:
            told = update.model_dump(by_alias=True)
            match told["action"]:
                case "set-location":
                    self._check_place(told["location"])
                case "set-properties":
                    self._check_properties(told["updates"])
                case "upgrade-format-version":
                    self._check_format(told["format-version"])
                    if int(told["format-version"]) >= LINEAGE and current is not None and _is_ours(current):
                        raise PermissionError(
                            f"{'.'.join(current.name())} is written by an archive or a pipeline, in format "
                            f"{current.format_version}: they could not write it in format {told['format-version']}"
                        )
                case "remove-properties" if any(one.startswith(PREFIX) for one in told["removals"]):
                    raise PermissionError(f"properties {PREFIX}* are the archive's and pipelines' own")
                case "add-snapshot":
                    snapshot = told["snapshot"]
                    self._check_place(snapshot["manifest-list"])
                    summary = snapshot.get("summary") or {}
                    if source is not None and summary.get("operation") == "append" and EPOCH not in summary:
                        raise PermissionError(
                            f"{'.'.join(request.identifier.namespace.root)}.{request.identifier.name} is the archive of "
                            f"{source}: publish to the topic, and the archive appends it"
                        )

    def _check_place(self, location: str) -> None:
        root, place = _path(self._lake.location).rstrip("/") + "/", _path(location)
        if not place.startswith(root) or ".." in place.split("/"):
            raise ValueError(f"{location} lies outside the warehouse {self._lake.location}")

    @staticmethod
    def _check_properties(properties: Mapping[str, Any]) -> None:
        for name in properties:
            if name.startswith(CHOOSING):
                raise PermissionError(f"property {name} is refused: it says how or where files are opened")

    @staticmethod
    def _check_format(version: Any) -> None:
        if int(version) > FORMAT_MAX:
            raise ValueError(f"tables of format version {version} cannot be committed here, up to {FORMAT_MAX} can")


def _is_ours(table: Table) -> bool:
    return any(name.startswith(PREFIX) for name in table.properties)


def _path(place: str) -> str:
    """Of a folder that engines may call `file:/...` or `file:///...` as well."""
    return re.sub("^file:(//)?(?=/)", "", place)


def _renumbered(updates: tuple[Any, ...], current: Table | None) -> tuple[Any, ...]:
    """Sort orders under ids that are free: who replaces a table does not know which another commit has taken since."""
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update import AddSortOrderUpdate, SetDefaultSortOrderUpdate

    add: Any = AddSortOrderUpdate  # mypy knows their fields by their names in JSON only
    choose: Any = SetDefaultSortOrderUpdate
    taken = {one.order_id: one for one in current.metadata.sort_orders} if current is not None else {}
    same: int | None = None
    made: list[Any] = []
    for update in updates:
        if isinstance(update, AddSortOrderUpdate) and update.sort_order.order_id in taken:
            fields = update.sort_order.fields
            same = next((number for number, one in taken.items() if one.fields == fields), None)
            if same is not None:
                continue
            update = add(sort_order=SortOrder(*fields, order_id=max(taken) + 1))
        elif isinstance(update, SetDefaultSortOrderUpdate) and update.sort_order_id == -1 and same is not None:
            update = choose(sort_order_id=same)
        made.append(update)
    return tuple(made)


# pyiceberg's texts → those of Iceberg's own catalogs, by which clients and people know them.
WORDS = tuple(
    (re.compile(theirs), ours)
    for theirs, ours in (
        (r"^Namespace (\S+) does not exists?$", r"Namespace does not exist: \1"),
        (r"^Namespace \('([^']*)',?\) already exists$", r"Namespace already exists: \1"),
        (r"^Namespace does not exist: \('([^']*)',?\)$", r"Namespace does not exist: \1"),
        (r"^Table (\S+) already exists$", r"Table already exists: \1"),
        (r"^Table already exists$", "Requirement failed: table already exists"),
        (r"^Cannot open file, does not exist: ", "Failed to open input stream for file: "),
        (r"^\[Errno 2\] Failed to open local file '([^']+)'.*", r"Failed to open input stream for file: \1"),
        (r"^Table UUID does not match: (\S+) != (\S+)$", r"Requirement failed: UUID does not match: expected \2 != \1"),
        (
            r"(last assigned (?:field|partition) id) has changed: expected (\d+), found (\d+)",
            r"\1 changed: expected id \2 != \3",
        ),
        (
            r"current schema id has changed: expected (\d+), found (\d+)",
            r"current schema changed: expected id \1 != \2",
        ),
        (r"default spec id has changed: expected (\d+), found", r"default partition spec changed: expected id \1 !="),
        (r"default sort order id has changed: expected (\d+), found", r"default sort order changed: expected id \1 !="),
    )
)


def icebergs_words(text: str) -> str:
    for theirs, ours in WORDS:
        text = theirs.sub(ours, text)
    return text


def _request(body: Any) -> CommitTableRequest:
    from pydantic import ValidationError
    from pyiceberg.table import CommitTableRequest

    for update in body.get("updates") or ():
        check_kept(update)
    try:
        return CommitTableRequest.model_validate(body)
    except ValidationError as error:
        raise ValueError(f"the commit is not understood: {str(error)[:500]}") from None


def _space(text: str) -> tuple[str, ...]:
    return tuple(text.split("\x1f"))


def _metadata(table: Any) -> Any:
    return json.loads(metadata_json(table.metadata))


def problem(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": status}}


def main() -> None:
    warehouse, catalog = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    rest = Rest(LakeOptions(warehouse, catalog))
    for line in sys.stdin:
        asked = json.loads(line)
        status, body = rest.answer(asked["method"], asked["path"], asked["body"], keys=bool(asked.get("keys")))
        replies.write(json.dumps({"status": status, "body": body}) + "\n")
        replies.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
