"""Makes tests/fixtures/data-RELEASE.tar.xz: a small data directory as an older release leaves it after a crash.

Run it with that release, once; the fixture is kept, because later releases must start with what is in it:

    git worktree add ../lanner-0.2.0 f92e91f
    PYTHONPATH=../lanner-0.2.0/src .venv/bin/python tools/old_data.py tests/fixtures/data-0.2.0.tar.xz

Release 0.1.0 is cd059dd, 0.2.0 is f92e91f, 0.3.0 is ef9119a, 0.4.0 is b7bbd9d, and 0.5.0 is d712e42. In it: a topic
with a queue group (acked, leased, waiting for a retry, dead), a stream group with a committed offset, a delayed
message, a deduplicated one; some of it saved in the table, some only in the journal, and a last record of which all but
the first 512 bytes were never written. `contents.json` beside the data says what was done and when, by which release,
and under which token the four messages were leased.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import lanner
from lanner.broker.settings import BrokerSettings
from lanner.model import TopicSettings
from lanner.server import Server

SECTOR = 512
LEASE_MS = 3_600_000


def settings(data: Path, save_interval_ms: int) -> BrokerSettings:
    return BrokerSettings(
        data=str(data),
        http="",
        native="127.0.0.1:0",
        name="old",
        segment_bytes=1 << 20,
        save_interval_ms=save_interval_ms,
        disk_reserve_bytes=0,
    )


async def fill(data: Path, crashed: Path) -> dict[str, object]:
    server = Server(settings(data, 1_000))
    await server.start()
    async with lanner.connect(address(server)) as queue:
        made = TopicSettings(partitions=1, replication=1, lease_ms=LEASE_MS, max_deliveries=3, retention_ms=0)
        await queue.admin.create_topic("orders", **made.to_dict())
        for number in range(6):
            await queue.publish("orders", f"message-{number}", priority=9 if number == 5 else 4, key="k")
        await queue.publish("orders", "once", dedup_id="only-once")
        await queue.publish("orders", "later", delay_ms=LEASE_MS)
        async with queue.consumer("orders", group="billing", prefetch=1) as consumer:
            first = await consumer.poll(1)
            await first.ack()  # message-5, the urgent one
        async with queue.reader("orders", group="audit", start="earliest") as reader:
            await reader.commit({0: 3})
    await server.stop()  # all of this is in the table

    server = Server(settings(data, 3_600_000))
    await server.start()
    async with lanner.connect(address(server)) as queue, queue.consumer("orders", group="billing") as consumer:
        held = await consumer.poll(4)
        messages = list(held)
        assert [one.value for one in messages] == [b"message-0", b"message-1", b"message-2", b"message-3"], messages
        token = messages[0]._part.token
        await messages[0].ack()
        await messages[1].nack(delay_ms=LEASE_MS)
        await messages[2].reject("broken")
        await queue.publish("orders", "last whole one")
        moment_ms = time.time_ns() // 1_000_000
        before = images(data)
        await queue.publish("orders", b"torn" * 1_000)
        shutil.copytree(data, crashed)
        (crashed / "lock").unlink(missing_ok=True)
    await server.stop()
    tear(before, crashed)
    return {"moment_ms": moment_ms, "lease_ms": LEASE_MS, "release": lanner.__version__, "token": token}


def address(server: Server) -> str:
    assert server.native_address is not None
    return "{}:{}".format(*server.native_address)


def images(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data / "journal").iterdir()}


def tear(before: dict[str, bytes], crashed: Path) -> None:
    """Leave only the first sector of what was written since."""
    for path in (crashed / "journal").iterdir():
        now, then = path.read_bytes(), before.get(path.name, b"")
        if now == then:
            continue
        start = next(at for at in range(len(now)) if now[at : at + 1] != then[at : at + 1])
        end = len(now.rstrip(b"\0"))
        assert end - start > 2 * SECTOR, "the last record is the long one"
        path.write_bytes(now[: start + SECTOR] + bytes(len(now) - start - SECTOR))
        return
    raise AssertionError("nothing was written")


def main() -> None:
    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        crashed = Path(folder) / "data"
        contents = asyncio.run(fill(Path(folder) / "live", crashed))
        (Path(folder) / "contents.json").write_text(json.dumps(contents, indent=2) + "\n")
        with tarfile.open(target, "w:xz") as archive:
            archive.add(crashed, "data")
            archive.add(Path(folder) / "contents.json", "contents.json")
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
