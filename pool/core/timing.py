"""All times that follow from the lease TTL, of which a pool has one.

    asked                                                     soft              hard   server's end
      |--renew--|--renew--|--renew--|-- renewal deadline --|    |-- stop budget --|--margin--|
      0        P         2P        3P                           ttl - margin - budget        ttl

Three renewals may fail before handlers are stopped; true for every TTL by derivation.

The TTL of a pool may change while nodes run, so none of these is kept: whoever needs one asks the
node's (`Session.timing`) at that moment, or is handed it.
"""

from __future__ import annotations

from typing import Final

import attrs

TTL_DEFAULT_S: Final = 10.0  # of a pool whose first node named none
RENEW_MAX_S: Final = 10.0  # what is renewed besides the lease is not older than this


@attrs.frozen
class Timing:
    """The times of a node that goes by this TTL."""

    ttl_s: float = TTL_DEFAULT_S
    # How long handlers have to end when a lease cannot be renewed.  Kept, as the next one is: each
    # start asks for both.
    stop_budget_s: float = attrs.field(init=False)
    # By how much we stop before the server would count our lease as ended.
    margin_s: float = attrs.field(init=False)

    @stop_budget_s.default
    def _stop_budget_s(self) -> float:
        return self.ttl_s / 4

    @margin_s.default
    def _margin_s(self) -> float:
        return max(0.05, 0.035 * self.ttl_s)

    @staticmethod
    def is_ttl(ttl_ms: int) -> bool:
        """Say whether a pool can go by this."""
        return 1000 <= ttl_ms <= 3_600_000

    @property
    def ttl_ms(self) -> int:
        return round(self.ttl_s * 1000)

    @property
    def renew_s(self) -> float:
        """How often leases are renewed."""
        return min(self.ttl_s / 5, RENEW_MAX_S)

    @property
    def renew_timeout_s(self) -> float:
        """When one renewal counts as failed."""
        return self.renew_s / 2

    @property
    def block_s(self) -> float:
        """How long one blocking read waits."""
        return self.ttl_s / 4

    @property
    def socket_timeout_s(self) -> float:
        """How long any one wait on a socket may take."""
        return self.ttl_s / 2

    @property
    def pending_timeout_s(self) -> float:
        """By when a granted job must have been acknowledged."""
        return self.ttl_s

    @property
    def reap_s(self) -> float:
        """How long a reaper may be silent before another one takes over."""
        return max(0.5, self.ttl_s / 4)
