"""A model of an etcd cluster behind its JSON gateway, for the simulator."""
