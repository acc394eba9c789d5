"""What a worker is and has, as signed texts: opaque to clients, the same at every gateway.

    claim --pack, sign with the first secret--> token --any of the secrets fits--> claim

Who knows one can use it, as a worker; nobody can make one.  They hold no secret: the names of keys
and handlers can be read in them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any, Final

import attrs
from itsdangerous import BadData, URLSafeSerializer

from pool.errors import PoolError
from pool.jobs.remote.claims import JobClaim, WorkerClaim
from pool.ops.web.problems import WebRefusal

_HINT: Final = "it was signed with another secret: all gateways of a pool need the same"


def _serializer(keys: Sequence[str], of: str) -> URLSafeSerializer:
    # The newest comes last there, and signs.
    options = {"key_derivation": "hmac", "digest_method": staticmethod(hashlib.sha256)}
    return URLSafeSerializer(list(reversed(keys)), salt=f"pool.{of}", signer_kwargs=options)


@attrs.frozen(repr=False)
class Tokens:
    """Makes them and reads them; without secrets by one that this process has made."""

    keys: Sequence[str]
    _workers: Any = attrs.field(init=False)
    _jobs: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        keys = self.keys or (secrets.token_urlsafe(32),)
        object.__setattr__(self, "_workers", _serializer(keys, "worker"))
        object.__setattr__(self, "_jobs", _serializer(keys, "job"))

    def of_worker(self, claim: WorkerClaim) -> str:
        """Return the token of a worker."""
        token: str = self._workers.dumps(claim.pack())
        return token

    def of_job(self, claim: JobClaim) -> str:
        """Return the token of a job that a worker has."""
        token: str = self._jobs.dumps(claim.pack())
        return token

    def worker(self, token: str) -> WorkerClaim:
        """Return whose it is.

        Raises:
            WebRefusal: It is none.
        """
        try:
            return WorkerClaim.parse(self._workers.loads(token))
        except (BadData, PoolError, ValueError, TypeError):
            detail = "worker_token is none of this gateway's: register again"
            raise WebRefusal("WEBWORKER", detail, _HINT, facts={"of": "worker"}) from None

    def job(self, token: str) -> JobClaim:
        """Return of which job it is.

        Raises:
            WebRefusal: It is none.
        """
        try:
            return JobClaim.parse(self._jobs.loads(token))
        except (BadData, PoolError, ValueError, TypeError):
            detail = "the token of the job is none"
            raise WebRefusal("WEBTOKEN", detail, _HINT, facts={"of": "job"}) from None
