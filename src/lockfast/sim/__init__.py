"""The simulator's side: what is promised, and what checks it."""
