"""Templates, the words they use for numbers and times, and the routes of the pages."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from mainstem import __version__
from mainstem.admin.calls import Call, json_response
from mainstem.admin.console.offers import Offers
from mainstem.admin.console.pages import PAGES, Page, overview_facts
from mainstem.admin.problems import problem_of, status_of
from mainstem.admin.rights import admit
from mainstem.admin.running import Running
from mainstem.broker.rights.access import Principal
from mainstem.broker.rights.operations import NEEDS
from mainstem.model.errors import MainstemError, NotFound

FOLDER = Path(__file__).parent
NUMBERS = "/events/overview"  # the overview's, each second


def show_size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def show_number(value: float | None) -> str:
    """Whole, in groups of three with a narrow no-break space."""
    return "–" if value is None else f"{value:,.0f}".replace(",", "\u202f")


def show_duration(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, second = divmod(rest, 60)
    parts = [f"{days} d" if days else "", f"{hours} h" if hours else "", f"{minutes} min" if minutes else ""]
    return " ".join(part for part in parts if part) or f"{second} s"


def show_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def show_plain_time(ms: int) -> str:
    """Where no script makes it local."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def show_setting(value: Any, key: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == "":
        return "–"
    if value == -1 and key.endswith(("_ms", "_bytes")):
        return "unlimited"
    if key.endswith("_ms") and isinstance(value, int) and value > 0:
        return f"{value} ({show_duration(value / 1000)})"
    if key.endswith("_bytes") or key.endswith("bytes_max"):
        return f"{value} ({show_size(value)})" if isinstance(value, int) and value > 0 else str(value)
    return str(value)


def show_ticks(text: str) -> Markup:
    """`code` in a sentence, as Markdown has it."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(one) if at % 2 else escape(one) for at, one in enumerate(parts)
    )


def show_key(text: str) -> Markup:
    """A dotted name that may be broken at its parts, and nowhere else."""
    return Markup(re.sub(r"([._])", r"\1<wbr>", str(escape(text))))


def make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        size=show_size,
        number=show_number,
        duration=show_duration,
        when=show_time,
        plain_time=show_plain_time,
        setting=show_setting,
        ticks=show_ticks,
        key=show_key,
    )
    return environment


def _with(path: str, query: dict[str, str], name: str, value: str | None) -> str:
    return f"{path}?{urlencode({**query, name: value})}" if value else ""


def _login_name(request: Request) -> str:
    principal = request.scope["state"].get("principal")
    return "" if principal is None or getattr(principal, "anonymous", False) else str(principal.name)


class Console:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._environment = make_environment()
        self._compiling: asyncio.Future[None] | None = None

    async def templates(self) -> jinja2.Environment:
        """Compiled when the first page is asked for, in a thread: on the loop everybody would wait for 200 ms."""
        if self._compiling is None:
            self._compiling = asyncio.ensure_future(asyncio.to_thread(self._compile))
        await asyncio.shield(self._compiling)
        return self._environment

    def _compile(self) -> None:
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = [Mount("/static", StaticFiles(directory=FOLDER / "static"), name="self.read")]
        for page in PAGES:
            twin = "/overview.json" if page.path == "/" else f"{page.path}.json"
            routes.append(Route(page.path, self.show(page, twin), name=page.needs))
            routes.append(Route(twin, self.twin(page), name=page.needs))
        routes.append(Route(NUMBERS, self.events, name="overview.read"))
        return routes

    async def nothing_there(self, request: Request) -> Response:
        return await self._problem(NotFound(f"there is no page {request.url.path}", fix="choose one above"), request)

    def show(self, page: Page, twin: str) -> Any:
        async def answer(request: Request) -> Response:
            try:
                facts = await page.load(self._call(request, page))
            except MainstemError as error:
                return await self._problem(error, request)
            return HTMLResponse(await self._render(page, facts, request, twin))

        return answer

    def twin(self, page: Page) -> Any:
        async def answer(request: Request) -> Response:
            try:
                return json_response(await page.load(self._call(request, page)))
            except MainstemError as error:
                return problem_of(error)

        return answer

    async def events(self, request: Request) -> Response:
        """The overview's numbers, rendered, each second."""
        try:
            call = self._call(request, PAGES[0])
        except MainstemError as error:
            return problem_of(error)
        template = (await self.templates()).get_template("_numbers.html")

        async def numbers() -> AsyncIterator[str]:
            while True:
                await self._running.rates.next()
                html = template.render(**overview_facts(call))
                lines = "".join(f"data: {line}\n" for line in html.splitlines())
                yield f"event: numbers\n{lines}\n"
                await asyncio.sleep(0)

        return StreamingResponse(numbers(), media_type="text/event-stream")

    def _call(self, request: Request, page: Page) -> Call:
        call = self._unchecked_call(request, page)
        admit(self._running.broker, call.principal, call.need, call.query.get("namespace", ""))
        return call

    def _unchecked_call(self, request: Request, page: Page) -> Call:
        principal = request.scope["state"].get("principal") or Principal("anonymous")
        query, need = dict(request.query_params), NEEDS[page.needs]
        principal = self._running.broker.access.within(principal, query.get("namespace", ""))
        return Call(self._running, principal, query, {}, need)

    async def _render(self, page: Page, facts: dict[str, Any], request: Request, twin: str) -> str:
        templates, query = await self.templates(), dict(request.query_params)
        reader = self._unchecked_call(request, page)
        if not self._running.broker.access.has_namespace(reader.query.get("namespace", "")):
            reader.query.pop("namespace", None)  # the page says that it is not there, and leads somewhere else
        offers = Offers(reader)
        following = {**query, "from" if page.path == "/messages" else "after": facts.get("next")}
        context = {
            **facts,
            "title": facts.get("name") or page.title,
            "here": page.under or page.path,
            "pages": [(one.path, one.title) for one in PAGES if not one.under and offers.opens(one.path)],
            "refused": offers.refused,
            "opens": offers.opens,
            "reads": offers.reads,
            "follows": offers.follows,
            "sees_all": offers.sees_all,
            "who": _login_name(request),
            "by_session": self._running.sessions.cookie in request.cookies,
            "version": __version__,
            "twin": twin + (f"?{urlencode(query)}" if query else ""),
            "self_url": page.path + (f"?{urlencode(query)}" if query else ""),
            "next_url": f"{page.path}?{urlencode(following)}" if facts.get("next") else "",
            "previous_url": _with(page.path, query, "from", facts.get("previous")),
            "near": self._near(request),
            "now_text": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        return templates.get_template(page.template).render(context)

    def _near(self, request: Request) -> dict[str, str]:
        """HOST:PORT of each protocol that is listened to, as seen from the browser: hints name what is there."""
        host = request.url.hostname or "localhost"
        named = f"[{host}]" if ":" in host else host
        return {protocol: f"{named}:{port}" for protocol, port in self._running.ports.items() if port}

    async def _problem(self, error: MainstemError, request: Request) -> Response:
        facts = {"detail": str(error), "fix": error.fix, "code": error.code, "name": "That did not work"}
        page = Page(request.url.path, "Problem", "problem.html", PAGES[0].load, PAGES[0].needs)
        return HTMLResponse(await self._render(page, facts, request, "/overview.json"), status_of(error))
