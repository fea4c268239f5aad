"""Kafka clients' own suites against this broker: python -m tests.peers.kafka_suites NAME CHECKOUT [arguments for its runner]

    kafka-python    CHECKOUT of dpkp/kafka-python: test/integration
    aiokafka        of aio-libs/aiokafka: tests; what it asks Docker for is a broker of ours; needs pytest-mock
    confluent       of confluentinc/confluent-kafka-python: tests/integration; the clusters that it starts are brokers of
                    ours with a user; needs requests-mock and respx
    franz-go        of twmb/franz-go: pkg/kgo
    librdkafka      the folder librdkafka of the crate rdkafka-sys: tests that need a broker, built in a copy unless they
                    are built there; arguments are numbers of tests (0033)

Each runs to its end, with its own runner's output. A broker is started for it and stopped afterwards. Where a runner is
pytest, arguments that do not begin with a dash are the files to run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainstem.testing import BrokerProcess

DOCKER = '''
"""Stands in for Docker: whatever image is asked for, a broker of ours runs."""
import subprocess, sys, tempfile
from pathlib import Path
from types import SimpleNamespace
class Container:
    def __init__(self, port, tls_port):
        command = [sys.executable, "-m", "mainstem", "serve", "--data", tempfile.mkdtemp()]
        ports = {"kafka": port, "kafkas": tls_port}
        for name in ("mqtt", "ws", "amqp", "nats", "http"):
            ports |= {name: "off", "wss" if name == "ws" else f"{name}s": "off"}
        made = Path("tests/ssl_cert").resolve()
        files = {"certificate": "server.crt", "key": "server.key", "client_ca": "ca.crt"}
        settings = ["topics.partitions=2", *(f"tls.{name}={made / file}" for name, file in files.items())]
        settings += [f"listeners.{name}_port={one}" for name, one in ports.items()]
        command += [word for one in settings for word in ("--set", one)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    def exec_run(self, *args, **options):
        return 0, b""
    def stop(self):
        self._process.terminate()
        self._process.wait()
class Client:
    containers = SimpleNamespace(run=lambda environment, **options: Container(
        environment["ADVERTISED_PORT"], environment["ADVERTISED_SSL_PORT"]
    ))
    def close(self):
        pass
def from_env():
    return Client()
models = SimpleNamespace(containers=SimpleNamespace(Container=Container))
'''
TRIVUP = {
    "trivup/__init__.py": "",
    "trivup/clusters/__init__.py": "",
    "trivup/clusters/KafkaCluster.py": '''
"""Stands in for the clusters that the suite starts: a broker of ours each, whose only user may do all."""
import subprocess, sys, tempfile
from pathlib import Path
from mainstem.testing import BrokerProcess
NAME = "sasl_user"
class KafkaCluster:
    def __init__(self, **asked):
        self._folder = tempfile.TemporaryDirectory()
        data = Path(self._folder.name, "data")
        user = ["user", "add", NAME, "--admin", "--data", str(data), "--password", NAME]
        subprocess.run([sys.executable, "-m", "mainstem", *user], check=True)
        self._broker = BrokerProcess(data, "topics.partitions=4", "kafka.share_lock_ms=1s").start()
        self.sr = {"url": self._broker.http_url.replace("//", f"//{NAME}:{NAME}@")}
    def wait_operational(self):
        pass
    def client_conf(self):
        return {
            "bootstrap.servers": f"127.0.0.1:{self._broker.kafka_port}",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": NAME,
            "sasl.password": NAME,
        }
    def stop(self, **asked):
        self._broker.__exit__(None, None, None)
        self._folder.cleanup()
''',
}
SERVICES = {  # what kafka-python's source package leaves out: without the first one Python's own `test` is found
    "__init__.py": "",
    "service.py": """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port
    def open(self):
        pass
    def close(self):
        pass
