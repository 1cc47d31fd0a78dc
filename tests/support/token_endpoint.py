"""A local OAuth token endpoint that issues tokens for Kafka's unsecured validator to one client."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from tests.support.http_server import Answer, serving

CLIENT = "relay"


@dataclass
class TokenEndpoint:
    """Issues tokens to the client `relay`, or gives `answer` in place of them."""

    secret: str
    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    issued: list[str] = field(default_factory=list)
    seconds: float = 3600.0
    subject: str = CLIENT
    answer: Answer | None = None

    def respond(self, authorization: str, form: str) -> Answer:
        self.asked.append({key: values[0] for key, values in parse_qs(form).items()})
        if self.answer is not None:
            return self.answer
        expected = base64.b64encode(f"{CLIENT}:{self.secret}".encode()).decode()
        if authorization != f"Basic {expected}":
            # as a careless one does: it repeats what it was given
            given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
            return 401, {"error": "invalid_client", "error_description": f"unknown\nclient {given}"}
        self.issued.append(unsecured(self.subject, self.seconds))
        token = {"access_token": self.issued[-1], "token_type": "Bearer"}
        return 200, token | {"expires_in": self.seconds}


def unsecured(subject: str, seconds: float) -> str:
    now = time.time()
    # brokers truncate their time to milliseconds, and refuse tokens of the future
    parts = {"alg": "none"}, {"sub": subject, "iat": int(now), "exp": now + seconds}
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)
    return "".join(f"{part.rstrip('=')}." for part in encoded)


@contextmanager
def token_endpoint(secret: str) -> Iterator[TokenEndpoint]:
    endpoint = TokenEndpoint(secret)
    with serving(lambda _, authorization, form: endpoint.respond(authorization, form)) as port:
        endpoint.url = f"http://127.0.0.1:{port}/token"
        yield endpoint
