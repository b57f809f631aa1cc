"""The pure part: names, modes, rows and all transitions. No clock, no I/O."""
