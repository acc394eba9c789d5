"""The pool over HTTP, for an application of your own: `WebApp` is mounted, `pool web` serves it."""

from __future__ import annotations

try:
    from pool.ops.web.access import Authenticator, Caller, Keyring, Role
    from pool.ops.web.app import WebApp, WebOptions
except ModuleNotFoundError as _error:
    _said = f"{_error}; pip install 'keyed-pool[web]'"
    raise ModuleNotFoundError(_said, name=_error.name) from None

__all__ = ["Authenticator", "Caller", "Keyring", "Role", "WebApp", "WebOptions"]
