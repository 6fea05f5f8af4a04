"""The commands of docs/groups.md do what it shows, one with & at its end goes on in the background; and those of
docs/operations.md about members and clients."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import lanner
from lanner.testing.process import BrokerProcess

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "groups.md").read_text(encoding="utf-8")
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")
COMMANDS = [
    found
    for block in re.findall(r"^```console\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    for found in re.findall(r"^\$ lanner (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE)
]
LANNER = [sys.executable, "-m", "lanner.cli"]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        monkeypatch.setenv("LANNER_SERVERS", process.native)
        yield process


def run(words: str) -> str:
    done = subprocess.run([*LANNER, *words.split()], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip(" ─"))


def matches(answer: str, shown: str) -> bool:
    """… stands for anything; so do the letters before one, which are of a member's id."""
    parts = [".*?".join(map(re.escape, part.split("…"))) for part in re.split(r"\b[0-9a-f]{8}…", squeezed(shown))]
    return re.fullmatch(r"[0-9a-f]{8}…".join(parts), squeezed(answer)) is not None


def until_settled(group: str) -> None:
    ends = time.monotonic() + 60
    look = [*LANNER, "group", "members", group]
    while "settled" not in subprocess.run(look, capture_output=True, text=True).stdout:
        assert time.monotonic() < ends, f"nobody joined {group}"


def test_the_commands_do_what_is_shown(broker: BrokerProcess, tmp_path: Path) -> None:
    assert len(COMMANDS) == 6
    with ExitStack() as behind:
        for command, shown in COMMANDS:
            if command.endswith(" &"):
                words = command.removesuffix(" &").split()
                process = behind.enter_context(subprocess.Popen([*LANNER, *words], stdout=subprocess.DEVNULL))
                behind.callback(process.kill)
                until_settled(words[words.index("--group") + 1])
                continue
            answer = run(command)
            assert matches(answer, shown), f"{command}\nsays\n{answer}\nshown\n{shown}"
        [evict] = re.findall(r"`lanner (group evict packing) [0-9a-f]{8}`", TEXT)
        (member,) = members_of("packing")
        said = run(f"{evict} {member['member_id'][:8]}")
        assert said == f"Evicted {member['member_id']} (lanner-cli): 4 partitions go to others.\n"


def members_of(group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(f"group members {group} --json"))["members"]
    return found


def test_operators_see_who_works_here_and_take_a_membership_away(broker: BrokerProcess) -> None:
    """As docs/operations.md prints it: nothing but the comments is left out."""
    blocks = re.findall(r"^```\n((?:lanner .*\n)+)```$", OPERATIONS, re.MULTILINE)
    [block] = [one for one in blocks if "group evict" in one]
    commands = [line.partition("#")[0].strip().removeprefix("lanner ") for line in block.splitlines()]
    with lanner.sync.connect(broker.native, client_name="till") as queue:
        queue.admin.create_topic("orders", partitions=2)
        with (
            queue.consumer("orders", "billing", assignor="sticky", instance="web-1") as evicted,
            queue.consumer("audited", "audit"),
        ):
            until_settled("billing")
            evicted.poll(wait_ms=0)  # only who has asked for something is told to use a group
            answers = {command: squeezed(run(command)) for command in commands}
            assert list(answers) == [
                "client list",
                "client list --group billing",
                "group members billing",
                "group evict billing web-1",
            ]
            every, some, members, evict = answers.values()
            assert "till native" in every and "billing on orders as" in every
            assert "billing on orders as" in some
            assert members.startswith("billing: queue, sticky, generation ") and " orders/0-1" in members
            assert re.fullmatch(r"Evicted [0-9a-f]+ \(web-1\): 2 partitions go to others\.", evict)
