"""Lockfast measured against a floor and against other locks: `./dev bench`.

Contestants are measured in turn within one run and reported as ratios, because machines and their
load change from run to run. No figure decides whether a build passes.
"""
