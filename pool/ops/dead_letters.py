"""The form of a dead letter on the command line and over HTTP."""

from __future__ import annotations

import attrs

from pool.jobs.client.parked import ParkedJob
from pool.ops.jsonable import TextEncoding, args_as_text


@attrs.frozen(kw_only=True)
class DeadLetter(ParkedJob):
    """A dead letter, with its history; `encoding` base64: its only argument is bytes, so written.

    `args` and `kwargs` are null where they cannot be read: they are `payload_bytes`, made by
    `codec`.
    """

    encoding: TextEncoding = "json"

    @classmethod
    def of(cls, job: ParkedJob) -> DeadLetter:
        """Return the form of a parked job."""
        facts = attrs.asdict(job, recurse=False)
        if job.args is not None:
            facts["args"], facts["encoding"] = args_as_text(job.args)
        return cls(**facts)
