"""Locks for web frameworks and task queues: Starlette and FastAPI, Flask, Django, Celery.

Each module needs only its framework, and uses only the public API. Frameworks that need no code of
ours (SQLAlchemy, Alembic, APScheduler, RQ …) have a page in `docs/frameworks/`.
"""
