"""The runtimes that drive the flow code: threads, asyncio, and the simulator's in sim/."""
