"""How much one call touches of what grows without a bound; the next call takes the next page.

Nobody holds a place in Redis while it turns pages: where it stands it knows itself, so a pager that
dies leaves nothing behind, and who comes next begins anew.  What a page says is true of that page
alone, at the moment of its call.

No script shall hold the server for over 5 ms, on a machine that spends 10 us on each of these.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Pages:
    """All sizes; the simulator makes them small, so that every page has a next one."""

    claims: int = 32  # identities of a lane that one node fences at once, and that it reaps at once
    moved: int = 64  # keys moved, restored or parked by one call
    listed: int = 256  # keys that a worker owns, and starts of its, by name
    compared: int = 128  # keys of which a worker asks what their records say
    messages: int = 256  # of an inbox; beside ...
    message_bytes: int = 256 * 1024  # ... so many bytes of them; one alone may be larger
    outcome_bytes: int = 256 * 1024  # ... of outcomes that one look tells; one alone may be larger
    letters: int = 256  # dead letters that one call looks at; beside ...
    letter_bytes: int = 1024 * 1024  # ... so many bytes of them; one alone may be larger
    carried: int = 64  # messages that one lane takes of another's at once; beside ...
    carried_bytes: int = 1024 * 1024  # ... so many bytes of them; one alone may be larger
    mustered: int = 256  # members of a batch that one call tells of
    looked_at: int = 500  # messages, or entries, among which one is looked for


PAGES = Pages()
