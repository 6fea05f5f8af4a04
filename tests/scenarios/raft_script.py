"""Text scripts that put a replica set through one situation, and the trace that this must leave.

A script is a list of blocks: commands, a line of dashes, what happened. Nothing happens by chance or by itself:
messages lie in the network in the order they were sent until `run` delivers them, time passes only by `tick`, and
disks are instant unless held. Every invariant of the witness holds after every step, as in the simulation.

    nodes 1 2 3              logs 1: 1 1 4 (an entry of each term)     term 1: 3
    campaign 1 | tick 1 20 | propose 1 text | change 1 add_learner 4 | transfer 1 3 | read 1
    run (until quiet) | run 5 (so many messages) | cut 1 2 | cut 1 > 2 | heal | lose (all that is in the network)
    hold 2 (its writes wait) | write 2 (one) | release 2 | crash 2 | restart 2 | save 2 | install 2 | show

Rewrite the traces after a change that is meant: python -m tests.scenarios.raft_script, and review the difference.
"""

from __future__ import annotations

from pathlib import Path

from lanner.errors import LannerError
from lanner.raft import Change, Entry, EntryKind, HardState, Membership, Message, MessageKind, decode_message
from tests.scenarios.playing import play, rewrite
from tests.unit.raft.cluster import Cluster, Host

FOLDER = Path(__file__).parent / "raft"


class Stage(Cluster):
    """A cluster in which only the script acts."""

    def __init__(self, voters: frozenset[int]) -> None:
        super().__init__(1, len(voters), faults=False)
        self.trace: list[str] = []
        self.held: set[int] = set()
        self.roles: dict[int, str] = {}
        self.commits: dict[int, int] = {}
        self.settings = {"election_ticks": 10, "heartbeat_ticks": 2}
        self.hosts = {node_id: Host(self, node_id) for node_id in sorted(voters)}

    def send(self, message: Message, host: Host) -> None:
        self.witness.sent(message, host)
        if (message.sender, message.receiver) in self.cuts:
            self.trace.append(f"{spoken(message)} (cut)")
        else:
            super().send(message, host)

    def work(self) -> None:
        """Let every node do what it can without a message or time."""
        for host in list(self.hosts.values()):
            self._note(host)
            host.pump()
            while host.writes and host.node is not None and host.node_id not in self.held:
                host.finish_write()
                host.pump()
            self._note(host)

    def _note(self, host: Host) -> None:
        node = host.node
        if node is None:
            return
        role = f"{node.role} of term {node.term}"
        if self.roles.get(host.node_id, "follower of term 0") != role:
            self.trace.append(f"  {host.node_id} is {role}")
        self.roles[host.node_id] = role
        if node.commit_index > self.commits.get(host.node_id, 0):
            self.trace.append(f"  {host.node_id} commits up to {node.commit_index}")
        self.commits[host.node_id] = node.commit_index

    def run_messages(self, count: int) -> None:
        while self.frames and count:
            count -= 1
            _, receiver, frame = self.frames.pop(0)
            message = decode_message(frame)
            host = self.hosts.get(receiver)
            if host is None or host.node is None or (message.sender, receiver) in self.cuts:
                self.trace.append(f"{spoken(message)} (lost)")
                continue
            self.trace.append(spoken(message))
            try:
                host.node.step(message)
            except LannerError as refused:
                self.trace.append(f"  {receiver} refuses: {refused}")
            self.work()

    def take_trace(self) -> list[str]:
        trace, self.trace = self.trace, []
        return trace

    # ------------------------------------------------------------------ commands

    def do(self, command: str) -> None:
        name, *words = command.split()
        try:
            getattr(self, f"do_{name}")(*words)
        except LannerError as refused:
            self.trace.append(f"  refused: {refused}")
        self.work()

    def _host(self, word: str) -> Host:
        return self.hosts[int(word.rstrip(":"))]

    def do_log(self, who: str, *terms: str) -> None:
        host = self._host(who)
        host.disk.log = [Entry(i, int(term), EntryKind.NORMAL, b"%d" % i) for i, term in enumerate(terms, 1)]
        host.disk.hard_state = HardState(max(int(term) for term in terms), 0)
        host.start()
        self._note(host)

    def do_term(self, who: str, term: str) -> None:
        host = self._host(who)
        host.disk.hard_state = HardState(int(term), 0)
        host.start()

    def do_campaign(self, who: str) -> None:
        node = self._host(who).node
        assert node is not None
        node.campaign()

    def do_tick(self, who: str, count: str = "1") -> None:
        for _ in range(int(count)):
            node = self._host(who).node
            assert node is not None
            node.tick()
            self.work()

    def do_propose(self, who: str, text: str) -> None:
        node = self._host(who).node
        assert node is not None
        node.propose(text.encode())

    def do_change(self, who: str, change: str, peer: str) -> None:
        node = self._host(who).node
        assert node is not None
        if int(peer) not in self.hosts:
            self.hosts[int(peer)] = Host(self, int(peer))
        node.change_membership(Change(change), int(peer))

    def do_transfer(self, who: str, peer: str) -> None:
        node = self._host(who).node
        assert node is not None
        node.transfer(int(peer))

    def do_run(self, count: str = "-1") -> None:
        self.run_messages(int(count))

    def do_cut(self, one: str, other: str, third: str = "") -> None:
        self.cuts.add((int(one), int(third or other)))
        if not third:
            self.cuts.add((int(other), int(one)))

    def do_heal(self) -> None:
        self.cuts.clear()

    def do_lose(self) -> None:
        self.frames.clear()

    def do_hold(self, who: str) -> None:
        self.held.add(int(who))

    def do_write(self, who: str) -> None:
        self._host(who).finish_write()

    def do_release(self, who: str) -> None:
        self.held.discard(int(who))

    def do_crash(self, who: str) -> None:
        self._host(who).crash(0)
        self.held.discard(int(who))

    def do_restart(self, who: str) -> None:
        self._host(who).start()
        self.commits[int(who)] = self._host(who).applied

    def do_save(self, who: str) -> None:
        self._host(who).save(1.0)

    def do_install(self, who: str) -> None:
        self._host(who).install()

    def do_show(self) -> None:
        for host in self.hosts.values():
            node = host.node
            if node is None:
                self.trace.append(f"  {host.node_id} down")
                continue
            terms = " ".join(str(node.tail.term(at)) for at in range(node.compacted_index + 1, node.last_index + 1))
            begin = f"({node.compacted_index}) " if node.compacted_index else ""
            members = f"voters {listed(node.voters)}" + (f" learners {listed(node.learners)}" if node.learners else "")
            state = f"{host.node_id} {node.role} term {node.term} commit {node.commit_index}"
            self.trace.append(f"  {state} log {begin}{terms} | {members}")


