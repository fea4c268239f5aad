"""Java clients and Kafka's own tools by Maven coordinates; where Maven Central cannot be reached, the reason."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

CACHE = Path(os.environ.get("MAINSTEM_TOOLS", Path.home() / ".cache" / "mainstem-tools"))
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>peer</groupId><artifactId>peer</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>
"""
DEPENDENCY = "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>"
CLIENTS_3 = ("org.apache.kafka:kafka-clients:3.9.1", "org.slf4j:slf4j-nop:1.7.36")
CLIENTS_4 = ("org.apache.kafka:kafka-clients:4.3.0", "org.slf4j:slf4j-nop:1.7.36")
BROKER_4 = ("org.apache.kafka:kafka_2.13:4.3.0", "org.apache.kafka:kafka-tools:4.3.0", "org.slf4j:slf4j-nop:1.7.36")
DOWNLOAD_S_MAX = 240


class Unavailable(Exception):
    """Why there are no Java clients here."""


@functools.cache
def classpath(*coordinates: str) -> str:
    """Downloads once, into a cache outside the checkout; raises Unavailable with the reason."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise Unavailable("java and mvn are not installed")
    directory = CACHE / "-".join(c.rpartition(":")[0].rpartition(":")[2] + c.rpartition(":")[2] for c in coordinates)
    kept = directory / "classpath"
    if kept.exists() and all(Path(jar).exists() for jar in kept.read_text().split(":")):
        return kept.read_text()
    directory.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(DEPENDENCY.format(*coordinate.split(":")) for coordinate in coordinates)
    (directory / "pom.xml").write_text(POM.format(dependencies=dependencies))
    command = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={kept}"]
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=DOWNLOAD_S_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Maven Central did not answer within {DOWNLOAD_S_MAX} s") from error
    if done.returncode or not kept.exists():
        raise Unavailable(f"Maven could not resolve {', '.join(coordinates)}: {done.stdout.strip()[-300:]}")
    return kept.read_text()


def jars_of(*coordinates: str) -> str:
    """Of these alone, not of what they depend on, as a class path; raises Unavailable with the reason."""
    if shutil.which("mvn") is None:
        raise Unavailable("mvn is not installed")
    found = []
    for coordinate in coordinates:
        group, name, version = coordinate.split(":")
        jar = Path.home() / ".m2/repository" / group.replace(".", "/") / name / version / f"{name}-{version}.jar"
        command = ["mvn", "-q", "-B", "dependency:get", "-Dtransitive=false", f"-Dartifact={coordinate}"]
        if not jar.exists():
            done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DOWNLOAD_S_MAX, check=False)
            if not jar.exists():
                raise Unavailable(f"Maven could not have {coordinate}: {done.stdout.strip()[-300:]}")
        found.append(str(jar))
    return ":".join(found)


def run_java(coordinates: tuple[str, ...], *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath(*coordinates), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
