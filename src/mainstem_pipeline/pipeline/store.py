"""Where a pipeline keeps what lasts: a folder of this machine, or a place in a bucket or a cluster's file system.

| `./state`, `/mnt/shared/state`, `file:///...` | a folder |
| `s3://bucket/path` | with pyarrow; credentials as the lake's (AWS_ACCESS_KEY_ID and so on, or `lake.properties`) |
| `hdfs://host/path`, `gs://`, `abfs://` | with pyarrow, where it has what it needs (Hadoop's libhdfs) |

Spark writes its checkpoints there by itself, with Hadoop's file systems: `spark_url` is the place as they call it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from mainstem.model.errors import ConfigError
from mainstem_pipeline.lake.catalog import S3_TIMEOUTS


class Store(Protocol):
    """Small files by name; folders are part of the names."""

    @property
    def spark_url(self) -> str: ...
    def read(self, name: str) -> bytes | None: ...
    def write(self, name: str, data: bytes) -> None: ...
    def names(self, folder: str) -> list[str]: ...
    def remove(self, name: str) -> bool: ...


def open_store(place: str, properties: Mapping[str, str]) -> Store:
    scheme, found, _ = place.partition("://")
    if not found or scheme == "file":
        return LocalStore(Path(place.removeprefix("file://")))
    return RemoteStore(place, properties)


class LocalStore:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def spark_url(self) -> str:
        return str(self.directory)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.directory / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".new")
        part.write_bytes(data)
        part.rename(path)

    def names(self, folder: str) -> list[str]:
        place = self.directory / folder
        return [one.name for one in place.iterdir()] if place.is_dir() else []

    def remove(self, name: str) -> bool:
        path = self.directory / name
        existed = path.exists()
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        return existed


class RemoteStore:
    def __init__(self, url: str, properties: Mapping[str, str]) -> None:
        self._url = url.rstrip("/")
        try:
            self._files, self._base = _file_system(self._url, properties)
        except Exception as error:
            raise ConfigError(
                f"state {url} cannot be reached: {error}", fix="check the address and its credentials, or name a folder"
            ) from None

    @property
    def spark_url(self) -> str:
        return "s3a://" + self._url[5:] if self._url.startswith("s3://") else self._url

    def read(self, name: str) -> bytes | None:
        with self._told(name):
            try:
                with self._files.open_input_stream(f"{self._base}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        with self._told(name), self._files.open_output_stream(f"{self._base}/{name}") as stream:
            stream.write(data)

    def names(self, folder: str) -> list[str]:
        from pyarrow.fs import FileSelector

        with self._told(folder):
            place = FileSelector(f"{self._base}/{folder}", allow_not_found=True)
            return [one.base_name for one in self._files.get_file_info(place)]

    def remove(self, name: str) -> bool:
        from pyarrow.fs import FileType

        path = f"{self._base}/{name}"
        with self._told(name):
            kind = self._files.get_file_info(path).type
            if kind == FileType.Directory:
                self._files.delete_dir(path)
            elif kind == FileType.File:
                self._files.delete_file(path)
            return bool(kind != FileType.NotFound)

    @contextlib.contextmanager
    def _told(self, name: str) -> Any:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"state {self._url}/{name} cannot be read or written: {error}",
                fix="check the bucket, its credentials (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...) and rights",
            ) from None


def _file_system(url: str, properties: Mapping[str, str]) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, _, place = url.partition("://")
    if scheme in ("s3", "s3a"):
        return PyArrowFileIO({**S3_TIMEOUTS, **properties}).fs_by_scheme("s3", place.split("/", 1)[0]), place
    system, path = FileSystem.from_uri(url)
    return system, path


def hadoop_settings(place: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for a checkpoint in a bucket, as the lake's properties say."""
    if not place.startswith("s3"):
        return {}
    names = {
        "s3.endpoint": "fs.s3a.endpoint",
        "s3.access-key-id": "fs.s3a.access.key",
        "s3.secret-access-key": "fs.s3a.secret.key",
        "s3.region": "fs.s3a.endpoint.region",
    }
    found = {f"spark.hadoop.{ours}": properties[name] for name, ours in names.items() if name in properties}
    return {**found, "spark.hadoop.fs.s3a.path.style.access": "true"}