def listed(nodes: frozenset[int]) -> str:
    return ",".join(map(str, sorted(nodes)))


def spoken(message: Message) -> str:
    """A message in one line."""
    kind = MessageKind(message.kind)
    words = [f"{message.sender} > {message.receiver} {kind.name.lower()} term {message.term}"]
    if kind in (MessageKind.VOTE, MessageKind.PRE_VOTE, MessageKind.APPEND, MessageKind.SNAPSHOT):
        words.append(f"after {message.log_index}/{message.log_term}")
    if kind is MessageKind.APPEND and message.entries:
        words.append("entries " + " ".join(f"{entry.index}/{entry.term}" for entry in message.entries))
    if kind is MessageKind.SNAPSHOT:
        membership = Membership.decode(message.entries[0].payload)
        words.append(f"voters {listed(membership.voters)}")
    if message.rejected:
        words.append(
            "no" + (f", perhaps {message.hint}/{message.log_term}" if kind is MessageKind.APPEND_REPLY else "")
        )
    elif kind in (MessageKind.VOTE_REPLY, MessageKind.PRE_VOTE_REPLY):
        words.append("yes")
    elif kind in (MessageKind.APPEND_REPLY, MessageKind.HEARTBEAT_REPLY):
        words.append(f"holds {message.log_index}")
    if message.commit_index and kind in (MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.COMMIT):
        words.append(f"commit {message.commit_index}")
    return " ".join(words)


def played(text: str) -> str:
    return play(text, "nodes", lambda words: Stage(frozenset(map(int, words))))


if __name__ == "__main__":
    rewrite(FOLDER, played)
