"""An issuer of tokens for tests: keys of three kinds, a JWKS behind an address or in a file."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "mainstem"
MAKERS: dict[str, Any] = {
    "RS256": (lambda: rsa.generate_private_key(65537, 2048), RSAAlgorithm),
    "ES256": (lambda: ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate, OKPAlgorithm),
}


class Issuer:
    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Any]] = {}  # key id → algorithm, private key
        self.asked = 0
        for algorithm in MAKERS:
            self.add(algorithm, algorithm)

    def add(self, key_id: str, algorithm: str) -> None:
        self.keys[key_id] = algorithm, MAKERS[algorithm][0]()

    def jwks(self) -> dict[str, Any]:
        found = []
        for key_id, (algorithm, key) in self.keys.items():
            public = json.loads(MAKERS[algorithm][1].to_jwk(key.public_key()))
            found.append({**public, "kid": key_id, "use": "sig", "alg": algorithm})
        return {"keys": found}

    def token(self, key_id: str = "ES256", *, lives_s: float = 300, **claims: Any) -> str:
        algorithm, key = self.keys[key_id]
        now = int(time.time())
        body = {"sub": "tom", "aud": AUDIENCE, "iat": now, "exp": now + lives_s, **claims}
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(body, key, algorithm, headers={"kid": key_id})

    @contextmanager
    def served(self) -> Iterator[str]:
        """The address of its JWKS."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                body = json.dumps(issuer.jwks()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/jwks"
            finally:
                server.shutdown()
                thread.join()
