"""A Django project: its views, a command that runs its jobs, and `runserver` that reloads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.programs.conftest import PATIENCE_S, until

if TYPE_CHECKING:
    from tests.programs.conftest import Place, Web


@pytest.fixture
def project(place: Place) -> Place:
    place.write("django.md")
    (place.folder / "jobs.py").unlink()  # the project has its own
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        cwd=place.folder,
        env=place.environment,
        timeout=PATIENCE_S,
        check=True,
    )
    return place


def reported(web: Web, customer: str) -> str:
    """Have a report made; return it."""
    begun = web.post(f"/reports/{customer}")
    assert begun.status_code == 202, begun.text
    path = f"/reports/{customer}/{begun.json()['job']}"
    until(lambda: web.get(path).json()["state"] == "done")
    return str(web.get(path).json()["result"])


def test_a_server_that_reloads_and_workers_that_die(project: Place, web: Web) -> None:
    server = project.start("python", "manage.py", "runserver", f"127.0.0.1:{web.port}")
    worker = project.worker("python", "manage.py", "worker")
    assert reported(web, "acme") == "All: 0 users"

    # Autoreload ends the process by `sys.exit(3)`: its client leaves, and the next one opens.
    views = project.folder / "shop/views.py"
    views.write_text(views.read_text("utf-8").replace('"All"', '"New"'), "utf-8")
    server.says("node.left")
    assert reported(web, "duff") == "New: 0 users"

    os.kill(worker.process.pid, signal.SIGKILL)
    begun = web.post("/reports/hooli").json()["job"]
    by_pool_run = ("pool", "run", "shop.worker:handlers", "--pool", project.pool)
    other = project.worker(*by_pool_run)
    until(lambda: web.get(f"/reports/hooli/{begun}").json()["state"] == "done")
    assert other.ends(signal.SIGTERM) == 0
    os.killpg(server.process.pid, signal.SIGINT)  # as a terminal does
    server.says("node.left", times=2)


def test_a_worker_that_is_told_to_end_leaves(project: Place) -> None:
    worker = project.worker("python", "manage.py", "worker")
    assert worker.ends(signal.SIGTERM) == 0
    worker.says("node.left")


def test_a_command_of_the_project_may_dispatch_and_just_end(project: Place) -> None:
    """The client is not closed by anybody: the end of the program does it."""
    project.worker("python", "manage.py", "worker")
    project.file(
        "shop/management/commands/nightly.py",
        """\
from typing import Any
from django.core.management.base import BaseCommand
from shop.pool_client import client

class Command(BaseCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        print(client.dispatch("report", "acme", "Nightly").result(timeout_s=60))
""",
    )
    nightly = project.start("python", "manage.py", "nightly")
    assert nightly.ends() == 0
    nightly.says("^Nightly: 0 users$")
    nightly.says("node.left")
