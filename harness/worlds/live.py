"""The live world: an OpenAI-compatible server by URL. Faults on real cards come later, and are refused here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
import psutil

from harness.drill import Drill
from harness.errors import UsageError
from harness.recorder import Recorder
from harness.store import Run
from harness.worlds.stage import Stage

REACH_WITHIN_S = 5.0


class LiveWorld:
    """Sends the load and judges what clients saw; touches nothing else of the server."""

    name = "live"

    def refuse(self, drill: Drill) -> None:
        if drill.target.url is None:
            raise UsageError(
                "world live needs a server: --target http://HOST:PORT, or target.url in the drill"
            )
        if drill.timeline:
            kinds = ", ".join(step.fault.kind for step in drill.timeline)
            raise UsageError(
                f"world live can't inject {kinds} yet: they act on the simulated node; "
                "use a drill without a timeline, such as scenarios/burst-is-served-steadily.yaml"
            )
        served_models(drill.target.url)

    @contextmanager
    def stage(self, drill: Drill, run: Run, recorder: Recorder, check: Callable[[], None]) -> Iterator[Stage]:
        assert drill.target.url is not None
        model = drill.target.model or served_models(drill.target.url)[0]
        before = set(run.folder.iterdir())
        try:
            yield Stage(base_url(drill.target.url), None, model=model)
        finally:
            left = sorted(path.name for path in set(run.folder.iterdir()) - before)
            children = [str(child.pid) for child in psutil.Process().children(recursive=True)]
            recorder.note("leftover", processes=children, files=left)


def base_url(url: str) -> str:
    """Without what clients often write behind it: a slash, or `/v1`."""
    return url.rstrip("/").removesuffix("/v1")


def key_header() -> dict[str, str]:
    """What a server that wants a key is sent; the key stays in the environment."""
    key = os.environ.get("BROWNOUT_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def served_models(url: str) -> list[str]:
    """Names of the models that a server lists; UsageError if it can't be reached or lists none."""
    try:
        answer = httpx2.get(f"{base_url(url)}/v1/models", headers=key_header(), timeout=REACH_WITHIN_S)
        if answer.status_code in (401, 403):
            raise UsageError(f"target.url: {url} wants a key ({answer.status_code}): set BROWNOUT_API_KEY")
        if answer.is_error:
            raise UsageError(
                f"target.url: {url} answers {answer.status_code} to /v1/models; is it an OpenAI-compatible server?"
            )
        names = [str(model["id"]) for model in answer.json()["data"]]
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise UsageError(f"target.url: {url} is no http:// or https:// address: {error}") from error
    except httpx2.HTTPError as error:
        raise UsageError(f"target.url: {url} can't be reached: {error}; is the server up?") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"target.url: {url}/v1/models does not answer as an OpenAI server does") from error
    if not names:
        raise UsageError(f"target.url: {url} serves no model")
    return names
