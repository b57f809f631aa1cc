"""A FastAPI service in which two requests never change one order at a time.

Run it: LOCKFAST_URL=redis://localhost uvicorn examples.stories.fastapi_service:app --loop uvloop
"""

from typing import Annotated

from fastapi import Depends, FastAPI

from lockfast.aio import Lease
from lockfast.integrations.starlette import Locked, lifespan

app = FastAPI(lifespan=lifespan(ttl=10))
OrderLease = Annotated[Lease, Depends(Locked("order:{order_id}", timeout=20), scope="function")]
stock = {"apples": 1000}
"""Read and written with an await in between: only the lock makes that safe."""


@app.post("/orders/{order_id}")
async def order(order_id: str, lease: OrderLease) -> dict[str, int]:
    left = stock["apples"]
    await pause()
    stock["apples"] = left - 1
    return {"left": left - 1, "token": lease.token}


async def pause() -> None:
    """Let every other request run."""
    import asyncio

    await asyncio.sleep(0)
