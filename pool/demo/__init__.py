"""`pool demo`: the main job on real input, with a verdict that does not take the pool's word.

conductor  demo.py     starts the server and the member processes, and plays the story
member     member.py   one node in a process of its own
work       handlers.py what the nodes do: zones to compute (zones.py), world clocks
witness    ledger.py   a file outside Redis that handlers and conductor append to
check      tzif.py     the zones once more, from their bytes and by other means
verdict    verdict.py   pure: ledger + stored results -> figures
show       conductor.py what people see meanwhile
"""
