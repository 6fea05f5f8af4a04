"""Fakes that can be trusted, and judges that can fail.

`SimDisk` and `SimClock` stand in for what a broker cannot control. `simulator` runs a whole broker on them from one
seed, with clients (`traffic`) and faults, while a witness compares every restart with what was applied before.
`lockstep` and `flock` are brokers in one process in which nothing happens by itself: for tests that say what comes
next. `history` is what clients were told, in plain values; `checkers` judge it through a plain model of a queue, and
judge the histories of real, killed processes (`process`, `workload`) the same way. `planted` holds bugs on purpose: a
checker that does not catch them is a defect. All of it is shipped, so that others can test against it, and tested
itself.

`python -m lanner.testing.simulate` runs seeds by the thousand; a failing seed is a bug report.
"""
