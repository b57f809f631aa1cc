"""The runtimes that execute the flow code: threads and asyncio. The simulator has its own."""
