"""What `lanner broker repair` shows."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from lanner.cli.screen import Screen

if TYPE_CHECKING:
    from lanner.repair import Repair


def run(screen: Screen, data: str, accept_loss: bool) -> None:
    screen.need("server", "lanner broker repair")
    from lanner.repair import repair

    done = screen.guard(lambda: repair(data, accept_loss=accept_loss))
    screen.say("\n".join(_lines(done)), _plain(done))


def _next(done: Repair) -> str:
    return f"lanner up --data {shlex.quote(done.data)}"


def _lines(done: Repair) -> list[str]:
    from lanner.repair import losses_text

    lines = [f"Found: {done.damage}."]
    if done.action == "set aside":
        lines.append(f"Journal and table are set aside in {done.data}/{done.aside}; nothing was deleted.")
        if done.sole_copies:
            lines.append(
                f"No other broker has a copy of {', '.join(done.sole_copies)}: they are gone from the cluster."
            )
        lines.append(
            f"Started again, broker {done.name} joins the cluster anew, at {', '.join(done.peers)}, and "
            "its replicas are rebuilt from the others."
        )
        lines.append(f"Next: {_next(done)}, with the other settings as before. When all is well, the folder can go.")
    else:
        lines.append(
            f"The journal was cut at {done.position}: {done.cut_bytes} bytes, kept in {done.data}/{done.aside}."
        )
        lines.append(f"Lost: {losses_text(done)}.")
        lines.append(f"Next: {_next(done)}, with the other settings as before.")
    return lines


def _plain(done: Repair) -> dict[str, Any]:
    from lanner.repair import losses_plain

    told: dict[str, Any] = {"data": done.data, "broker": done.name, "damage": done.damage, "action": done.action}
    told["aside"] = f"{done.data}/{done.aside}"
    if done.action == "set aside":
        told |= {"peers": done.peers, "sole_copies": done.sole_copies}
    else:
        told |= losses_plain(done)
    return {**told, "next": _next(done)}
