"""The commands of `stead`.

Rule: a command parses all its arguments before it connects, so that a typo costs no time; then it asks a desk and
prints. A command that asks a desk works on Ray and on a service (`--address http://...`). Heavy modules are imported
when a command runs, so that `stead --help` is fast.
"""
