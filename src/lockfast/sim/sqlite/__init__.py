"""The embedded store in the simulator: SQLite on a disk that loses what was not synced."""
