"""docs/configuration.md, made from settings.py: `mainstem config reference`. A test holds both equal."""

from __future__ import annotations

from dataclasses import fields

from mainstem.server.settings import SECTIONS, Policy

_HEAD = """\
# Configuration

<!-- made by `mainstem config reference`; a test compares -->

Values come from, the later winning: defaults, a TOML file (`--config FILE` or `MAINSTEM_CONFIG`; `mainstem up` also
reads `./mainstem.toml`), the environment (`MAINSTEM_SECTION__KEY`), flags (`--set section.key=value`).

```toml
[listeners]
host = "127.0.0.1"

[topics]
durability = "sync"

[policies."sensors/#"]          # by topic filter, the most specific wins; Kafka's names work too
retention.ms = "30d"
engine = "rocksdb"
```

`mainstem config check [FILE]` lists every problem with its line and a suggestion; `mainstem config show` prints every
value with its source. Durations: `500ms`, `30s`, `5m`, `12h`, `7d`, or milliseconds. Sizes: `512KiB`, `64MiB`, `10GB`,
or bytes. Settings marked *live* take effect on SIGHUP, the others at the next start.
"""


def reference_page() -> str:
    parts = [_HEAD]
    for section, kind in SECTIONS.items():
        parts.append(f"## `[{section}]`\n\n{kind.__doc__}\n\n{_table(kind)}")
    parts.append(f'## `[policies."<filter>"]`\n\n{Policy.__doc__}\n\n{_table(Policy)}')
    return "\n".join(parts)


def _table(section: type) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for one in fields(section):
        setting = one.metadata["setting"]
        default = "" if one.default is None and section is Policy else f"`{setting.kind.show(one.default)}`"
        live = " *live*" if setting.live else ""
        rows.append(
            f"| `{one.name}` | {setting.kind.name} | {default if default != '``' else 'empty'} | {setting.doc}{live} |"
        )
    return "\n".join(rows) + "\n"
