"""What guards a run of several processes, behind one object: the session (:mod:`.session`).

A rank dies. Its heartbeats stop, and its connections break. Rank 0, or the others if it is rank 0, finds that after a
few seconds, or after ``training.silence_seconds`` if no connection broke (``failure_detection.find_dead``). It shares a
verdict that names the rank. The monitor of every rank reads it, dumps the stacks, and ends its process with status 1
(``HeartbeatMonitor._end``). An error that only one rank raises ends the others in the same way.

A rank hangs. A separate thread still sends heartbeats, but they show no progress. After ``training.hang_seconds`` in
an update, or ``training.wait_seconds`` in another phase, ``failure_detection.find_hung`` names it, and the run ends in
the same way.

A rank gets SIGTERM. ``stop_signals.StopRequest`` records it. After the update, ``Session.combine_flags`` tells all
ranks, which write a checkpoint and end with status 143. A second signal, or the end of ``checkpoint.stop_seconds``,
ends a process at once. A rank whose launcher was killed asks itself to stop (``stop_if_launcher_dies``).

Two nodes use different folders, configurations or corpora. The plan of a run refuses that before training starts
(``training.plan.decide``). :mod:`.rank_log` keeps what a rank did, and how the run ended.
"""
