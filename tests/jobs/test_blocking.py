"""Functions that a handler calls beside the event loop, in threads and in processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from pool import Depends, Handlers, Job
from pool.errors import (
    InvalidOption,
    JobCancelled,
    JobParked,
    NotOwner,
    OutOfMemory,
    PayloadEncodingError,
    PayloadTooLarge,
    ProcessDied,
    ProcessFailed,
    WrongLoop,
)
from pool.events import HandlerLeaked
from pool.jobs import process
from pool.redis.io.loops import let_go
from pool.testing import make_job
from tests.jobs import blocking_work as work

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
T = TypeVar("T")

MEMBER = Path(__file__).with_name("blocking_member.py")
ROOT = Path(__file__).parents[2]
LINUX = sys.platform.startswith("linux")
MIB = 1024 * 1024


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield what threads wait for; whatever happens, they end."""
    gate = threading.Event()
    yield gate
    gate.set()


def lives(pid: int) -> bool:
    """Whether a process is there; a zombie is not."""
    try:
        said = subprocess.run(
            ["/bin/ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
    except FileNotFoundError:
        said = _stat(pid)
    return bool(said.strip()) and not said.strip().startswith("Z")


def _stat(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    with anyio.fail_after(30):
        while not is_so():  # noqa: ASYNC110 - it tells nobody
            await anyio.sleep(0.01)


async def noted(path: Path) -> list[int]:
    """Return the numbers of processes, once they are noted."""
    await until(path.exists)
    return [int(word) for word in (await anyio.Path(path).read_text()).split()]


async def ended(pids: list[int]) -> None:
    """Wait until none of them lives."""
    await until(lambda: not any(lives(pid) for pid in pids))


# --- threads --------------------------------------------------------------------------------------


async def test_a_function_is_called_in_a_thread_and_the_loop_goes_on() -> None:
    here, bell = threading.get_ident(), threading.Event()

    def elsewhere(first: int, second: str = "b") -> tuple[bool, int, str]:
        return threading.get_ident() != here and bell.wait(30), first, second

    job = make_job("k")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 0)
        tasks.start_soon(_set, bell)
        assert await job.run_blocking(elsewhere, 1) == (True, 1, "b")


def _plain(fn: Callable[[], T]) -> T:
    return fn()


async def _set(bell: threading.Event) -> None:
    bell.set()


async def test_what_it_raises_is_raised_and_no_coroutine_is_awaited_behind_the_back() -> None:
    job = make_job("k")
    with pytest.raises(LookupError, match="here"):
        await job.run_blocking(work.fail, "here")
    await (await job.run_blocking(partial(_plain, work.wait)))


async def test_a_thread_that_calls_another_function_keeps_its_place() -> None:
    """Else the only place would be waited for by who has it."""
    job = make_job("k")

    def outer() -> int:
        return anyio.from_thread.run(job.run_blocking, work.echo, 7)  # type: ignore[no-any-return]

    with anyio.fail_after(30):
        assert await job.run_blocking(outer) == 7
        assert await job.run_blocking(outer) == 7


@pytest.mark.parametrize("process", [False, True])
async def test_a_worker_calls_as_many_at_once_as_it_has_slots(fleet: Fleet, process: bool) -> None:
    handlers, most = Handlers(), 0

    @handlers.job("many")
    async def many(job: Job) -> int:
        nonlocal most
        limiter = job._blocking().limiter

        async def call() -> None:
            nonlocal most
            await job.run_blocking(work.pid, process=process)

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, limiter.borrowed_tokens)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as looking:
            looking.start_soon(look)
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(call)
            looking.cancel_scope.cancel()
        return int(limiter.total_tokens)

    node = await fleet.node(handlers, capacity=3)
    assert await (await node.dispatch(many, "k")).result(timeout_s=30) == 3
    assert most == 3


async def test_one_that_asks_whether_its_handler_was_told_to_end_hears_it(fleet: Fleet) -> None:
    handlers, began = Handlers(), anyio.Event()

    def patient() -> None:
        anyio.from_thread.run_sync(began.set)
        while True:
            anyio.from_thread.check_cancelled()

    @handlers.job("patient")
    async def waits(job: Job) -> None:
        await job.run_blocking(patient)

    node = await fleet.node(handlers)
    ref = await node.dispatch(waits, "k")
    await began.wait()
    await ref.stop(timeout_s=20)
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=30)
    assert fleet.all_seen(HandlerLeaked) == []


