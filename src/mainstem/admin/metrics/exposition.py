"""Samples as Prometheus' text format, or as OpenMetrics where the scraper asks for it: that one has exemplars.

name_bucket{le="0.001"} 17 # {trace_id="4bf9..."} 0.00083 1763450000.123     the trace of one message counted there
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mainstem.admin.metrics.families import BY_NAME
from mainstem.model.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text"
OPEN_METRICS_TYPE = f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
Labels = dict[str, str]
Sample = tuple[str, Labels, float]  # suffix of the name, labels, value
Samples = tuple[str, list[Sample]]  # of one family
Exemplar = tuple[str, float, float]  # trace id, value in the metric's unit, time in seconds


def one(name: str, value: float, **labels: str) -> Samples:
    return name, [("", labels, value)]


def by_label(name: str, label: str, values: dict[str, int]) -> Samples:
    return name, [("", {label: key}, value) for key, value in sorted(values.items())]


def histogram(name: str, counted: Histogram, unit: float = 1) -> Samples:
    """Cumulative, as Prometheus wants it; `unit` is how many of the counted things make one of the metric's."""
    counts, total = list(counted.counts), counted.total
    samples: list[Sample] = []
    below = 0
    for bound, count in zip(counted.bounds, counts, strict=False):
        below += count
        samples.append(("_bucket", {"le": repr(bound / unit) if unit != 1 else str(bound)}, below))
    count = sum(counts)
    samples += [("_bucket", {"le": "+Inf"}, count), ("_sum", {}, total / unit), ("_count", {}, count)]
    return name, samples


def text_of(families: Iterable[Samples]) -> str:
    return "".join(f"{line}\n" for line in _lines(families))


def open_metrics_of(families: Iterable[Samples], exemplars: dict[str, list[Exemplar]]) -> str:
    """`exemplars`: by family, the newest first; a bucket shows the newest that it counts and the one below does not."""
    return "".join(f"{line}\n" for line in _open_lines(families, exemplars)) + "# EOF\n"


def _open_lines(families: Iterable[Samples], exemplars: dict[str, list[Exemplar]]) -> Iterator[str]:
    for name, samples in families:
        family = BY_NAME[name]
        title, kind = name, family.kind
        if kind == "counter":  # its family has the name without `_total`, unless a gauge has that
            bare = name.removesuffix("_total")
            title, kind = (bare, kind) if bare not in BY_NAME else (name, "unknown")
        yield f"# TYPE {title} {kind}"
        yield f"# HELP {title} {_escaped(family.text)}"
        below = 0.0
        for suffix, labels, value in samples:
            shown = ""
            if suffix == "_bucket":
                bound = float(labels["le"])
                shown = _exemplar(exemplars.get(name, ()), below, bound)
                below = bound
            yield f"{name}{suffix}{_labels(labels)} {_number(value)}{shown}"


def _exemplar(known: Iterable[Exemplar], above: float, at_most: float) -> str:
    for trace_id, value, at_s in known:
        if above < value <= at_most:
            return f' # {{trace_id="{_escaped(trace_id)}"}} {value!r} {at_s!r}'
    return ""


def _lines(families: Iterable[Samples]) -> Iterator[str]:
    for name, samples in families:
        family = BY_NAME[name]
        yield f"# HELP {name} {family.text}"
        yield f"# TYPE {name} {family.kind}"
        for suffix, labels, value in samples:
            yield f"{name}{suffix}{_labels(labels)} {_number(value)}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
