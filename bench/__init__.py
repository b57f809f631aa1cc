"""Lockfast measured against a floor and against other locks: `./dev bench`.

Contestants are measured in turn within one run and stated as ratios, because machines and
their load change from run to run. A figure never decides whether a build passes.
"""
