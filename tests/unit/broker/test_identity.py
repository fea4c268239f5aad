"""What a client shows becomes a principal: passwords old and foreign, certificates, the namespace it chose."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json

import pytest

from mainstem.broker.identity.certificates import CertificateRules
from mainstem.broker.identity.foreign_users import read_users
from mainstem.broker.identity.login import Identity, IdentityOptions, Shown
from mainstem.broker.identity.passwords import make_credentials, renewed, verify_password
from mainstem.broker.rights.access import Access, Action
from mainstem.metadata.sqlite import SqliteStore
from mainstem.model.clock import ManualClock
from mainstem.model.errors import ConfigError, InvalidArgument, NotAuthorized, Overloaded

pytestmark = pytest.mark.usefixtures("quick_hashing")


@pytest.fixture
def access(store: SqliteStore) -> Access:
    access = Access(store, namespaces=("/", "shop", "lab"))
    access.add_user("root", "secret", admin=True)
    access.add_user("ann", "pw")
    return access


@pytest.fixture
def identity(access: Access) -> Identity:
    return Identity(access)


def in_as(identity: Identity, name: str, password: str = "pw", **more: str) -> tuple[str, str]:
    principal = asyncio.run(identity.login(Shown(name, password.encode(), **more)))  # type: ignore[arg-type]
    return principal.name, principal.namespace


def test_until_a_user_exists_every_login_is_accepted(store: SqliteStore) -> None:
    access = Access(store)
    principal = Identity(access).login_now(Shown("whoever", b"whatever"))
    assert principal is not None
    assert principal.anonymous
    assert access.allows(principal, Action.PUBLISH, b"a")


def test_from_the_first_user_on_a_login_is_needed(identity: Identity) -> None:
    assert identity.login_now(Shown("whoever", b"whatever")) is None
    for name, password in (("whoever", "whatever"), ("ann", "wrong"), ("ann", ""), ("", "")):
        with pytest.raises(NotAuthorized):
            in_as(identity, name, password)
    assert in_as(identity, "ann") == ("ann", "/")


def test_a_verified_login_is_known_until_its_password_changes(access: Access, identity: Identity) -> None:
    in_as(identity, "ann")
    assert identity.login_now(Shown("ann", b"pw")) is not None
    assert identity.login_now(Shown("ann", b"other")) is None
    access.add_rule("ann", allow=True, actions=["publish"], topic_filter="a")
    assert identity.login_now(Shown("ann", b"pw")) is not None
    access.set_password("ann", "new")
    assert identity.login_now(Shown("ann", b"pw")) is None


def test_too_many_failures_must_wait_where_they_were_made(access: Access) -> None:
    identity = Identity(access, IdentityOptions(failures_max=2), clock=ManualClock())
    for _ in range(2):
        with pytest.raises(NotAuthorized):
            in_as(identity, "root", "wrong", address="10.0.0.1")
    with pytest.raises(Overloaded, match="wait 1 s"):
        in_as(identity, "root", "secret", address="10.0.0.1")
    assert in_as(identity, "ann", address="10.0.0.1") == ("ann", "/")
    assert in_as(identity, "root", "secret", address="10.0.0.2") == ("root", "/")


def test_who_belongs_to_several_namespaces_chooses(access: Access, identity: Identity) -> None:
    access.set_namespaces("ann", ["shop", "lab"])
    assert in_as(identity, "ann") == ("ann", "shop")
    for name in ("lab:ann", "ann@lab", "lab/ann"):
        assert in_as(identity, name) == ("ann", "lab")
    assert in_as(identity, "ann", namespace="lab") == ("ann", "lab")
    for name in ("/:ann", "ann@/", "none:ann", "ann@none"):
        with pytest.raises(NotAuthorized):
            in_as(identity, name)
    with pytest.raises(NotAuthorized):
        in_as(identity, "lab:ann", namespace="shop")
    assert in_as(identity, "lab:root", "secret") == ("root", "lab")  # an admin chooses any
    with pytest.raises(NotAuthorized):
        in_as(identity, "none:root", "secret")


def test_a_name_with_an_at_is_a_user_before_it_is_a_choice(access: Access, identity: Identity) -> None:
    access.add_user("ann@lab", "other")
    assert in_as(identity, "ann@lab", "other") == ("ann@lab", "/")
    with pytest.raises(NotAuthorized):
        in_as(identity, "ann@lab", "pw")


def test_who_leaves_a_namespace_no_longer_holds(access: Access, identity: Identity) -> None:
    access.set_namespaces("ann", ["shop", "lab"])
    principal = asyncio.run(identity.login(Shown("lab:ann", b"pw")))
    assert access.holds(principal)
    access.set_namespaces("ann", ["shop"])
    assert not access.holds(principal)
    with pytest.raises(NotAuthorized):
        in_as(identity, "lab:ann")


# -- passwords of other makes


def scrypt_document(password: bytes) -> dict[str, object]:
    salt = b"0123456789abcdef"
    kept = hashlib.scrypt(password, salt=salt, n=16, r=8, p=1, dklen=32)
    return {"scrypt": {"salt": base64.b64encode(salt).decode(), "hash": base64.b64encode(kept).decode(), "n": 16}}


def test_new_passwords_are_argon2id() -> None:
    kept = make_credentials(b"pw")
    assert kept["argon2"].startswith("$argon2id$v=19$")
    assert verify_password(kept, b"pw") and not verify_password(kept, b"PW")
    assert renewed(kept, b"pw") is None


MOSQUITTO = (
    "# a comment\nann2:$7$101${salt}${hash}\n".replace("{salt}", base64.b64encode(b"salt of twelve").decode()).replace(
        "{hash}", base64.b64encode(hashlib.pbkdf2_hmac("sha512", b"pw", b"salt of twelve", 101)).decode()
    )
    + f"bob:$6${base64.b64encode(b'salty').decode()}${base64.b64encode(hashlib.sha512(b'pwsalty').digest()).decode()}\n"
)


def rabbit_hash(password: bytes, algorithm: str) -> str:
    salt = b"\x01\x02\x03\x04"
    return base64.b64encode(salt + hashlib.new(algorithm, salt + password).digest()).decode()


RABBIT = json.dumps(
    {
        "users": [
            {"name": "ann2", "password_hash": rabbit_hash(b"pw", "sha256"), "tags": ["monitoring"]},
            {
                "name": "bob",
                "password_hash": rabbit_hash(b"pw", "sha512"),
                "hashing_algorithm": "rabbit_password_hashing_sha512",
                "tags": "administrator",
            },
            {"name": "cert", "tags": []},
        ],
        "permissions": [
            {"user": "ann2", "vhost": "shop", "configure": "^$", "write": ".*", "read": ".*"},
            {"user": "ann2", "vhost": "lab", "configure": "", "write": "orders.*", "read": ".*"},
        ],
    }
)


@pytest.mark.parametrize("text", [MOSQUITTO, RABBIT], ids=["mosquitto", "rabbitmq"])
def test_users_of_other_brokers_log_in_and_are_renewed(access: Access, identity: Identity, text: str) -> None:
    for one in read_users(text):
        access.add_user(one.name, one.credentials, admin=one.admin, rules=one.rules)
    for name in ("ann2", "bob"):
        with pytest.raises(NotAuthorized):
            in_as(identity, name, "wrong")
        assert "argon2" not in access.user(name).credentials
        assert in_as(identity, name)[0] == name
        kept = access.user(name).credentials
        assert set(kept) == {"argon2", "SCRAM-SHA-256", "SCRAM-SHA-512"}, "by SCRAM too from now on"
        assert identity.login_now(Shown(name, b"pw")) is not None
        assert in_as(identity, name)[0] == name


def test_scrypt_of_earlier_versions_is_renewed_and_its_scram_stays(access: Access, identity: Identity) -> None:
    scram = make_credentials(b"pw")["SCRAM-SHA-256"]
    access.add_user("old", {**scrypt_document(b"pw"), "SCRAM-SHA-256": scram})
    in_as(identity, "old")
    kept = access.user("old").credentials
    assert "scrypt" not in kept and kept["SCRAM-SHA-256"] == scram


def test_what_a_rabbitmq_user_may_do_in_one_vhost_only_is_left_out() -> None:
    ann, bob, cert = read_users(RABBIT)
    assert ann.namespaces == ["shop", "lab"]
    assert [str(rule) for rule in ann.rules] == [
        "allow consume, describe #",
        "allow consume, describe queue *",
        "allow consume, describe exchange *",
    ]
    assert ann.left_out == ["write: .*, orders.*"]
    assert bob.admin and not ann.admin and cert.credentials == {}


@pytest.mark.parametrize(
    "text", ["ann:plain", "ann", "ann:$7$x$YQ==$YQ==", "ann:$7$99999999$YQ==$YQ==", "{}", '{"users": 1}']
)
def test_a_file_that_is_neither_is_told(text: str) -> None:
    with pytest.raises(InvalidArgument):
        read_users(text)


# -- certificates

CERTIFICATE = {
    "subject": ((("countryName", "DE"),), (("organizationName", "Acme, Inc"),), (("commonName", "pump-7"),)),
    "subjectAltName": (("DNS", "pump-7.devices.acme.net"), ("URI", "spiffe://acme/shop/pump-7")),
}


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("cn:{user}", ("pump-7", "")),
        ("subject:CN={user},O=Acme\\, Inc,*", ("pump-7", "")),
        ("subject:CN={user}", None),
        ("san.dns:{user}.devices.acme.net", ("pump-7", "")),
        ("san.uri:spiffe://acme/{namespace}/{user}", ("pump-7", "shop")),
        ("san.uri:spiffe://other/*/{user}", None),
        ("san.email:{user}@acme.net", None),
    ],
)
def test_a_rule_tells_the_user_of_a_certificate(rule: str, found: tuple[str, str] | None) -> None:
    assert CertificateRules.parse(["san.email:{user}", rule]).user_of(CERTIFICATE) == found


def test_a_name_that_reads_like_more_of_a_subject_is_no_more_than_a_name() -> None:
    forged = {"subject": ((("commonName", "eve,O=Acme"),),)}
    assert CertificateRules.parse(["subject:CN={user},O=Acme"]).user_of(forged) is None
    assert CertificateRules.parse(["cn:{user}"]).user_of(forged) is None


@pytest.mark.parametrize("rule", ["cn", "cn:x", "name:{user}", "cn:{user}{user}"])
def test_a_rule_that_is_none_is_told(rule: str) -> None:
    with pytest.raises(ConfigError):
        CertificateRules.parse([rule])


def test_a_certificate_logs_in_the_user_it_names_and_no_other(access: Access) -> None:
    identity = Identity(access, IdentityOptions(certificates=("cn:{user}",)))
    access.add_user("pump-7", "pw", namespace="shop", also=["lab"])

    def by(name: str = "", password: bytes = b"") -> tuple[str, str]:
        principal = asyncio.run(identity.login(Shown(name, password, certificate=CERTIFICATE)))
        return principal.name, principal.namespace

    assert by() == by("pump-7") == ("pump-7", "shop")
    assert by("lab:pump-7") == ("pump-7", "lab")
    assert by("ann", b"pw") == ("ann", "/")  # a password still counts
    for name in ("ann", "root", "/:pump-7"):
        with pytest.raises(NotAuthorized):
            by(name)
    access.remove_user("pump-7")
    with pytest.raises(NotAuthorized):
        by()
