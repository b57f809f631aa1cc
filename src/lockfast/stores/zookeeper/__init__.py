"""Locks in ZooKeeper, for those who already run an ensemble."""
