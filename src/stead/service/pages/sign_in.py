"""Signing in: a token becomes a session, by a cookie that scripts cannot read and other sites cannot send.

Rule: the token is in no URL and in no log. After signing in you return only to a page of this service. Signing out ends
the session in the service, not only in the browser.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.requests import Request

from stead.service.guard import cookies_in
from stead.service.keys import Keys, forgotten_cookie
from stead.service.pages.frame import Frame, first, go_to, read_form, visitor_of

WHERE = "the operator's token is in the file ~/.stead/token where the service runs"
WRONG = f"This token is unknown; {WHERE}."
NONE = f"Enter a token; {WHERE}."


def add_sign_in(pages: APIRouter, frame: Frame, keys: Keys) -> None:
    @pages.get("/")
    def root() -> RedirectResponse:
        return go_to("/ui/")

    def form(request: Request, back: str, sentence: str = "", status: int = 200) -> HTMLResponse:
        text = frame.text(
            "sign_in.html", visitor=visitor_of(request), summary=None, section="", back=back, sentence=sentence
        )
        return HTMLResponse(text, status)

    def sign_out_of(request: Request) -> None:
        for session in cookies_in("; ".join(request.headers.getlist("cookie"))):
            keys.sign_out(session)

    @pages.get("/login")
    def ask(request: Request, next: str = "/ui/") -> HTMLResponse:
        return form(request, local(next))

    @pages.post("/login")
    def sign_in(request: Request, fields: Annotated[list[tuple[str, str]], Depends(read_form)]) -> Response:
        given = first(fields)
        token, back = given.get("token", "").strip(), local(given.get("next", ""))
        cookie = keys.cookie(token, request.url.scheme == "https")
        if cookie is None:
            return form(request, back, WRONG if token else NONE, 401)
        sign_out_of(request)  # the new session replaces an old one
        answer = go_to(back)
        answer.headers["set-cookie"] = cookie
        return answer

    @pages.post("/logout")
    def sign_out(request: Request) -> Response:
        sign_out_of(request)
        answer = go_to("/ui/")
        answer.headers["set-cookie"] = forgotten_cookie()
        return answer


def local(address: str) -> str:
    """A page of this service; any other address becomes the first page."""
    good = address.startswith("/ui/") and address.isprintable() and "\\" not in address and len(address) < 4000
    return address if good else "/ui/"
