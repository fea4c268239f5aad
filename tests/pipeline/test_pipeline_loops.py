"""Flows that read what they write: refused where that is sure and not meant, told where it is possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.testing.process import BrokerProcess
from mainstem_pipeline.client import BrokerClient
from mainstem_pipeline.pipeline.checks import load_pipeline
from mainstem_pipeline.pipeline.document import BadPipeline
from mainstem_pipeline.pipeline.loops import canonical_filter, nodes_of, told_topics
from mainstem_pipeline.pipeline.validation import validated
from tests.pipeline.conftest import publish

JSON = '{format: json, schema: "x int"}'


def written(folder: Path, *flows: str, name: str = "p") -> Path:
    """Each flow as `name: from -> to`, with more of its words behind a comma."""
    lines = [f"name: {name}", "lake: {warehouse: ./lake}", "flows:"]
    for number, flow in enumerate(flows):
        lines.append(f"  - {{name: f{number}, {flow}}}")
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("flows", "words"),
    [
        (["from: {topic: a.b}, to: {topic: a/b}"], "line 4: flow f0 writes a/b, which flow f0 reads: it never ends"),
        (["from: {filter: a/#}, to: [{topic: c}, {topic: a/out}]"], "flow f0 writes a/out, which flow f0 reads"),
        (["from: {pattern: 'a.*'}, to: {topic: a-out}"], "flow f0 writes a-out, which flow f0 reads"),
        (["from: {table: a.b}, to: {table: a.b}"], "flow f0 writes a.b, which flow f0 reads"),
        (
            ["from: {topic: a}, to: {topic: b}", "from: {topic: c}, to: {topic: d}", "from: {topic: b}, to: {topic: a}"],
            "flow f0 writes b, which flow f2 reads, which writes a, which flow f0 reads: it never ends",
        ),
        (
            ["archive: {topic: a, table: raw.a}", "from: {table: raw.a}, to: {topic: a}"],
            "flow f0 writes raw.a, which flow f1 reads, which writes a, which flow f0 reads",
        ),
        (
            [f"from: {{topic: a}}, decode: {JSON}, to: {{topic: b}}, dead_letters: {{topic: a}}"],
            "flow f0 writes a, which flow f0 reads",
        ),
    ],
)  # fmt: skip
def test_a_flow_that_reads_what_it_writes_is_refused_unless_that_is_meant(
    tmp_path: Path, flows: list[str], words: str
) -> None:
    with pytest.raises(BadPipeline) as caught:
        load_pipeline(written(tmp_path, *flows))
    (problem,) = caught.value.problems
    assert words in str(problem)
    assert "loop: true" in problem.hint
    load_pipeline(written(tmp_path, *flows[:-1], f"{flows[-1]}, loop: true"))


@pytest.mark.parametrize(
    "flows",
    [
        ["from: {filter: a/+}, to: {topic: a/b/c}"],
        ["from: {topic: a}, to: {topic: b}", "from: {topic: b}, to: {topic: c}"],
        ["from: {filter: a/#}, to: {topic: 'a/{x}'}"],
        [f"from: {{filter: '#'}}, decode: {JSON}, to: {{table: t.t}}, dead_letters: {{topic: a/dead}}"],
        ["from: {topic: a}, to: {topic: b}, dead_letters: {topic: a}"],
    ],
)
def test_what_does_not_go_round_or_only_perhaps_is_no_problem(tmp_path: Path, flows: list[str]) -> None:
    load_pipeline(written(tmp_path, *flows))


def test_a_column_in_a_topics_name_may_be_anything() -> None:
    names = ("alerts/{device}", "alerts.{device}", "a/{x}-{y}/b", "{split(x, '/')[0]}", "a/b", "a.b", "a/*")
    assert [canonical_filter(one) for one in names] == ["alerts/#", "alerts/#", "a/#/b", "#", "a/b", "a/b", "a/%2A"]


def test_loops_by_views_columns_and_other_pipelines_are_told(
    broker: BrokerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSTEM_URL", broker.http_url)
    client = BrokerClient(broker.http_url)
    publish(broker, [(f"{topic}/a", b"1")])
    client.post("/v1/views", {"name": f"all-{topic}", "filter": f"{topic}/#", "where": ""})
    client.post("/v1/views", {"name": f"some-{topic}", "filter": f"{topic}/#", "where": "key exists"})
    by_view = f"from: {{view: all-{topic}}}, to: {{topic: {topic}/out}}"
    with pytest.raises(BadPipeline, match=f"flow f0 writes {topic}/out, which flow f0 reads: it never ends"):
        validated(written(tmp_path, by_view), offline=False)
    validated(written(tmp_path, f"{by_view}, loop: true"), offline=False)
    for perhaps in (by_view.replace("all-", "some-"), f"from: {{filter: {topic}/#}}, to: {{topic: '{topic}/{{x}}'}}"):
        (note,) = validated(written(tmp_path, perhaps), offline=False)
        assert "which flow f0 reads: that may never end" in note
    there = load_pipeline(written(tmp_path, f"from: {{topic: {topic}/out}}, to: {{topic: {topic}/a}}", name="there"))
    (node,) = nodes_of("there", there.flows)
    client.post("/v1/pipelines/there", {"flows": [{"flow": "f0", "state": "running", **told_topics(node)}]})
    here = written(tmp_path, f"from: {{topic: {topic}/a}}, to: {{topic: {topic}/out}}", name="here")
    (note,) = validated(here, offline=False)
    assert f"flow f0 writes {topic}/out, which flow f0 of pipeline there reads, which writes {topic}/a, which" in note
    client.post("/v1/pipelines/there", {"flows": []})
    client.delete(f"/v1/views/all-{topic}")
    client.close()
