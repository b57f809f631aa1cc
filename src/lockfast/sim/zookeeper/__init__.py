"""A model of ZooKeeper for the simulator."""
