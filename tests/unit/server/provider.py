"""A provider of OpenID Connect in this process: keys, a device flow, ID tokens."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CLIENT = "rayjobs"


class Provider:
    """Logs in every client at its second poll."""

    def __init__(self) -> None:
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.new_key("one")
        self.claims: dict[str, Any] = {"preferred_username": "ada"}
        self.polls = 0
        self.refuses = ""
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = {
                    "/.well-known/openid-configuration": provider.configuration,
                    "/keys": provider.public_keys,
                }.get(self.path)
                self._answer(404 if found is None else 200, {} if found is None else found())

            def do_POST(self) -> None:
                sent = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                assert sent["client_id"] == [CLIENT]
                if self.path == "/device":
                    code = {"device_code": "d", "user_code": "ABCD", "interval": 0}
                    self._answer(200, {**code, "verification_uri": "https://example.org/device"})
                    return
                provider.polls += 1
                if provider.refuses:
                    self._answer(400, {"error": provider.refuses})
                elif provider.polls < 2:
                    self._answer(400, {"error": "authorization_pending"})
                else:
                    self._answer(200, {"id_token": provider.token()})

            def _answer(self, status: int, body: object) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def new_key(self, name: str) -> None:
        self.keys = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048)}

    def configuration(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            "token_endpoint": f"{self.issuer}/token",
            "device_authorization_endpoint": f"{self.issuer}/device",
        }

    def public_keys(self) -> dict[str, Any]:
        return {
            "keys": [
                {**jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": name}
                for name, key in self.keys.items()
            ]
        }

    def token(self, *, algorithm: str = "RS256", key: Any = None, **changes: Any) -> str:
        """Return an ID token; a claim that is None is left out."""
        name, own = next(iter(self.keys.items()))
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": "1",
            "iat": now,
            "exp": now + 600,
            **self.claims,
            **changes,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, key or own, algorithm=algorithm, headers={"kid": name})

    def public_pem(self) -> bytes:
        own = next(iter(self.keys.values()))
        return own.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
