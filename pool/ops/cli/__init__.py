"""The command line: `pool --help` names its verbs.

    words --parser--> a verb's module, its arguments --carry_out--> output, exit code

Exit codes: 0 all is well; 1 something was found (a broken promise, a pool in trouble); 2 the call
cannot work as written; 3 the store cannot be reached; 4 lanes are away, and a listing shows the
rest; 5 the pool is of a version with another protocol number.  What a user can cause is one line on
standard error, and never shows a password.  A traceback comes before it only where the user's own
module failed while it was imported, and holds that module's lines alone.

Help, version and completion import nothing but Python's own: all else is imported by who needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pool.ops.cli.codes import FINDING, INTERRUPTED, OK, PARTLY, PROTOCOL, UNREACHABLE, USAGE

__all__ = ["FINDING", "OK", "PARTLY", "PROTOCOL", "UNREACHABLE", "USAGE", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        return _main(argv)
    except KeyboardInterrupt:  # Ctrl-C, while Python reads our modules
        return INTERRUPTED


def _main(argv: Sequence[str] | None) -> int:
    if argv is None and os.getpid() == 1:
        from pool.ops.cli.init import become_init

        become_init()
    from pool.ops.cli.parser import make  # after that: a signal is lost until PID 1 takes it

    words = sys.argv[1:] if argv is None else list(argv)
    try:
        # The options of these are the settings, which take long to import.
        args = make(is_whole=not {"run", "check"}.isdisjoint(words)).parse_args(words)
    except SystemExit as done:  # argparse has said everything
        return int(done.code or 0)
    args.words = words  # for a parent, whose children get them
    from pool.ops.cli.carrying import carry_out

    code = carry_out(args)
    if argv is None and (late_end := getattr(args, "late_end", None)) is not None:
        late_end.begin()
    return code