async def test_clean_up_that_hangs_in_a_thread_is_a_leak_too(
    fleet: Fleet, diary: Diary, gate: threading.Event
) -> None:
    """Its first thread begins when the handler is cancelled already."""
    handlers = Handlers()

    @handlers.job("cleans")
    async def cleans(job: Job) -> None:
        diary.note("begun")
        try:
            await anyio.sleep_forever()
        finally:
            with job.ending():
                await job.run_blocking(gate.wait)

    node = await fleet.node(handlers, lease_ttl_s=1.0)
    ref = await node.dispatch(cleans, "k")
    await diary.has("begun")
    await ref.stop(timeout_s=20)
    assert (await fleet.seen(HandlerLeaked)).why == "stop"
    gate.set()


@pytest.mark.parametrize("is_generator", [False, True])
async def test_a_plain_dependency_that_hangs_is_a_leak_too(
    fleet: Fleet, diary: Diary, gate: threading.Event, is_generator: bool
) -> None:
    """Made or closed in a thread: an async handler cannot end before that."""
    handlers = Handlers()

    def hangs(job: Job) -> None:
        anyio.from_thread.run_sync(diary.note, "begun")
        gate.wait()

    def closes(job: Job) -> Iterator[None]:
        anyio.from_thread.run_sync(diary.note, "begun")
        yield
        gate.wait()

    @handlers.job("depends", timeout_s=0.2, attempts_max=1)
    async def depends(
        job: Job, *, it: None = Depends(closes if is_generator else hangs)
    ) -> None: ...

    node = await fleet.node(handlers, lease_ttl_s=1.0)
    ref = await node.dispatch(depends, "k")
    await diary.has("begun")
    assert (await fleet.seen(HandlerLeaked)).why == "timeout"
    with pytest.raises(JobParked):
        await ref.result(timeout_s=20)
    gate.set()
    (worker,) = fleet.workers(node)
    await fleet.until(lambda: worker.takes(0) == worker.capacity)


async def test_clean_up_that_takes_its_time_without_a_thread_is_none(
    fleet: Fleet, diary: Diary
) -> None:
    """Only threads cannot be ended; and the one that it had is over."""
    handlers = Handlers()

    @handlers.job("cleans")
    async def cleans(job: Job) -> None:
        await job.run_blocking(work.pid)
        diary.note("begun")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.8)  # thrice the stop budget

    node = await fleet.node(handlers, lease_ttl_s=1.0, on_overrun="report")
    ref = await node.dispatch(cleans, "k")
    await diary.has("begun")
    await ref.stop(timeout_s=20)
    assert fleet.all_seen(HandlerLeaked) == []


async def test_a_run_that_is_over_calls_nothing(
    fleet: Fleet, diary: Diary, gate: threading.Event
) -> None:
    handlers, kept = Handlers(), list[Job]()

    @handlers.job("keeps")
    async def keeps(job: Job) -> None:
        kept.append(job)

    node = await fleet.node(handlers)
    await (await node.dispatch(keeps, "k")).result(timeout_s=30)
    with pytest.raises(NotOwner):
        await kept[0].run_blocking(work.pid)
    with pytest.raises(NotOwner):
        await kept[0].run_blocking(work.pid, process=True)
    with anyio.fail_after(30):
        await anyio.to_thread.run_sync(_from_another_loop, kept[0])


def _from_another_loop(job: Job) -> None:
    async def call() -> None:
        with pytest.raises(WrongLoop):
            await job.run_blocking(work.pid)

    anyio.run(call)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        work.wait,
        work.NAMED,
        work.Kind.of_class,
        work.Kind().of_object,
        partial(work.echo, 1),
        "echo",
        None,
        pytest.param(lambda: None, id="lambda"),
    ],
)
async def test_what_cannot_be_imported_by_name_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, fn: Any
) -> None:
    monkeypatch.setattr(process, "_start", None)
    with pytest.raises(InvalidOption, match="its module holds under its name"):
        await make_job("k").run_blocking(fn, process=True)


async def test_a_function_within_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def nested() -> None: ...

    monkeypatch.setattr(process, "_start", None)
    with pytest.raises(InvalidOption, match="its module holds under its name"):
        await make_job("k").run_blocking(nested, process=True)


