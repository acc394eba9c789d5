"""The pool's own Lua scripts, run in this process: Lua 5.1 as in the server, `redis.call` on ours.

Each script is compiled once for the life of the process; which keyspace a call works on is set
before it runs.  As in the server a script sees nothing but `redis`, `string`, `table`, `math` and
the plain functions, and numbers become whole when they leave it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from lupa import lua51

from tests.verify.sim.keyspace import WRITING, Keyspace, Status, grows
from tests.verify.sim.streams import CommandError

_FRAME = b"""
local call, pcall_of, sha1hex = ...
redis = { call = call, pcall = pcall_of, sha1hex = sha1hex }
function redis.error_reply(text) return { err = text } end
function redis.status_reply(text) return { ok = text } end
os, io, debug, package, require, dofile, loadfile, python = nil, nil, nil, nil, nil, nil, nil, nil
"""


OOM: Final = "OOM command not allowed when used memory > 'maxmemory'."


class Scripts:
    """One Lua interpreter with every script that was ever loaded into it."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=False)
        self._compiled: dict[bytes, Any] = {}
        self._shas: dict[bytes, bytes] = {}
        self._keyspace: Keyspace
        self._is_full = False  # memory is up, and the script has not written yet
        self._table = self._lua.table_from
        self._lua.execute(_FRAME, self._call, self._pcall, _sha1hex)

    def load(self, source: bytes) -> bytes:
        """Compile a script, unless it is known; return its name."""
        sha = self._shas.get(source)
        if sha is None:
            sha = hashlib.sha1(source).hexdigest().encode()
            self._compiled[sha] = self._lua.execute(
                b"return function(KEYS, ARGV) " + source + b"\nend"
            )
            self._shas[source] = sha
        return sha

    def run(
        self,
        keyspace: Keyspace,
        sha: bytes,
        keys: Sequence[bytes],
        args: Sequence[bytes],
        *,
        is_full: bool = False,
    ) -> Any:
        """Run a script; an error reply is raised as `CommandError`.

        As in the server memory is checked until the script's first write, and never again.
        """
        self._keyspace, self._is_full = keyspace, is_full
        table = self._table
        try:
            reply = self._compiled[sha](table(keys), table(args))
        except lua51.LuaError as error:
            raise CommandError(f"ERR {error}") from None
        finally:
            del self._keyspace  # we outlive its world
        return self._reply(reply)

    def _call(self, name: bytes, *args: Any) -> Any:
        if self._is_full:
            if grows(name, args):
                raise CommandError(OOM)
            self._is_full = name not in WRITING
        words = [arg if type(arg) is bytes else _text(arg) for arg in args]
        reply = self._keyspace.run(name, *words)
        if reply is None:
            return False  # as Lua sees a null
        if type(reply) is Status:
            return self._table({b"ok": bytes(reply)})
        return self._lists(reply) if type(reply) is list else reply

    def _pcall(self, name: bytes, *args: Any) -> Any:
        try:
            return self._call(name, *args)
        except CommandError as error:
            return self._table({b"err": str(error).encode()})

    def _lists(self, reply: list[Any]) -> Any:
        return self._table(
            [
                self._lists(each) if type(each) is list else False if each is None else each
                for each in reply
            ]
        )

    def _reply(self, reply: Any) -> Any:
        """Return what a client gets for a value of Lua."""
        if type(reply) is bytes:
            return reply
        if reply is None or reply is False:
            return None
        if reply is True:
            return 1
        if isinstance(reply, (int, float)):
            return int(reply)
        error = reply[b"err"]
        if error is not None:
            raise CommandError(error.decode())
        if reply[b"ok"] is not None:
            return reply[b"ok"]
        answer, at = [], 1
        while (each := reply[at]) is not None:
            answer.append(self._reply(each))
            at += 1
        return answer


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text).hexdigest().encode()


def _text(number: float) -> bytes:
    return b"%d" % number if number == int(number) else b"%.17g" % number
