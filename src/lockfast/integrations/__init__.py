"""Locks where people use them: Starlette and FastAPI, Flask, Django, Celery.

Each module needs its framework and nothing else of this package; each uses the public API
only. Frameworks that need no code of ours (SQLAlchemy, Alembic, APScheduler, RQ …) have a page in
`docs/frameworks/`.
"""
