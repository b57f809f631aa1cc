"""The PostgreSQL store: the lock table on plain tables, one transaction per step."""
