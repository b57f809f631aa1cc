"""The pure core: names, modes, rows and all state transitions. No clock, no I/O."""
