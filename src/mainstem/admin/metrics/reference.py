"""docs/metrics.md, made from the table of families: python -m mainstem.admin.metrics.reference > docs/metrics.md"""

from __future__ import annotations

from mainstem.admin.metrics.families import DROP_REASONS, FAMILIES, Family

_HEAD = """\
# Metrics

<!-- made by `python -m mainstem.admin.metrics.reference`; a test compares -->

For Prometheus, on `listeners.http_port` (7070), without a login unless `http.metrics_public` says otherwise. Once users
exist, what is below `/metrics/` names single objects and is for admins:

| path | answers |
|---|---|
| `/metrics` | everything aggregated: as long with a million topics as with one |
| `/metrics/per-object` | and a series for each cursor and log, at most 10,000 of each |
| `/metrics/detailed?family=NAME` | the named families only (repeatable), per object where they are |

Nothing is counted per message for them: protocols count plain integers, a write or a sync of a log fills a histogram, and
all else is looked up when someone asks. `deploy/grafana-dashboard.json` is a dashboard of the broker,
`deploy/grafana-objects.json` one of topics, queues, cursors and namespaces (scrape `/metrics/per-object`), and
`deploy/alerts.yml` has rules for Prometheus.

A scraper that accepts `application/openmetrics-text` gets OpenMetrics. There `mainstem_ack_seconds` and
`mainstem_deliver_seconds` have exemplars: the trace id of a message that was followed ([tracing](tracing.md)).
"""


def reference_page() -> str:
    parts = [_HEAD]
    for section, families in FAMILIES.items():
        rows = ["| metric | kind | meaning |", "|---|---|---|", *map(_row, families)]
        parts.append(f"## {section}\n\n" + "\n".join(rows) + "\n")
        if section == "Traffic":
            reasons = [f"| `{reason}` | {text} |" for reason, text in DROP_REASONS.items()]
            parts.append(
                "Reasons of `mainstem_drops_total`:\n\n| reason | what happened |\n|---|---|\n"
                + "\n".join(reasons)
                + "\n"
            )
    return "\n".join(parts)


def _row(family: Family) -> str:
    labels = "{" + ",".join(family.labels) + "}" if family.labels else ""
    where = " *(per object)*" if family.per_object else ""
    return f"| `{family.name}{labels}` | {family.kind} | {family.text}{where} |"


if __name__ == "__main__":
    print(reference_page(), end="")  # noqa: T201
