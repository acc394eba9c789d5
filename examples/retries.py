"""How jobs fail: by an error, on purpose, for good, or not at all.

It prints:

    flaky: done after 3 attempts
    patient: done after 2 attempts
    broken: parked (failed) after 5 attempts: ValueError: never works
    hopeless: parked (no such customer) after 1 attempts
    obsolete: cancelled (the customer left)
"""

from __future__ import annotations

import anyio

from pool import Cancel, Handlers, Job, Node, Park, Retry
from pool.errors import JobCancelled, JobParked

handlers = Handlers()


@handlers.job("invoice", attempts_max=5, backoff_s=0.02, backoff_max_s=0.1)
async def invoice(job: Job) -> int:
    """End in the way that the key says; return how many attempts it took."""
    match job.key:
        case "flaky" if job.attempt < 3:
            raise ConnectionError("try again")  # any error: a full-jitter delay, then again
        case "patient" if job.attempt < 2:
            raise Retry(after_s=0.05, cause="rate limit")  # its own delay; the attempt counts
        case "broken":
            raise ValueError("never works")  # after attempts_max it is parked
        case "hopeless":
            raise Park("no such customer")  # parked at once: nobody shall try again
        case "obsolete":
            raise Cancel("the customer left")  # neither done nor failed
    return job.attempt


async def main() -> None:
    async with Node("billing", "embedded://", handlers=handlers, observers=()) as node:
        for key in ("flaky", "patient", "broken", "hopeless", "obsolete"):
            ref = await node.dispatch(invoice, key)
            try:
                print(f"{key}: done after {await ref.result(timeout_s=10)} attempts")
            except JobParked as error:
                last = f": {error.last_error}" if error.last_error else ""
                print(f"{key}: parked ({error.cause}) after {error.attempts} attempts{last}")
            except JobCancelled as error:
                print(f"{key}: cancelled ({error.cause})")


if __name__ == "__main__":
    anyio.run(main)
