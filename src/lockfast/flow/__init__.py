"""What a client does, as `async def` against the ports, written once for every runtime."""
