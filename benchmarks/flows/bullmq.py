"""BullMQ for Node.js, which is what has its flows and schedulers; `bullmq.js` speaks for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.flows.protocol import Flow, main

HERE = Path(sys.executable).parent.parent
NODE = HERE / "bin/node"
MODULES = HERE / "node_modules"


class Bullmq(Flow):
    """Lists and sorted sets; a lock per running job that its worker renews."""

    distributions: ClassVar[tuple[str, ...]] = ()
    docs: ClassVar[str] = "https://docs.bullmq.io/guide/flows and guide/job-schedulers"
    setting: ClassVar[str] = "concurrency=100, lockDuration and stalledInterval 30 s (default)"
    ways: ClassVar[dict[str, str]] = {
        "batch": "FlowProducer.add(), waitUntilFinished() of the parent, which does nothing",
        "fan_in": "FlowProducer.add(): the parent runs once its children are done",
        "cron": "upsertJobScheduler({pattern: '* * * * * *'})",
    }
    promises: ClassVar[dict[str, str]] = {
        "batch": "added in one transaction; a killed worker's children come back after some 30 s;"
        " the script that ends the last one releases the parent",
        "fan_in": "likewise; of a child that failed for good the parent waits for ever, unless its"
        " options say otherwise",
        "cron": "the next time is added when the job of the one before begins, under an id of its"
        " own; times that pass without a worker are left out",
    }

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Say what npm has installed."""
        versions = {
            name: json.loads((MODULES / name / "package.json").read_text("utf-8"))["version"]
            for name in ("bullmq", "ioredis")
        }
        told = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True)
        return super().facts() | {"versions": {**versions, "node": told.stdout.strip()}}

    def work(self) -> None:
        """Another program does."""
        raise NotImplementedError


if __name__ == "__main__":
    if sys.argv[1] == "facts":
        main(Bullmq)
    else:
        script = Path(__file__).with_suffix(".js")
        environment = {**os.environ, "NODE_PATH": str(MODULES)}
        os.execve(NODE, [str(NODE), str(script), *sys.argv[1:]], environment)  # noqa: S606 - no shell is wanted