async def test_arguments_that_cannot_be_encoded_are_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_start", None)
    monkeypatch.setattr(process, "FRAME_BYTES_MAX", 100)
    job = make_job("k")
    with pytest.raises(PayloadEncodingError) as refused:
        await job.run_blocking(work.echo, {"a": {1, 2}}, process=True)
    assert refused.value.path == "$.args[0].a"
    with pytest.raises(PayloadTooLarge):
        await job.run_blocking(work.echo, "x" * 101, process=True)


async def test_options_that_mean_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_start", None)
    job = make_job("k")
    with pytest.raises(InvalidOption, match="plain function"):
        await (await job.run_blocking(work.wait))
    with pytest.raises(InvalidOption, match="no memory of its own"):
        await job.run_blocking(work.pid, memory_bytes=100 * MIB)
    for bad in (process.MEMORY_BYTES_MIN - 1, "1G", 1e9):
        with pytest.raises(InvalidOption, match="memory_bytes"):
            await job.run_blocking(work.pid, process=True, memory_bytes=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="process"):
        await job.run_blocking(work.pid, process=1)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "frozen", True, raising=False)
        with pytest.raises(InvalidOption, match="no Python"):
            await job.run_blocking(work.pid, process=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InvalidOption, match="only Linux"):
        await job.run_blocking(work.pid, process=True, memory_bytes=100 * MIB)


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "result"),
    [
        (([1, 2.5, "ä", None, {"a": [True]}],), [1, 2.5, "ä", None, {"a": [True]}]),
        ((), []),
        ((1, "b"), [1, "b"]),
        ((b"\x00\xff" * 1000,), b"\x00\xff" * 1000),
        (("x" * 3 * MIB,), "x" * 3 * MIB),
    ],
    ids=["json", "none", "two", "bytes", "large"],
)
async def test_arguments_and_results_arrive_as_they_are(args: Any, result: Any) -> None:
    assert await make_job("k").run_blocking(work.echo, *args, process=True) == result


async def test_each_call_has_a_process_of_its_own_and_none_is_left() -> None:
    job = make_job("k")
    pids = [await job.run_blocking(work.pid, process=True) for _ in range(2)]
    assert len({*pids, os.getpid()}) == 3
    assert not any(lives(pid) for pid in pids)
    assert await job.run_blocking(work.Kind.double, 4, process=True) == 8
    assert await job.run_blocking(os.path.basename, "a/b", process=True) == "b"


