"""`POST /runs/ID/rewards`: what a person says of a run, and takes back."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from arttrace.rewards.combine import trajectory_reward
from arttrace.views.web.addresses import escaped
from arttrace.views.web.forms import read_form
from arttrace.views.web.handlers.request_fields import reader_of
from arttrace.views.web.models.annotation import MAX_NOTE, given, last_said, taken_back
from arttrace.views.web.models.run_page import agent_rows, note_rows, reward_rows
from arttrace.views.web.rendering import page
from arttrace.views.web.store_reader import StoreReader

_MAX_BYTES = 16 * MAX_NOTE


async def give(request: Request) -> Response:
    """Stores a reward or a note; answers with the rewards as they are then, or, where the browser itself sent the form
    (the scripts were not loaded yet, or are off), with the run's page."""
    try:
        form = await read_form(request, _MAX_BYTES)
    except ValueError as error:
        raise HTTPException(413, f"It was not stored: {error}.") from error
    whole_page = "text/html" in request.headers.get("accept", "")
    return await run_in_threadpool(_stored, reader_of(request), request.path_params["id"], form, whole_page)


def _stored(reader: StoreReader, id: str, form: Mapping[str, str], whole_page: bool) -> Response:
    run = reader.trajectory(id)
    error, said = "", ""
    try:
        back = form.get("back", "")
        if back == "last":
            last = last_said(run)
            back = last.id if last else ""
        reader.store.append([taken_back(run, back) if "back" in form else given(run, form)])
        said = "Taken back." if "back" in form else "Stored."
    except ValueError as refused:
        error = str(refused)
    reader.changed()
    if whole_page and error:
        raise HTTPException(422, f"It was not stored: {error}.")
    if whole_page:
        return RedirectResponse(f"/runs/{escaped(id)}", 303)
    run = reader.trajectory(id)
    return page(
        "_rewards.html",
        id=id,
        agents=agent_rows(run),
        rewards=reward_rows(run),
        notes=note_rows(run),
        reward=trajectory_reward(run),
        error=error,
        said=said,
    )
