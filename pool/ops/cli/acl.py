"""`pool acl`: the access rules for a user who may work on one pool and nothing else."""

from __future__ import annotations

import argparse
import json

from pool.ops.terminal import write
from pool.redis.acl import rules


def run(args: argparse.Namespace) -> int:
    """Carry out `pool acl`: one line, as ACL SETUSER takes it after a user's name."""
    words = rules(args.name, db=args.db, is_operator=args.operator)
    told = {"v": 1, "ok": True, "pool": args.name, "rules": words}
    write([json.dumps(told) if args.json else " ".join(words)])
    return 0