async def test_what_it_prints_is_printed_and_spoils_no_answer(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert await make_job("k").run_blocking(work.shout, "hey", process=True) == "hey"
    said = capfd.readouterr()
    assert (said.out, said.err) == ("heyhey\n", "hey")


@pytest.mark.parametrize(
    ("fn", "args", "raised", "text"),
    [(work.fail, ("gone",), "LookupError", "gone"), (work.leave, (3,), "SystemExit", "3")],
)
async def test_what_it_raises_comes_back_as_text_with_its_traceback(
    fn: Callable[..., Any], args: Any, raised: str, text: str
) -> None:
    with pytest.raises(ProcessFailed) as failed:
        await make_job("k").run_blocking(fn, *args, process=True)
    error = failed.value
    assert (error.raised, error.problem) == (raised, text)
    assert error.function == f"tests.jobs.blocking_work.{fn.__name__}"
    [note] = error.__notes__
    assert "blocking_work.py" in note
    assert note.endswith(f"{raised}: {text}\n")


async def test_a_failed_attempt_keeps_the_traceback_of_the_process(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("fails", attempts_max=1)
    async def fails(job: Job) -> None:
        await job.run_blocking(work.fail, "gone", process=True)

    node = await fleet.node(handlers)
    ref = await node.dispatch(fails, "k")
    await fleet.until(lambda: not fleet.record("k"))
    letter = await node.parked.show("k", ref.job_id)
    assert "blocking_work.py" in letter.history[-1].traceback
    assert "LookupError: gone" in letter.history[-1].traceback


@pytest.mark.parametrize(
    ("fn", "args", "code", "name"),
    [
        (work.vanish, (5,), 5, ""),
        (work.vanish, (0,), 0, ""),
        (work.kill_itself, (signal.SIGSEGV,), -signal.SIGSEGV, "SIGSEGV"),
        (work.kill_itself, (signal.SIGKILL,), -signal.SIGKILL, "SIGKILL"),
    ],
)
async def test_a_process_that_ends_without_an_answer_says_how(
    fn: Callable[..., Any], args: Any, code: int, name: str
) -> None:
    with pytest.raises(ProcessDied) as died:
        await make_job("k").run_blocking(fn, *args, process=True)
    assert (died.value.exit_code, died.value.signal) == (code, name)


async def test_a_result_that_cannot_be_encoded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PayloadEncodingError, match=r"work.odd returned a key is int"):
        await make_job("k").run_blocking(work.odd, process=True)


@pytest.mark.skipif(not LINUX, reason="only Linux limits it")
async def test_a_process_has_no_more_memory_than_it_may() -> None:
    job = make_job("k")
    with pytest.raises(OutOfMemory) as full:
        await job.run_blocking(work.take, 400 * MIB, process=True, memory_bytes=300 * MIB)
    assert full.value.memory_bytes == 300 * MIB
    size = 100 * MIB
    assert await job.run_blocking(work.take, size, process=True, memory_bytes=300 * MIB) == size
    assert await job.run_blocking(work.take, 400 * MIB, process=True) == 400 * MIB


# --- how a process ends ---------------------------------------------------------------------------


async def _stop(ref: Any, fleet: Fleet) -> None:
    await ref.stop(timeout_s=20)


async def _leave(ref: Any, fleet: Fleet) -> None:
    await fleet.leave(fleet._members[0].node)


async def _wait(ref: Any, fleet: Fleet) -> None:
    """Its time limit ends it."""


@pytest.mark.parametrize(
    ("end", "timeout_s"),
    [(_stop, None), (_leave, None), (_wait, 2.0)],
    ids=["stop", "leave", "time"],
)
@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_process_is_killed_with_what_it_started_when_its_handler_is_told_to_end(
    fleet: Fleet,
    tmp_path: Path,
    end: Callable[[Any, Fleet], Coroutine[Any, Any, None]],
    timeout_s: float | None,
    is_plain: bool,
) -> None:
    handlers, path = Handlers(), tmp_path / "pids"
    call = partial(Job.run_blocking, process=True)

    @handlers.job("async", timeout_s=timeout_s, attempts_max=1)
    async def calls(job: Job) -> None:
        await job.run_blocking(work.sleep, str(path), True, True, process=True)

    @handlers.job("plain", timeout_s=timeout_s, attempts_max=1)
    def plain(job: Job) -> None:
        anyio.from_thread.run(call, job, work.sleep, str(path), True, True)

    node = await fleet.node(handlers, grace_s=0.1)
    ref = await node.dispatch("plain" if is_plain else "async", "k")
    pids = await noted(path)
    assert len(pids) == 3
    assert all(lives(pid) for pid in pids)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end, ref, fleet)
        await ended(pids)
    assert fleet.all_seen(HandlerLeaked) == []


async def test_what_a_function_left_behind_ends_with_its_process() -> None:
    await ended(await make_job("k").run_blocking(work.leave_behind, process=True))


async def test_who_is_woken_for_nothing_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by what is left of a socket that had the same number before."""
    waits = {name: getattr(anyio, name) for name in ("wait_readable", "wait_writable")}
    woken: list[str] = []

    def now_and_then(name: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
        async def wait(line: Any) -> None:
            woken.append(name)
            await (anyio.sleep(0.001) if woken.count(name) % 4 else waits[name](line))

        return wait

    for name in waits:
        monkeypatch.setattr(anyio, name, now_and_then(name))
    text = "x" * 5_000_000
    assert await make_job("k").run_blocking(work.echo, text, process=True) == text
    assert {*woken} == {*waits}


async def test_what_was_waited_for_is_let_go_before_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else trio tells whoever waits for the next socket of that number of its end."""
    were_open: list[bool] = []

    def let_it_go(line: socket.socket) -> None:
        were_open.append(line.fileno() >= 0)
        let_go(line)

    monkeypatch.setattr(process, "let_go", let_it_go)
    assert await make_job("k").run_blocking(work.echo, 1, process=True) == 1
    assert were_open == [True]

    mine, other = socket.socketpair()
    copy = mine.dup()  # as each start of a process makes one
    with anyio.move_on_after(0.01):
        await anyio.wait_readable(mine)
    number = mine.fileno()
    let_go(mine)
    mine.close()
    later, peer = socket.socketpair()
    assert later.fileno() == number
    with anyio.move_on_after(0.1) as patience:
        other.close()
        await anyio.wait_readable(later)
    assert patience.cancelled_caught
    for each in (copy, later, peer):
        each.close()


