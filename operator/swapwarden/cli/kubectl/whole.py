"""Commands that look at a cluster as a whole: it is asked for all objects while the code that judges them is imported.

That code has the models of profiles and the planning with it, which take longer to import than a request takes.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable
from typing import Any, Final

from swapwarden.cli.kubectl.cluster import session
from swapwarden.cli.kubectl.output import tables

EVERYTHING: Final = (session.NODES, session.PODS, session.NAMESPACES, session.PROFILES, session.STATES)


async def run(
    asked: session.Session,
    ahead: Iterable[str],
    module: str,
    target: session.Target,
    form: tables.Form,
    **wanted: Any,
) -> Any:
    """Have a module of this package do what is wanted, by its function `run`; what that gives.

    `ahead` are the collections that it will read.
    """
    asked.ahead(*ahead)
    doing = await asyncio.to_thread(importlib.import_module, f"{__package__}.{module}")
    return await doing.run(asked, target, form, **wanted)


async def offline(module: str, target: session.Target, form: tables.Form, **wanted: Any) -> Any:
    """The same without a cluster."""
    return await importlib.import_module(f"{__package__}.{module}").run(None, target, form, **wanted)
