"""A FastAPI service in two processes, each with a node of its own on uvicorn's event loop."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.programs.conftest import two, until

if TYPE_CHECKING:
    from tests.programs.conftest import Place, Web

# The page's application, and a route that says who answers.
WHO = """
import os

@app.get("/who")
async def who() -> int:
    return os.getpid()
"""


def test_two_processes_serve_and_one_that_is_killed_is_replaced(place: Place, web: Web) -> None:
    place.write("fastapi.md")
    place.file("app.py", (place.folder / "app.py").read_text("utf-8") + WHO)
    uvicorn = place.start("uvicorn", "--workers", "2", "--port", str(web.port), "app:app")

    def who() -> int:
        return int(web.get("/who").json())

    before = two(who)
    # No worker yet: what one process takes, the other one knows.
    assert web.post("/reports/acme").status_code == 202
    refused = [web.post("/reports/acme").status_code for _ in range(8)]
    assert refused == [409] * 8
    looks = [web.get("/reports/acme").json()["state"] for _ in range(8)]
    assert looks == ["unassigned"] * 8
    killed = before.pop()
    os.kill(killed, signal.SIGKILL)
    until(lambda: who() != killed)
    assert web.get("/reports/acme").json()["state"] == "unassigned"
    assert killed not in two(who)
    place.worker()
    until(lambda: web.get("/reports/acme").status_code == 404)  # it is done: no live job
    assert web.post("/reports/acme").status_code == 202
    uvicorn.ends(signal.SIGTERM)
    uvicorn.says("node.left", times=2)