async def test_copies_of_a_copy_keep_what_is_theirs() -> None:
    """The line is closed in the first one: its number may be another file's in the next."""
    assert await make_job("k").run_blocking(work.copies_of_copies, process=True) == "theirs"


async def test_whoever_cancels_the_call_alone_goes_on_without_the_process(tmp_path: Path) -> None:
    job, path = make_job("k"), tmp_path / "pids"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(job.run_blocking, work.sleep, str(path), True, process=True))
        pids = await noted(path)
        tasks.cancel_scope.cancel()
    assert not lives(pids[0])  # reaped, not only killed
    await ended(pids)
    with anyio.move_on_after(0):
        await job.run_blocking(work.pid, process=True)
    assert await job.run_blocking(work.pid, process=True)


def member(pool: str, url: str, backend: str, how: str, path: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, str(MEMBER), pool, url, backend, how, str(path)]
    return subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("how", ["sleeps", "holds", "sleeps beside a copy"])
@pytest.mark.skipif(not LINUX, reason="a thread looks elsewhere, which C code may hold up")
async def test_a_process_ends_with_ours_whatever_it_does(
    anyio_backend_name: str, pool_name: str, pool_url: str, tmp_path: Path, how: str
) -> None:
    """Killed, with a copy of it around or not; and though it lets none of its own threads run."""
    path = tmp_path / "pids"
    ours = member(pool_name, pool_url, anyio_backend_name, how, path)
    copy: list[int] = []
    try:
        pids = await noted(path)
        copy = await noted(Path(f"{path}.copy")) if how.endswith("copy") else []
        assert all(lives(pid) for pid in (*pids, *copy))
    finally:
        ours.kill()
        ours.wait()
        try:
            await ended(pids)
            assert all(lives(pid) for pid in copy)
        finally:
            for pid in copy:
                os.kill(pid, signal.SIGKILL)


async def test_a_function_of_the_programs_own_file_can_be_called(
    anyio_backend_name: str, pool_name: str, pool_url: str, tmp_path: Path
) -> None:
    """What stands behind `if __name__ == "__main__"` is not run again."""
    path = tmp_path / "result"
    ours = member(pool_name, pool_url, anyio_backend_name, "main", path)
    assert await anyio.to_thread.run_sync(ours.wait) == 0
    assert path.read_text() == "42"


UNGUARDED = """
import anyio
from pool import Node
from pool.testing import make_job

def one():
    return 1

async def main():
    async with Node("none", "embedded://", observers=()):
        print("open", flush=True)
        print(await make_job("k").run_blocking(one, process=True))

anyio.run(main)
"""
TYPED_IN = """
import anyio
from pool.testing import make_job

def one():
    return 1

anyio.run(lambda: make_job("k").run_blocking(one, process=True))
"""


def test_a_program_that_would_run_itself_again_is_told_so(tmp_path: Path) -> None:
    """Its copy would take jobs, and start the next one."""
    path = tmp_path / "program.py"
    path.write_text(UNGUARDED)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, path], env=env, capture_output=True, text=True, check=False
    )
    assert found.stdout == "open\n"
    assert "ProcessFailed" in found.stderr
    assert 'have it below `if __name__ == "__main__":`' in found.stderr


def test_what_was_typed_in_cannot_be_imported_and_is_told_so() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", TYPED_IN]
    found = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert "InvalidOption" in found.stderr
    assert "is not imported" in found.stderr


def test_a_package_that_is_run_has_its_functions_elsewhere(tmp_path: Path) -> None:
    """As `multiprocessing` has it: its __main__ often runs all that it does, without asking."""
    package = tmp_path / "program"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(TYPED_IN)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    argv = [sys.executable, "-m", "program"]
    found = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert "InvalidOption" in found.stderr
    assert "a package's __main__" in found.stderr
