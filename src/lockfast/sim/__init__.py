"""The simulator: what is promised, the worlds in which it is tested, and the checkers."""
