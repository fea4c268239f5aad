"""Spark's own Kafka connector, from Maven Central: of this Spark's version, or of the newest Spark that has one.

A connector needs its Spark's exact version. Where none can be had for the Spark installed here, a Spark that has one is
put into a throwaway virtual environment: the connector needs nothing of Mainstem but the Kafka port.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mainstem_pipeline.session import find_java
from tests.protocol.kafka.java_clients import Unavailable, classpath

COORDINATE = "org.apache.spark:spark-sql-kafka-0-10_2.13:{}"
OLDER = ("4.2.0", "4.1.3", "4.0.0")  # newest first; mirrors do not all have all parts of each
JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")  # Spark has the others
INSTALL_S_MAX = 400

# What every job begins with: `spark`, and the job's own `arguments`.
SESSION = """
import sys
from pyspark.sql import SparkSession
jars, *arguments = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").appName("connector").config("spark.jars", jars)
builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
spark = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "3g").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
"""


@dataclass(frozen=True)
class Connector:
    version: str
    python: Path  # whose pyspark is of that version
    jars: str

    def command(self, script: str, *arguments: str) -> list[str]:
        """A job in a process of its own, to be run with `environment`."""
        return [str(self.python), "-c", SESSION + script, self.jars, *arguments]

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
        java, python = str(find_java()), str(self.python)
        return {
            **kept,
            "JAVA_HOME": java,
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }


def connector(folder: Path) -> Connector:
    """An environment that is needed is made in `folder`. Raises Unavailable with the reason."""
    import pyspark

    reasons: list[str] = []
    for version in (pyspark.__version__, *OLDER):
        try:
            jars = classpath(COORDINATE.format(version)).split(":")
        except Unavailable as error:
            reasons.append(str(error).splitlines()[0])
            continue
        own = version == pyspark.__version__
        python = Path(sys.executable) if own else python_with_spark(folder / f"spark-{version}", version)
        return Connector(version, python, ",".join(jar for jar in jars if Path(jar).name.startswith(JARS)))
    raise Unavailable("; ".join(reasons))


def python_with_spark(home: Path, version: str) -> Path:
    """An environment with that Spark and nothing else."""
    python = home / "bin" / "python"
    if python.exists():
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, capture_output=True, timeout=120)
        install = [str(python), "-m", "pip", "install", "--quiet", f"pyspark=={version}"]
        subprocess.run(install, check=True, capture_output=True, text=True, timeout=INSTALL_S_MAX)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pyspark {version} did not install within {INSTALL_S_MAX} s") from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"pyspark {version} cannot be installed: {str(error.stderr)[-300:]}") from error
    return python
