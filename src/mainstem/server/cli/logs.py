"""`log`, `backup` and `restore`: the bytes on disk."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mainstem.model.counted import counted
from mainstem.model.errors import DamagedLog, NotFound
from mainstem.server.cli.api import Api, url_option
from mainstem.server.cli.output import Progress, json_option, print_facts, print_rows, show_bytes
from mainstem.server.cli.working import WORK_S_MAX, followed

if TYPE_CHECKING:
    from mainstem.storage.inspection import LogListing

data_option = click.option(
    "--data", default="./mainstem-data", show_default=True, metavar="DIR", help="The data directory."
)
KINDS = {1: "data", 2: "state", 3: "marker"}
VALUE_SHOWN = 120


@click.group()
def log() -> None:
    """Look into, verify and repair logs on disk, of a stopped or a running broker. Repair needs it stopped."""


@log.command("ls")
@click.option("--state", is_flag=True, help="Also the journal's bytes in each log. Reads all frames that are here.")
@data_option
@json_option
def log_ls(data: str, state: bool, as_json: bool) -> None:
    """The logs of a data directory."""
    from mainstem.storage.inspection import list_logs, state_bytes

    def state_facts(one: LogListing) -> dict[str, Any]:
        found = state_bytes(one.path)
        return {"state_bytes": found, "state_share": f"{found / one.size_bytes:.1%}" if one.size_bytes else None}

    rows = [
        {
            "log": one.log_id,
            "engine": one.engine or None,
            "clean": one.clean,
            "parts": len(one.parts),
            "start_offset": one.start_offset,
            "end_offset": one.end_offset,
            "reserved_end": one.reserved_end,
            "epoch": one.epoch,
            "size_bytes": one.size_bytes,
            "remote_bytes": one.remote_bytes,
            "index_bytes": one.index_bytes,
            "index_share": f"{one.index_bytes / one.size_bytes:.1%}" if one.index_bytes and one.size_bytes else None,
            "aside": one.aside,
            **(state_facts(one) if state else {}),
        }
        for one in list_logs(_existing(data))
    ]
    columns = [
        "log",
        "engine",
        "clean",
        "parts",
        "start_offset",
        "end_offset",
        "epoch",
        "size_bytes",
        "remote_bytes",
        "index_bytes",
        "index_share",
        *(("state_bytes", "state_share") if state else ()),
        "aside",
    ]
    print_rows(rows, columns, as_json=as_json, empty=f"no logs in {data}")


@log.command("dump")
@click.argument("log_id", type=int)
@click.option("--from", "start", type=int, default=0, show_default=True, help="First offset.")
@click.option("--to", "end", type=int, help="Offset to stop before.")
@click.option("--records", is_flag=True, help="The records inside each frame too.")
@data_option
@json_option
def log_dump(log_id: int, start: int, end: int | None, records: bool, data: str, as_json: bool) -> None:
    """Print the frames of a log, as FORMAT.md draws them."""
    import json

    from mainstem.storage.inspection import DumpedFrame, dump

    for found in dump(_log_directory(data, log_id), start_offset=start, end_offset=end):
        if not isinstance(found, DumpedFrame):
            click.echo(json.dumps({"damage": str(found)}) if as_json else click.style(f"damage  {found}", fg="red"))
            continue
        facts = _frame_facts(found)
        inside = _record_facts(found, log_id) if records else []
        if as_json:
            click.echo(json.dumps({**facts, **({"records": inside} if records else {})}, ensure_ascii=False))
            continue
        click.echo("  ".join(f"{name}={value}" for name, value in facts.items()))
        for record in inside:
            click.echo("    " + "  ".join(f"{name}={value}" for name, value in record.items()))


def _frame_facts(found: Any) -> dict[str, Any]:
    from mainstem.model.origin import Origin

    head = found.head
    return {
        "file": found.path.name,
        "position": found.position,
        "kind": KINDS.get(head.kind, head.kind),
        "origin": Origin(head.origin).name.lower(),
        "topic_id": head.topic_id,
        "offset": head.base_offset,
        "count": head.count,
        "stamp": head.stamp,
        "durable": head.durable_offset,
        "size": head.size,
    }


def _record_facts(found: Any, log_id: int) -> list[dict[str, Any]]:
    from mainstem.codec.batch import KIND_MARKER, decode_frames

    if found.head.kind == KIND_MARKER:
        return []
    records = decode_frames(memoryview(found.data), log_id, data_only=False, inflated_bytes_max=64 << 20)
    return [
        {
            "offset": one.offset,
            "stamp": one.stamp,
            "topic": one.topic.decode(errors="replace"),
            "key": _shown(one.key),
            "value": _shown(one.value),
            "headers": {name.decode(errors="replace"): _shown(value) for name, value in one.headers},
        }
        for one in records
    ]


def _shown(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data[:VALUE_SHOWN].decode(errors="backslashreplace")
    return text + "…" if len(data) > VALUE_SHOWN else text


@log.command("verify")
@click.argument("log_ids", type=int, nargs=-1)
@data_option
def log_verify(log_ids: tuple[int, ...], data: str) -> None:
    """Check every checksum of the given logs, or of all. Exit code 1 if acked data is damaged."""
    from mainstem.storage.inspection import list_logs, verify

    listed = {one.log_id: one for one in list_logs(_existing(data))}
    damaged, remote = [], []
    for log_id in log_ids or listed:
        directory = _log_directory(data, log_id)
        size = listed[log_id].size_bytes if log_id in listed else 0
        with Progress(f"log {log_id}", size, unit="B") as progress:
            result = verify(directory, progress.set)
            progress.set(result.size_bytes)
        click.echo(
            f"log {log_id}: {counted(result.frames, 'frame')}, {counted(result.records, 'offset')}, "
            f"{show_bytes(result.size_bytes)}"
            + (f"; in the object store {counted(result.remote_frames, 'frame')}" if result.remote_frames else "")
        )
        for tail in result.tail:
            click.echo(click.style(f"  not acked, cut at the next start: {tail}", fg="yellow"))
        for damage in [*result.damage, *result.remote_damage]:
            click.echo(click.style(f"  damaged: {damage}", fg="red"))
        damaged += result.damage
        remote += result.remote_damage
    if remote and not damaged:
        raise DamagedLog(
            f"{counted(len(remote), 'damaged piece')} of acked data in the object store",
            fix="put the objects back from a version or a copy of the bucket; all other offsets are served",
        )
    if damaged:
        raise DamagedLog(
            f"{counted(len(damaged), 'damaged piece')} of acked data",
            fix=f"restore a backup, or give them up: mainstem log repair --quarantine LOG --data {data}",
        )


@log.command("repair")
@click.argument("which", metavar="LOG")
@click.option(
    "--quarantine", is_flag=True, help="Give up what is damaged: keep the files aside, mark the lost offsets."
)
@data_option
def log_repair(which: str, quarantine: bool, data: str) -> None:
    """Make a damaged log serve again, knowingly without what is lost. LOG is its number, or its directory as an error names
    it. The broker must be stopped."""
    from mainstem.storage.directory import DataDirectory
    from mainstem.storage.inspection import repair

    data, log_id = _log_named(which, data)
    directory = DataDirectory(_existing(data))
    try:
        size = sum(path.stat().st_size for path in _log_directory(data, log_id).glob("*") if path.is_file())
        with Progress(f"log {log_id}", size, unit="B") as progress:
            done = repair(_log_directory(data, log_id), quarantine=quarantine, progress=progress.set)
    finally:
        directory.release()
    for damage in done.damage:
        click.echo(f"given up: {damage}")
    for path in done.quarantined:
        click.echo(f"kept aside: {path}")
    for note in done.notes:
        click.echo(note)
    if not (done.damage or done.notes):
        click.echo("nothing was damaged")


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--data", metavar="DIR", help="Of a stopped broker: its data directory. Otherwise the running one is asked."
)
@json_option
@url_option
def backup(target: Path, data: str | None, as_json: bool, url: str) -> None:
    """Back up everything as of one moment into the new directory TARGET.

    A running broker goes on meanwhile. Sealed segments are hard links where TARGET is on the same file system. A
    running broker writes TARGET itself, so it must be a path on its machine.
    """
    if data is None:
        api, place = Api(url, timeout_s=WORK_S_MAX), str(target.resolve())
        facts = followed(api, "backup", place, lambda: api.post("/v1/backup", {"directory": place}))
    else:
        from mainstem.storage.backup import backup as back_up

        with Progress("backup", 0, unit="B") as progress:
            facts = _report(back_up(_existing(data), target, progress=progress.set))
    _print_report(f"backed up to {target}", facts, as_json)


@click.command()
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--endpoint", default="", help="Of an object store: its address, as tier.endpoint.")
@click.option("--region", default="", help="Of an object store: its region, as tier.region.")
@json_option
def restore(source: str, target: Path, endpoint: str, region: str, as_json: bool) -> None:
    """Restore SOURCE into the new data directory TARGET; start it with --data TARGET.

    SOURCE is a directory that `mainstem backup` made, or the tier.store of a broker whose disk was lost: then all that was
    uploaded is there again, and the old disk must not be used any more.
    """
    if "://" in source:
        _restore_store(source, target, endpoint, region, as_json)
        return
    from mainstem.storage.backup import restore as bring_back

    with Progress("restore", 0, unit="B") as progress:
        facts = _report(bring_back(Path(source), target, progress.set))
    _print_report(f"restored to {target}", facts, as_json)


def _restore_store(source: str, target: Path, endpoint: str, region: str, as_json: bool) -> None:
    from mainstem.storage.tier.manifest import restore as bring_back
    from mainstem.storage.tier.store import StoreSettings

    with Progress("restore", 0, unit="pieces") as progress:
        facts = _report(bring_back(StoreSettings(source, endpoint, region), target, progress.set))
    if as_json:
        print_facts(facts, as_json=True)
        return
    click.echo(
        f"restored to {target}: {counted(facts['logs'], 'log')}, {counted(facts['objects'], 'object')} of "
        f"{show_bytes(facts['size_bytes'])} in the store. Start it with the same [tier]: mainstem serve --data {target}"
    )


@log.command("downgrade")
@click.option("--data", metavar="DIR", required=True, help="The data directory of a stopped broker.")
def downgrade(data: str) -> None:
    """Write a data directory of format 2 as format 1, so that the version before can start on it.

    State that only format 2 knows is written in the words of format 1; logs and metadata stay as they are.
    """
    from mainstem.server.config import load_config
    from mainstem.server.downgrade import downgrade as write_older

    path = write_older(load_config(flags=[f"data.directory={_existing(data)}"]))
    click.echo(f"{path} has format 1 now; a start with this version takes it over again")


def _report(report: Any) -> dict[str, Any]:
    return asdict(report)


def _print_report(text: str, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_facts(facts, as_json=True)
    else:
        click.echo(
            f"{text}: {counted(facts['logs'], 'log')}, {counted(facts['files'], 'file')}, {show_bytes(facts['size_bytes'])}"
        )
    for damage in facts["damage"]:
        click.echo(f"warning: copied as it is, damaged: {damage}", err=True)


def _existing(data: str) -> Path:
    path = Path(data)
    if not path.is_dir():
        raise NotFound(f"there is no data directory {path}", fix="--data DIR")
    return path


def _log_named(which: str, data: str) -> tuple[str, int]:
    """(data directory, number) of a log that is named by its number, or as errors do: DATA/logs/NUMBER."""
    path = Path(which)
    if which.isdecimal():
        return data, int(which)
    if path.name.isdecimal() and path.parent.name == "logs":
        return str(path.parent.parent), int(path.name)
    raise click.BadParameter(f"{which!r} is neither a log's number nor its directory (DATA/logs/NUMBER)")


def _log_directory(data: str, log_id: int) -> Path:
    directory = _existing(data) / "logs" / str(log_id)
    if not directory.is_dir():
        raise NotFound(f"there is no log {log_id} in {data}", fix=f"mainstem log ls --data {data}")
    return directory
