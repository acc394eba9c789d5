"""For your tests: a server, a job to call a handler with, a proxy that misbehaves, an auditor."""

from __future__ import annotations

from pool.redis.embedded.server import EmbeddedServer, ServerProgram, find_server
from pool.testing.audit import audit
from pool.testing.jobs import make_job
from pool.testing.proxy import FaultProxy, fault_proxy

__all__ = [
    "EmbeddedServer",
    "FaultProxy",
    "ServerProgram",
    "audit",
    "fault_proxy",
    "find_server",
    "make_job",
]
