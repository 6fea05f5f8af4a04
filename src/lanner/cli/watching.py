"""Watching a plan of moves until it is done: a bar for people who look, lines for logs, nothing for programs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import typer

from lanner.cli.screen import Screen
from lanner.errors import ConflictError, DeadlineExceeded

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.cluster import BrokerState, ClusterDescription, PlanProgress

POLL_SECONDS: Final = 0.5


async def watch_plan(screen: Screen, queue: Queue, plan: PlanProgress, what: str) -> PlanProgress:
    """Return once the plan has ended well; raise, with the next step, when it has not."""
    with Bar(screen, what) as bar:
        while plan.state == "running":
            bar.show(plan)
            await asyncio.sleep(POLL_SECONDS)
            found = await queue.admin.describe_cluster()
            # Only ended plans are ever forgotten.
            plan = next((one for one in found.plans if one.plan_id == plan.plan_id), _ended(plan))
        bar.show(plan)
    if plan.state != "done":
        failed = f", {plan.moves_failed} moves failed and were taken back" if plan.moves_failed else ""
        reason = f": {plan.reason}" if plan.reason else ""
        raise ConflictError(
            f"{what} is {plan.state} (plan {plan.plan_id}{failed}){reason}. See `lanner cluster`; say the same again "
            "to take up what is left",
            plan_id=plan.plan_id,
        )
    return plan


def _ended(plan: PlanProgress) -> PlanProgress:
    from msgspec.structs import replace

    return replace(plan, state="done", steps_done=plan.steps_total, moves_done=plan.moves_total)


async def watch_until(look: Callable[[], Awaitable[bool]], seconds: float, late: str) -> None:
    """Look again and again; past the time say what is the matter."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await look():
        if asyncio.get_running_loop().time() > deadline:
            raise DeadlineExceeded(late)
        await asyncio.sleep(POLL_SECONDS / 2)


class Bar:
    """How far a plan is."""

    def __init__(self, screen: Screen, what: str) -> None:
        self._as_json = screen.as_json
        self._what = what
        self._last: tuple[int, int] | None = None
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        if not self._as_json and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("steps, {task.fields[moves]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._progress.start()
            self._task = self._progress.add_task(self._what, total=None, moves="")
        return self

    def show(self, plan: PlanProgress) -> None:
        moves = f"{plan.moves_done} of {plan.moves_total} moves done, {plan.moves_running} under way"
        if self._progress is not None:
            total = max(plan.steps_total, 1)
            done = total if plan.state == "done" else plan.steps_done
            self._progress.update(self._task, total=total, completed=done, moves=moves)
        elif not self._as_json and self._last != (plan.steps_done, plan.moves_done):
            self._last = plan.steps_done, plan.moves_done
            typer.echo(f"{self._what}: {plan.steps_done} of {plan.steps_total} steps, {moves}", err=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        if kind in (KeyboardInterrupt, asyncio.CancelledError) and not self._as_json:
            typer.echo("It goes on without you; see how far with: lanner cluster", err=True)


def broker_of(found: ClusterDescription, name: str) -> BrokerState | None:
    """By name or node id; a name that came back on a new disk means that one."""
    matching = [broker for broker in found.brokers if name in (broker.name, broker.node_id)]
    return next((broker for broker in matching if broker.state != "lost"), matching[0] if matching else None)


def names_of(found: ClusterDescription) -> dict[str, str]:
    return {broker.node_id: broker.name for broker in found.brokers}
