"""Bugs planted in how processes end, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_CELL: Final = "tests/verify/test_exits.py::test_it_is_gone_in_time"
_KILLED: Final = "tests/verify/test_exits.py::test_a_child_that_is_killed_is_replaced"
_OVERRUN: Final = "tests/process/test_overrun.py::"
_RUN: Final = "tests/ops/test_run.py::"
_RESOURCES: Final = "tests/jobs/test_resources.py::"
_FORKS: Final = "tests/programs/test_fork_openings.py::"

EXIT_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "status lines block",
        "breaks": "a stalled log reader stops a drain, and the parent of several processes",
        "path": "pool/ops/cli/run.py",
        "old": "facts)], out.stream)",
        "new": "facts)], sys.stdout)",
        "by": (
            f"{_CELL}[full pipe-SIGTERM-asyncio]",
            _KILLED + "[full pipe-asyncio]",
        ),
    },
    {
        "name": "the last lines have no limit",
        "breaks": "a worker that has left waits for whoever reads its output",
        "path": "pool/redis/io/scribe.py",
        "old": "is_over.wait(limit_s)",
        "new": "is_over.wait()",
        "by": (f"{_CELL}[full pipe-SIGTERM-asyncio]",),
    },
    {
        "name": "the end waits for threads",
        "breaks": "a thread that a finished job left behind keeps a drained worker",
        "path": "pool/ops/cli/__init__.py",
        "old": "        late_end.begin()\n",
        "new": "        pass\n",
        "by": (f"{_CELL}[thread-SIGTERM-trio]", f"{_CELL}[atexit-SIGTERM-asyncio]"),
    },
    {
        "name": "an orderly end has 2 s",
        "breaks": "a worker on a busy machine has ended with exit code 1, and nothing says why",
        "path": "pool/ops/cli/exiting.py",
        "old": "_LAST_S: Final = 5 * AFTER_S",
        "new": "_LAST_S: Final = 2 * AFTER_S",
        "by": (f"{_RUN}test_an_orderly_end_that_takes_long_is_one",),
    },
    {
        "name": "a process pool outlives its worker",
        "breaks": "processes of multiprocessing stay behind, without a parent",
        "path": "pool/ops/cli/exiting.py",
        "old": "            process.kill()\n",
        "new": "            pass\n",
        "by": (f"{_CELL}[process pool-SIGTERM-asyncio]",),
    },
    {
        "name": "a second signal waits for the event loop",
        "breaks": "a worker whose loop a handler blocks can be ended by SIGKILL alone",
        "path": "pool/ops/cli/worker.py",
        "old": "                signal.signal(each, second)\n",
        "new": "                pass\n",
        "by": (f"{_RUN}test_a_second_signal_ends_it_also_where_its_loop_stands_still",),
    },
    {
        "name": "forks write their signals into the worker's socket",
        "breaks": "a handler that ends a process of multiprocessing drains its worker",
        "path": "pool/ops/cli/worker.py",
        "old": "        _Forks(numbers).watch()\n",
        "new": "        pass\n",
        "by": (f"{_RUN}test_a_signal_to_a_process_that_a_handler_forked_is_for_that_alone",),
    },
    {
        "name": "a process that ends itself is still ready",
        "breaks": "a probe finds the ready file of a worker that has ended by exit code 70",
        "path": "pool/ops/cli/worker.py",
        "old": '        readiness.leaving("overran")',
        "new": '        str("overran")',
        "by": (f"{_OVERRUN}test_a_process_that_ends_itself_leaves_no_ready_file",),
    },
    {
        "name": "a failure is told with all frames of ours",
        "breaks": "who reads why a worker has failed reads of our task groups",
        "path": "pool/ops/cli/failing.py",
        "old": "    if any(map(_is_theirs, found.stack)):\n",
        "new": "    if not found:\n",
        "by": (f"{_RUN}test_what_ends_a_node_is_told_by_the_users_own_code_and_a_last_line",),
    },
    {
        "name": "whoever cancels all tasks breaks each of our parts",
        "breaks": "sys.exit() in a task of a handler is told as six crashes to be reported",
        "path": "pool/runtime/supervisor.py",
        "old": "        if self._is_of_all(error):\n",
        "new": "        if False:\n",
        "by": ("tests/runtime/test_task_scope.py::test_who_cancels_all_tasks_burns_no_attempt",),
    },
    {
        "name": "a signal waits until the node is open",
        "breaks": "a worker with a lifespan that hangs ignores SIGTERM",
        "path": "pool/ops/cli/worker.py",
        "old": "            self.opening.cancel()\n",
        "new": "            pass\n",
        "by": (f"{_RUN}test_a_signal_ends_a_worker_that_still_opens",),
    },
    {
        "name": "a lifespan has the deadline of the server's calls",
        "breaks": "one that takes 16 s is told as a server that cannot be reached",
        "path": "pool/jobs/node.py",
        "old": "left_s, patience.deadline = patience.deadline - anyio.current_time(), math.inf",
        "new": "left_s = patience.deadline - anyio.current_time()",
        "by": (f"{_RESOURCES}test_a_lifespan_takes_as_long_as_it_needs",),
    },
    {
        "name": "a lifespan that opens may go on for the grace",
        "breaks": "a node that was cancelled while it opened leaves as late as one with jobs",
        "path": "pool/jobs/lifespans.py",
        "old": "                held.scope.cancel()  # the node that was to use it does not open\n",
        "new": "                pass\n",
        "by": (f"{_RESOURCES}test_a_lifespan_that_is_still_opening_ends_with_who_opens",),
    },
    {
        "name": "PID 1 is a worker itself",
        "breaks": "a signal during the import is lost, and orphans stay as zombies",
        "path": "pool/ops/cli/__init__.py",
        "old": "os.getpid() == 1",
        "new": "os.getpid() == 0",
        "by": (f"{_CELL}[as PID 1-SIGTERM-asyncio]", f"{_CELL}[import, as PID 1-SIGTERM-asyncio]"),
    },
    {
        "name": "PID 1 reaps its own child only",
        "breaks": "orphans stay as zombies until the container ends",
        "path": "pool/ops/cli/init.py",
        "old": "os.waitpid(-1,",
        "new": "os.waitpid(child,",
        "by": (f"{_CELL}[as PID 1-SIGTERM-asyncio]",),
    },
    {
        "name": "PID 1 keeps signals to itself",
        "breaks": "a container does not drain, and is killed after its grace period",
        "path": "pool/ops/cli/init.py",
        "old": "                os.kill(child, info.si_signo)\n",
        "new": "                pass\n",
        "by": (f"{_CELL}[as PID 1-SIGTERM-asyncio]",),
    },
    {
        "name": "the event loop is imported by the first call",
        "breaks": "a fork meanwhile leaves a child that waits for ever for the module's lock",
        "path": "pool/jobs/sync/portal.py",
        "old": "import anyio._backends._asyncio ",
        "new": "import anyio ",
        "by": (
            f"{_FORKS}test_opening_a_client_imports_nothing",
            f"{_FORKS}test_a_fork_at_any_moment_of_an_opening_leaves_a_child_that_works",
        ),
    },
    {
        "name": "opening a client imports a module",
        "breaks": "a fork meanwhile copies the module's lock, which nobody releases",
        "path": "pool/jobs/sync/portal.py",
        "old": "            self._joining, self._loop = anyio.Lock(), current_loop()\n",
        "new": "            import mailbox\n\n"
        "            self._joining, self._loop = anyio.Lock(), current_loop()\n",
        "by": (f"{_FORKS}test_opening_a_client_imports_nothing",),
    },
)
