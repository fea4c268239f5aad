"""Samples as Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mainstem.admin.metrics.families import BY_NAME
from mainstem.model.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = dict[str, str]
Sample = tuple[str, Labels, float]  # suffix of the name, labels, value
Samples = tuple[str, list[Sample]]  # of one family


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
