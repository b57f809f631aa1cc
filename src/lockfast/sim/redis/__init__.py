"""A model of a Redis server that runs the store's real Lua scripts, for the simulator."""
