"""Iceberg's REST compatibility kit against this broker's catalog: python -m tests.peers.iceberg_kit [JUnit's arguments]...

Needs Java, Maven and Maven Central. Tells how many passed, failed and were left out, and why each failed.

    python -m tests.peers.iceberg_kit                       all of RESTCompatibilityKitCatalogTests
    python -m tests.peers.iceberg_kit -m 'org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests#testRenameTable'
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mainstem.testing import Broker
from tests.protocol.kafka.java_clients import CACHE

VERSION = "1.11.0"
SUITE = ["-c", "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"]
# group:artifact:version[:classifier]; `!` alone: without what it depends on.
JARS = (
    f"org.apache.iceberg:iceberg-core:{VERSION}",
    f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
    f"org.apache.iceberg:iceberg-api:{VERSION}:tests",
    f"!org.apache.iceberg:iceberg-open-api:{VERSION}:tests",
    f"!org.apache.iceberg:iceberg-open-api:{VERSION}:test-fixtures",
    f"org.apache.iceberg:iceberg-data:{VERSION}",
    f"org.apache.iceberg:iceberg-parquet:{VERSION}",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    "org.assertj:assertj-core:3.27.3",
    "org.mockito:mockito-core:4.11.0",
    "org.awaitility:awaitility:4.3.0",
    "org.eclipse.jetty:jetty-servlet:11.0.25",
    "org.xerial:sqlite-jdbc:3.49.1.0",
    "org.slf4j:slf4j-nop:1.7.36",
    "org.junit.platform:junit-platform-console-standalone:1.12.2",
)
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
DOWNLOAD_S_MAX, RUN_S_MAX = 600, 900
FAILURE = re.compile(
    r"methodName = '(\w+)'.*?\]\n\s+=> (.*?)(?=\n\s+at |\n\s+[\w.$]+/?[\w.$]*\(|\n\n|\n  JUnit)", re.DOTALL
)


def dependency(jar: str) -> str:
    group, artifact, version, *classifier = jar.lstrip("!").split(":")
    names = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    more = "".join(f"<classifier>{one}</classifier>" for one in classifier)
    return f"<dependency>{names}{more}{ALONE if jar.startswith('!') else ''}</dependency>"


def classpath() -> str:
    folder = CACHE / f"iceberg-kit-{VERSION}"
    kept = folder / "classpath"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = "".join(map(dependency, JARS))
        (folder / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>peer</groupId>'
            f"<artifactId>peer</artifactId><version>1</version><dependencies>{wanted}</dependencies></project>"
        )
        command = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={kept}"]
        subprocess.run(command, cwd=folder, check=True, timeout=DOWNLOAD_S_MAX)
    return kept.read_text()


def main(arguments: list[str]) -> int:
    # The kit puts tables at file:/tmp/...: its warehouse is that folder, or they would be refused as outside of it.
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker("lake.warehouse=/tmp", f"lake.catalog=sqlite:///{folder}/catalog.db") as broker,
    ):
        command = [
            "java",
            "-Xmx700m",
            "-XX:TieredStopAtLevel=1",
            "-Drck.local=false",
            "-Drck.requires-namespace-create=true",
        ]
        command += [
            "-Drck.purge-test-namespaces=true",
            "-cp",
            classpath(),
            "org.junit.platform.console.ConsoleLauncher",
        ]
        command += [
            "execute",
            *(arguments or SUITE),
            "--disable-ansi-colors",
            "--disable-banner",
            "--details",
            "summary",
        ]
        environment = {**os.environ, "CATALOG_URI": f"{broker.http_url}/iceberg"}
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=RUN_S_MAX, check=False
        )
    Path(CACHE / "iceberg-kit.log").write_text(done.stdout + done.stderr)
    for name, why in sorted(FAILURE.findall(done.stdout)):
        print(f"failed {name}: {' '.join(why.split())[:300]}")
    print("\n".join(re.findall(r"\[ +\d+ tests (?:successful|failed|aborted|skipped) +\]", done.stdout)))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
