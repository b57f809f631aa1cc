"""Locks in Flask: refusals, losses, settings."""

from __future__ import annotations

import threading

import pytest
from flask import Flask, g

import lockfast
from lockfast.integrations.flask import Lockfast


def site(url: str) -> tuple[Flask, Lockfast]:
    app = Flask(__name__)
    app.config["LOCKFAST_URL"] = url
    return app, Lockfast(app)


def test_a_held_lock_is_a_409_with_retry_after() -> None:
    app, locks = site("memory://flask-busy")
    running, finish = threading.Event(), threading.Event()

    @app.post("/orders/<order_id>")
    @locks.locked("order:{order_id}", retry_after=7)
    def order(order_id: str) -> str:
        running.set()
        assert finish.wait(30)
        return f"{g.lease.name} {g.lease.token}"

    replies = []
    first = threading.Thread(
        target=lambda: replies.append(app.test_client().post("/orders/42").get_data(as_text=True))
    )
    first.start()
    assert running.wait(30)
    refused = app.test_client().post("/orders/42")
    assert refused.status_code == 409
    assert refused.headers["Retry-After"] == "7"
    assert refused.get_data(as_text=True) == "'order:42' is in use; try again later\n"
    finish.set()
    first.join(30)
    assert replies[0].startswith("order:42 ")
    assert app.test_client().post("/orders/42").status_code == 200


def test_a_lost_lease_replaces_the_response() -> None:
    app, locks = site("memory://flask-lost")

    @app.get("/<name>")
    @locks.locked("{name}")
    def view(name: str) -> str:
        locks.client.revoke(name, reason="test")
        return "done"

    refused = app.test_client().get("/a")
    assert refused.status_code == 503
    assert refused.get_data(as_text=True) == "'a' was lost\n"


def test_an_unreachable_store_is_a_503() -> None:
    app, locks = site("redis://127.0.0.1:1")

    @app.get("/")
    @locks.locked("a")
    def view() -> str:
        return "never"

    assert app.test_client().get("/").status_code == 503


def test_a_field_that_the_route_lacks_is_named() -> None:
    app, locks = site("memory://")
    app.testing = True

    @app.get("/")
    @locks.locked("order:{order_id}")
    def view() -> str:
        return "never"

    with pytest.raises(RuntimeError, match=r"\{order_id\} in 'order:\{order_id\}'"):
        app.test_client().get("/")


def test_two_applications_have_a_client_each() -> None:
    locks = Lockfast()
    clients = []
    for name in ("one", "two"):
        app = Flask(name)
        app.config["LOCKFAST_URL"] = f"memory://flask-{name}"
        locks.init_app(app)
        with app.app_context():
            clients.append(locks.client)
            assert locks.client is clients[-1]
    assert clients[0] is not clients[1]
    assert all(isinstance(client, lockfast.Client) for client in clients)