SpawnedService = None
""",
}
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "--timeout=120",
    "-o",
    "addopts=",
    "-o",
    "asyncio_default_fixture_loop_scope=function",
    "-W",
    "ignore",
]
LIBRDKAFKA = (
    ["./configure", "--disable-sasl", "--disable-curl"],
    ["make", "-j2", "libs"],
    ["make", "-j2", "-C", "tests", "build"],
)

USER, PASSWORD = "ann", "secret"
NEED_A_LOGIN = ("0081", "0135", "0142")  # librdkafka's tests of ACLs, of credentials, of logging in again
LEFT_OUT_BY_QUICK = ("0082",)


def kafka_python(checkout: Path, arguments: list[str], address: str, spare: Path) -> int:
    environment = {"KAFKA_URI": f"kafka://{address}", "KAFKA_VERSION": "4.0.0"}
    (checkout / "servers/4.0.0/kafka-bin").mkdir(parents=True, exist_ok=True)  # looked for, and not used
    for name, text in SERVICES.items():
        if not (checkout / "test" / name).exists():
            (checkout / "test" / name).write_text(text)
    # These two start brokers of their own.
    left_out = [f"--ignore=test/integration/test_{name}_integration.py" for name in ("sasl", "ssl")]
    return _run([*PYTEST, *_files("test/integration", arguments), *left_out], checkout, environment)


def aiokafka(checkout: Path, arguments: list[str], address: str, spare: Path) -> int:
    (spare / "docker.py").write_text(DOCKER)
    (spare / "ktutil").write_text("#!/bin/sh\n")  # its fixture makes a keytab for tests that are left out
    (spare / "ktutil").chmod(0o755)
    made = checkout / "tests" / "ssl_cert"
    if not (made / "client.crt").exists():
        made.mkdir(exist_ok=True)
        _run(["bash", str(checkout / "gen-ssl-certs.sh")], made, {}, quiet=True)
    # Its logins are set up by Kafka's scripts and Kerberos inside its own image.
    left_out = ["--deselect=tests/test_sasl.py", "--ignore=tests/test_sasl.py"]
    path = f"{spare}{os.pathsep}{os.environ['PATH']}"
    environment = {"PYTHONPATH": str(spare), "AIOKAFKA_NO_EXTENSIONS": "1", "PATH": path}
    command = [*PYTEST, *_files("tests", arguments), "--docker-image=mainstem:3.9.0", "--no-pull", *left_out]
    return _run(command, checkout, environment)


def confluent(checkout: Path, arguments: list[str], address: str, spare: Path) -> int:
    for name, text in TRIVUP.items():
        (spare / name).parent.mkdir(parents=True, exist_ok=True)
        (spare / name).write_text(text)
    tests = shutil.copytree(checkout / "tests", spare / "tests")  # beside the installed package, not before its sources
    left_out = f"--ignore={tests / 'integration' / 'share_consumer_oauth'}"  # tokens that nobody signed
    return _run([*PYTEST, "-o", "asyncio_mode=auto", *_files("tests/integration", arguments), left_out], spare, {})


def franz_go(checkout: Path, arguments: list[str], address: str, spare: Path) -> int:
    environment = {"KGO_SEEDS": address, "KGO_TEST_RECORDS": "50000", "KGO_TEST_RF": "1", "KGO_LOG_LEVEL": "none"}
    command = ["go", "test", "-count=1", "-timeout", "40m", *(arguments or ["-v"]), "."]
    with _guarded(spare) as guarded:  # its tests of SCRAM ask for one
        environment |= {
            "KGO_TEST_SCRAM": f"{USER}:{PASSWORD}",
            "KGO_TEST_SCRAM_SEEDS": f"127.0.0.1:{guarded.kafka_port}",
        }
        return _run(command, checkout / "pkg" / "kgo", environment)


def librdkafka(checkout: Path, arguments: list[str], address: str, spare: Path) -> int:
    built = checkout
    if not (checkout / "tests" / "test-runner").exists():
        built = shutil.copytree(checkout, spare / "librdkafka")
        for step in LIBRDKAFKA:
            if _run(step, built, {}, quiet=True):
                return 1
    tests = built / "tests"
    base = {"LD_LIBRARY_PATH": "../src:../src-cpp", "TEST_KAFKA_VERSION": "4.0.0", "TEST_LEVEL": "1"}
    plain = f"bootstrap.servers={address}\ntest.topic.random=true\n"
    (tests / "test.conf").write_text(plain)
    with _guarded(spare) as guarded:
        login = (
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanisms=PLAIN\nsasl.username={USER}\nsasl.password={PASSWORD}\n"
        )
        conf = spare / "login.conf"
        conf.write_text(plain.replace(address, f"127.0.0.1:{guarded.kafka_port}") + login)

        def failed_of(
            numbers: list[str],
        ) -> list[str]:  # a process each: a test that outlives its time ends its process
            failed = []
            for one in numbers:
                environment = {**base, "TESTS": one}
                if one in NEED_A_LOGIN:
                    environment["RDKAFKA_TEST_CONF"] = str(conf)
                quick = [] if one in LEFT_OUT_BY_QUICK else ["-Q"]
                if _run(["timeout", "300", "./test-runner", *quick, "-L", "-p1"], tests, environment):
                    failed.append(one)
            return failed

        once = failed_of(arguments or sorted({one.name[:4] for one in tests.glob("0[0-9][0-9][0-9]-*.c*")}))
        # Most have their time by the clock on the wall, which a busy machine exceeds.
        twice = failed_of(once)
    print("passed at the second try:", " ".join(one for one in once if one not in twice) or "none")
    print("failed:", " ".join(twice) or "none", flush=True)
    return bool(twice)


@contextmanager
def _guarded(spare: Path) -> Iterator[BrokerProcess]:
    """A broker where a login is needed."""
    user = ["user", "add", USER, "--admin", "--data", str(spare / "guarded"), "--password", PASSWORD]
    subprocess.run([sys.executable, "-m", "mainstem", *user], stdout=subprocess.DEVNULL, check=True)
    with BrokerProcess(spare / "guarded", "topics.partitions=4") as broker:
        yield broker


LOG_CHARACTERS = 20_000
SUITES = {
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "confluent": confluent,
    "franz-go": franz_go,
    "librdkafka": librdkafka,
}


def _files(folder: str, arguments: list[str]) -> list[str]:
    return arguments if any(not one.startswith("-") for one in arguments) else [folder, *arguments]


def _run(command: list[str], folder: Path, environment: dict[str, str], *, quiet: bool = False) -> int:
    path = os.pathsep.join(one for one in (environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")) if one)
    environment = {**os.environ, **environment, **({"PYTHONPATH": path} if path else {})}
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL if quiet else None, check=False
    ).returncode


def main(name: str, checkout: Path, arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as spare, BrokerProcess(Path(spare, "data"), "topics.partitions=4") as broker:
        address = f"127.0.0.1:{broker.kafka_port}"
        failed = SUITES[name](checkout.resolve(), arguments, address, Path(spare))
        print("what the broker said at last:", broker.log_path.read_text()[-LOG_CHARACTERS:], sep="\n", flush=True)
        return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
