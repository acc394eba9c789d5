"""Bugs planted in how connections follow the primary, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_PRIMARY: Final = "tests/redis/test_primary.py::"
_PIPELINE: Final = "tests/redis/test_pipeline.py::"
_QUORUM: Final = "tests/redis/test_quorum.py::"
_TOPOLOGY: Final = "pool/redis/topology.py"

PRIMARY_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "the first sentinel is believed",
        "breaks": "one sentinel that lies, or is the first to hear of a failover, moves everybody",
        "path": _TOPOLOGY,
        "old": "        return len(self._url.hosts) // 2 + 1",
        "new": "        return 1",
        "by": (
            _PRIMARY + "test_the_word_of_the_majority_is_followed_and_that_of_one_is_not",
            _PRIMARY + "test_the_word_of_the_last_sentinel_moves_nobody_who_is_well",
        ),
    },
    {
        "name": "one connection of all is moved",
        "breaks": "leases are renewed, and streams read, at the primary that was replaced",
        "path": _TOPOLOGY,
        "old": "            for member in members if owner is not None else ():",
        "new": "            for member in members[:1] if owner is not None else ():",
        "by": (_PRIMARY + "test_a_primary_that_the_quorum_replaced_is_left_by_all_connections",),
    },
    {
        "name": "a primary without replicas is no reason to ask",
        "breaks": "one that was cut off is asked again and again until the next look is due",
        "path": "pool/redis/errors.py",
        "old": '_DOUBTFUL = (*_STALE, "NOREPLICAS", ',
        "new": "_DOUBTFUL = (*_STALE, ",
        "by": (_PRIMARY + "test_a_primary_that_lacks_replicas_is_a_reason_to_ask",),
    },
    {
        "name": "a primary without replicas is asked about without end",
        "breaks": "each process asks each sentinel ten times a second for as long as that lasts",
        "path": _TOPOLOGY,
        "old": "        if now_s >= self._hurry_again_s:",
        "new": "        if True:",
        "by": (
            _PRIMARY
            + "test_a_primary_that_goes_on_lacking_replicas_is_not_asked_about_without_end",
        ),
    },
    {
        "name": "a cluster that is down is no reason to ask",
        "breaks": "a node that was cut off is asked again and again until the next look is due",
        "path": "pool/redis/errors.py",
        "old": '"CLUSTERDOWN", "MASTERDOWN")\n\n',
        "new": '"MASTERDOWN")\n\n',
        "by": (_PRIMARY + "test_nodes_that_nobody_asks_in_vain_say_at_once_that_they_are_cut_off",),
    },
    {
        "name": "a lower epoch is accepted",
        "breaks": "a late answer leads back to the primary that was replaced",
        "path": "pool/redis/quorum.py",
        "old": "    if before is None or named.epoch > before.epoch:",
        "new": "    if True:",
        "by": (
            _PRIMARY + "test_a_lower_epoch_is_followed_only_if_it_stays",
            _QUORUM + "test_an_epoch_that_is_not_higher_is_believed_only_after_a_while",
        ),
    },
    {
        "name": "one guide raises the epoch",
        "breaks": "after one false word no failover is believed any more",
        "path": "pool/redis/quorum.py",
        "old": "sorted(each, reverse=True)[needed - 1]",
        "new": "max(each)",
        "by": (_QUORUM + "test_a_majority_of_the_sentinels_names_the_primary",),
    },
    {
        "name": "a promotion is not waited for",
        "breaks": "a planned failover loses a second of acknowledged work",
        "path": _TOPOLOGY,
        "old": "                    member.pause()",
        "new": "                    pass",
        "by": (
            _PRIMARY + "test_a_planned_failover_loses_what_the_replica_lacks_at_its_promotion",
            _PRIMARY + "test_a_promotion_is_waited_for",
        ),
    },
    {
        "name": "a promotion is waited for again and again",
        "breaks": "one sentinel that cries wolf stops a pool for good",
        "path": _TOPOLOGY,
        "old": "elif event == _PROMOTES and now_s >= self._hold_again_s:",
        "new": "elif event == _PROMOTES:",
        "by": (_PRIMARY + "test_a_promotion_that_comes_to_nothing_holds_nobody_for_long",),
    },
    {
        "name": "sentinels are heard and not asked",
        "breaks": "a failover whose message was lost is never followed",
        "path": _TOPOLOGY,
        "old": "HURRY_S if now_s < self._hurry_s else LOOK_S)",
        "new": "HURRY_S if now_s < self._hurry_s else 1e6)",
        "by": (_PRIMARY + "test_a_primary_that_changes_again_and_again_is_followed",),
    },
    {
        "name": "a child asks through its parent",
        "breaks": "a node that a forked child opens has a watch without a thread",
        "path": "pool/redis/io/system.py",
        "old": "    topology.forget_all()\n",
        "new": "",
        "by": (_PRIMARY + "test_a_child_of_a_fork_asks_by_itself",),
    },
    {
        "name": "an unknown endpoint is a name",
        "breaks": "behind NAT a node of a cluster is looked for under the name `?`",
        "path": _TOPOLOGY,
        "old": '    if name in ("", "?"):\n',
        "new": '    if name in ("",):\n',
        "by": (_QUORUM + "test_an_unknown_endpoint_is_the_host_that_was_asked",),
    },
    {
        "name": "a call that was refused is not sent again",
        "breaks": "a message or a request fails at once while the server loads its data",
        "path": "pool/redis/pipeline.py",
        "old": "is_final = error.maybe_done and not is_repeatable",
        "new": "is_final = not is_repeatable",
        "by": (_PIPELINE + "test_a_call_that_a_busy_server_refused_is_sent_again_within_its_time",),
    },
)
