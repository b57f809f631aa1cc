"""Lockfast measured against a floor and against other locks: `./dev bench`.

Everything is interleaved in one run and stated as a ratio, because the machine
and its mood change from run to run. A figure never decides whether a build passes.
"""
