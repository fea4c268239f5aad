"""Logging a browser in without a look at the login page."""

from __future__ import annotations

from playwright.sync_api import BrowserContext


def log_in(context: BrowserContext, user: str, password: str) -> None:
    """The context's pages have the session from now on."""
    answer = context.request.post("/login", data={"user": user, "password": password})
    assert answer.ok, answer.text()
