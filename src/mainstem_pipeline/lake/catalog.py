"""Where tables lie: a warehouse (a folder, or an S3-compatible bucket by URL) and a catalog that names them.

Without a catalog it is a SQLite file in the warehouse's folder. `http(s)://...` is an Iceberg REST catalog, any SQLAlchemy
URL a SQL catalog. S3 is set up by the usual variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT_URL) or by `s3.*` properties; a REST catalog's login by `http://ID:SECRET@host`, or by pyiceberg's own
variables (PYICEBERG_CATALOG__MAINSTEM__TOKEN and the like).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from mainstem.model.errors import ConfigError, InvalidArgument, NotFound

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

DEFAULT_WAREHOUSE = "./lake"
SQL_CATALOG = "mainstem_pipeline.lake.format3.LakeCatalog"
CATALOG_WAIT_S = 30  # for another process that is committing
S3_VARIABLES = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.access-key-id": "AWS_ACCESS_KEY_ID",
    "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "s3.region": "AWS_REGION",
}
# Arrow's own limits, 1 s and 3 s, end a job where a store is slow for a moment.
S3_TIMEOUTS = {"s3.connect-timeout": "10", "s3.request-timeout": "60"}


@dataclass(frozen=True, slots=True)
class LakeOptions:
    warehouse: str = DEFAULT_WAREHOUSE
    catalog: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def location(self) -> str:
        """The warehouse as a URL-like place; a folder is made absolute."""
        return self.warehouse if "://" in self.warehouse else str(Path(self.warehouse).expanduser().absolute())

    @property
    def is_local(self) -> bool:
        return "://" not in self.warehouse or self.warehouse.startswith("file://")

    def source_options(self) -> dict[str, str]:
        """For `format("mainstem")`, whose `startingOffsets` may be `table:NAME`."""
        store = {name: value for name, value in self.file_properties().items() if name.startswith("s3.")}
        return {"warehouse": self.location, "catalog": self.catalog, **store}

    def file_properties(self) -> dict[str, str]:
        """What reading and writing files needs, in tasks too."""
        from_environment = {
            name: os.environ[variable] for name, variable in S3_VARIABLES.items() if os.environ.get(variable)
        }
        own = {"py-io-impl": "mainstem_pipeline.lake.files.SyncedFileIO"} if self.is_local else S3_TIMEOUTS
        return {**own, **from_environment, **self.properties}


def open_catalog(options: LakeOptions) -> Catalog:
    from pyiceberg.catalog import load_catalog

    properties = {"warehouse": options.location, **options.file_properties()}
    uri = options.catalog
    if uri.startswith(("http://", "https://")):
        return load_catalog("mainstem", type="rest", **_rest_properties(uri), **properties)
    if not uri:
        if not options.is_local:
            raise ConfigError(
                f"the warehouse {options.warehouse} is not a folder, so its catalog must be named",
                fix="catalog: sqlite:////path/to/catalog.db, a postgresql+psycopg2:// URL, or an Iceberg REST http:// URL",
            )
        folder = Path(options.location.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{folder / 'catalog.db'}?timeout={CATALOG_WAIT_S}"
    elif "://" not in uri:
        raise InvalidArgument(f"catalog {uri!r} is not a URL", fix=f"catalog: sqlite:///{Path(uri).absolute()}")
    return load_catalog("mainstem", **{"py-catalog-impl": SQL_CATALOG}, uri=uri, **properties)


def _rest_properties(uri: str) -> dict[str, str]:
    """`http://ID:SECRET@host` logs in with these as OAuth client credentials."""
    parts = urlsplit(uri)
    place = parts.netloc.rpartition("@")[2]
    found = {"uri": urlunsplit(parts._replace(netloc=place))}
    if parts.username:
        found["credential"] = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return found


def identifier(name: str) -> tuple[str, ...]:
    """`iot.readings`, or `readings` in the namespace `lake`."""
    parts = tuple(part for part in name.split(".") if part)
    if not parts or len(parts) > 2 or name.count(".") != len(parts) - 1:
        raise InvalidArgument(f"{name!r} is not a table name: write namespace.table")
    return parts if len(parts) == 2 else ("lake", *parts)


def load_table(catalog: Catalog, name: str) -> Table:
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(identifier(name))
    except NoSuchTableError:
        raise NotFound(f"there is no table {name!r} in the lake", fix="mainstem lake ls") from None
