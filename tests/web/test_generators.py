"""What common generators make of our OpenAPI: clients that dispatch, ask, schedule and batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.web.gateways import SECRETS

# Both programs write files and tell of what they left out; what they wrote is then used.
CLIENT = """
import sys
from made import AuthenticatedClient
from made.api.batches import get_batches_batch, post_batches
from made.api.jobs import get_jobs_key_job_id, post_jobs
from made.api.parked import get_parked, put_parked_key_job_id
from made.api.schedules import get_schedules_schedule, put_schedules_schedule
from made.models import BatchBody, CallBody, EditBody, JobBody, JobTaken, ScheduleBody, WebProblem

client = AuthenticatedClient(sys.argv[1], sys.argv[2])
job = JobBody(handler="resize", key="img-1", args=["1.png", 2], allow_unknown=True)
taken = post_jobs.sync(client=client, body=job)
assert isinstance(taken, JobTaken), taken
state = get_jobs_key_job_id.sync("img-1", taken.job_id, client=client)
assert (state.key, state.handler) == ("img-1", "resize"), state
body = ScheduleBody(handler="resize", key="s", args=[1], cron="0 3 * * *", allow_unknown=True)
made = put_schedules_schedule.sync("nightly", client=client, body=body)
assert made.name == "nightly", made
assert get_schedules_schedule.sync("nightly", client=client).args == [1]
call = CallBody(handler="resize", key="b-1", args=[[1, "a"]])
batch = post_batches.sync(client=client, body=BatchBody(id="b", jobs=[call]))
assert not isinstance(batch, WebProblem), batch
assert get_batches_batch.sync("b", client=client).id == "b"
assert get_parked.sync(client=client).jobs == []
edited = put_parked_key_job_id.sync("k", "none", client=client, body=EditBody(args=[1]))
assert isinstance(edited, WebProblem) and edited.status == 404, edited
"""
MODELS = """
import json, sys, urllib.request
from models import JobBody, JobState, JobTaken

def ask(path, body=None):
    headers = {"Authorization": f"Bearer {sys.argv[2]}", "Content-Type": "application/json"}
    data = body and body.model_dump_json(exclude_unset=True).encode()
    with urllib.request.urlopen(urllib.request.Request(sys.argv[1] + path, data, headers)) as reply:
        return reply.read()

job = JobBody(handler="resize", key="img-2", args=["2.png", 2], allow_unknown=True)
taken = JobTaken.model_validate_json(ask("/v1/jobs", job))
state = JobState.model_validate_json(ask(f"/v1/jobs/img-2/{taken.job_id}"))
assert state.handler == "resize", state
"""


def run(folder: Path, *words: object) -> str:
    """Run a program that must succeed; return what it says."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def root(gateway: tuple[str, int], tmp_path: Path) -> str:
    """Write the document of a running gateway down; return where that listens."""
    root = f"http://{gateway[0]}:{gateway[1]}"
    (tmp_path / "openapi.json").write_bytes(httpx.get(f"{root}/openapi.json").content)
    return root


def test_openapi_python_client_makes_a_client_that_works(root: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("openapi-python-client")
    options = ("--path", "openapi.json", "--output-path", "made", "--meta", "none")
    said = run(tmp_path, program, "generate", *options)
    assert "WARNING" not in said
    assert "Unable to process" not in said
    (tmp_path / "client.py").write_text(CLIENT, "utf-8")
    run(tmp_path, sys.executable, "client.py", root, SECRETS["operate"])


def test_datamodel_code_generator_makes_models_that_work(root: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("datamodel-codegen")
    options = ("--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel")
    run(tmp_path, program, "--input", "openapi.json", "--output", "models.py", *options)
    (tmp_path / "uses.py").write_text(MODELS, "utf-8")
    run(tmp_path, sys.executable, "uses.py", root, SECRETS["operate"])


def test_every_list_of_the_document_says_what_is_in_it(root: str, tmp_path: Path) -> None:
    """A schema without it is dropped by generators, with every operation that names it."""
    document = json.loads((tmp_path / "openapi.json").read_text("utf-8"))

    def lists(schema: object) -> list[object]:
        if isinstance(schema, list):
            return [each for part in schema for each in lists(part)]
        if not isinstance(schema, dict):
            return []
        inner = [each for part in schema.values() for each in lists(part)]
        return [schema, *inner] if schema.get("type") == "array" else inner

    found = lists(document)
    assert len(found) > 8
    assert all({"items", "prefixItems"} & {*each} for each in found if isinstance(each, dict))
