"""Bugs on purpose in groups: in the metadata machine, the assignor, the coordinator, the partition and the client."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from lanner.client.assignments import Assignments, Turn
from lanner.cluster import assignors, group_views, grouping, ownership, views
from lanner.cluster.assignors import sticky
from lanner.cluster.coordinating import Coordinator
from lanner.partition import decision_builder, polling, records
from lanner.partition.decision_builder import DecisionBuilder
from lanner.partition.fences import check_fence
from lanner.partition.requests import Claimed
from lanner.partition.views import GroupView
from lanner.testing.group_simulation import GroupSimulation
from lanner.testing.plants import Patch, Plant

# ------------------------------------------------------------------ who gets what


def _assign_unstably(patch: Patch) -> None:
    turns = [0]

    def assign(question: Any) -> Any:
        turns[0] += 1
        answer = sticky.assign(question)
        numbers = sorted(one.number for one in question.subscribers)
        after = {number: numbers[(place + turns[0]) % len(numbers)] for place, number in enumerate(numbers)}
        return {partition_id: after[number] for partition_id, number in answer.items()}

    patch(assignors, "ASSIGNORS", {**assignors.ASSIGNORS, "sticky": assign})


def _start_afresh(patch: Patch) -> None:
    def assign(question: Any) -> Any:
        return sticky.assign(question._replace(present={}))

    patch(assignors, "ASSIGNORS", {**assignors.ASSIGNORS, "sticky": assign})


# ------------------------------------------------------------------ the coordinator


def _keep_the_dead(patch: Patch) -> None:
    patch(Coordinator, "_find_silent", lambda self: iter(()))


def _believe_all_silent(patch: Patch) -> None:
    """A new leader takes that it has heard nobody for their silence."""
    note = Coordinator._note_members

    def note_as_silent(self: Any, number: int, group: Any) -> None:
        note(self, number, group)
        if not self._now_ms:
            for member in group.members:
                self._heard_ms[member] = -(10**6)

    patch(Coordinator, "_note_members", note_as_silent)


# ------------------------------------------------------------------ the metadata machine


def _grant_before_release(patch: Patch) -> None:
    give = ownership.give

    def give_at_once(table: Any, group: Any, partition_id: Any, owner: int, grant: int, heir: int) -> None:
        if heir:
            owner, grant, heir = heir, group.row.generation, 0
        give(table, group, partition_id, owner, grant, heir)

    patch(grouping, "give", give_at_once)


def _renew_when_called_off(patch: Patch) -> None:
    """A move that is called off gives the owner another grant, of which it is not asked to let go the old one."""
    remove = grouping._remove

    def remove_and_renew(state: Any, group: Any, one: Any, reason: str) -> Any:
        called_off = list(group.inherited.get(one.number, ()))
        result = remove(state, group, one, reason)
        for partition_id in called_off:
            owner, _, heir = group.owner_of(partition_id)
            if owner and not heir:
                ownership.give(state.groups, group, partition_id, owner, group.row.generation, 0)
        return result

    patch(grouping, "_remove", remove_and_renew)


def _release_without_grant(patch: Patch) -> None:
    release = grouping._release

    def release_whatever(state: Any, change: Any) -> Any:
        group = state.groups.groups.get(change.number)
        grant = 0 if group is None else group.owner_of((change.topic, change.partition))[1]
        return release(state, replace(change, grant=grant))

    patch(grouping, "_release", release_whatever)


def _ask_nobody(patch: Patch) -> None:
    """What was given up for nobody is no new question."""
    hand_over = grouping._hand_over
    patch(grouping, "_hand_over", lambda state, group, partition_id, reason="": hand_over(state, group, partition_id))


def _apply_old_assignments(patch: Patch) -> None:
    assign = grouping._assign

    def assign_whatever(state: Any, change: Any) -> Any:
        group = state.groups.groups.get(change.number)
        return assign(state, change if group is None else replace(change, version=group.row.version))

    patch(grouping, "_assign", assign_whatever)


def _keep_dead_heirs(patch: Patch) -> None:
    remove = grouping._remove

    def remove_owner(state: Any, group: Any, one: Any, reason: str) -> Any:
        kept, group.inherited = group.inherited, {}
        try:
            return remove(state, group, one, reason)
        finally:
            group.inherited = kept

    patch(grouping, "_remove", remove_owner)


def _keep_grants_at_takeover(patch: Patch) -> None:
    take_over = grouping._take_over

    def keep(table: Any, group: Any, old: Any, new: Any) -> None:
        before = {partition_id: group.owner_of(partition_id)[1] for partition_id in group.owned.get(old.number, ())}
        take_over(table, group, old, new)
        for partition_id, grant in before.items():
            owner, _, heir = group.owner_of(partition_id)
            ownership.give(table, group, partition_id, owner, grant, heir)

    patch(grouping, "_take_over", keep)


def _number_again(patch: Patch) -> None:
    make = grouping._new_group

    def make_first(state: Any, change: Any) -> Any:
        if not state.groups.groups:
            state.counters.next_group = 1
        return make(state, change)

    patch(grouping, "_new_group", make_first)


# ------------------------------------------------------------------ where a partition is led


def _believe_any_generation(patch: Patch) -> None:
    """A request from before the member lost and regained the partition counts."""
    resolve = group_views.resolve

    def resolve_as_of_now(state: Any, name: str, member_id: str, seen: Any, partition_id: Any) -> Any:
        group = state.groups.by_name(name)
        now = (0, 0) if group is None else (group.row.number, group.row.generation)
        return resolve(state, name, member_id, max(seen, now) if member_id else seen, partition_id)

    patch(views, "resolve", resolve_as_of_now)


def _keep_no_fence(patch: Patch) -> None:
    patch(decision_builder, "check_fence", lambda group, accepted, asked: None)


def _claim_without_fence(patch: Patch) -> None:
    def claim(self: Any, request: Any) -> Any:
        view = self.view(request.group) or self.make_group(request.group, "stream", request.start)
        check_fence(request.group, view.fence, request.fence)
        self.facts.append(records.GroupTouched(request.group))
        offset = view.committed if view.committed >= 0 else view.group.start_offset
        return Claimed(offset, view.committed >= 0, view.metadata, view.latest_commit(request.member))

    patch(DecisionBuilder, "claim", claim)
    patch(DecisionBuilder, "raise_fence", lambda self, view, fence: None)


def _commit_without_order(patch: Patch) -> None:
    patch(GroupView, "latest_commit", lambda self, reader: -1)


def _seek_without_fence(patch: Patch) -> None:
    """An operator's seek is accepted, and leaves the fence where it was."""
    seek = DecisionBuilder.seek

    def seek_only(self: Any, request: Any) -> None:
        seek(self, request)
        view = self.view(request.group)
        self.facts = [fact for fact in self.facts if not isinstance(fact, records.Fenced)]
        view.fence = view.group.fence

    patch(DecisionBuilder, "seek", seek_only)


def _reset_under_the_present(patch: Patch) -> None:
    """The seek goes under the generation before the touch, which may be an owner's grant."""
    patch(GroupSimulation, "_reset_seen", lambda self, touched: (touched.number, touched.generation - 1))


# ------------------------------------------------------------------ the client


def _use_released_grants(patch: Patch) -> None:
    patch(Assignments, "_is_over", lambda self, one: False)


def _release_before_the_answer(patch: Patch) -> None:
    def finish(self: Any, process: Any, one: Any) -> None:
        self._commit(process, one)
        if one in process.assignments.phases:
            self._release(process, one)

    patch(GroupSimulation, "_finish", finish)


def _keep_what_was_fenced(patch: Patch) -> None:
    """A member that was refused does not say that it gives the partition up."""
    patch(Assignments, "fenced", lambda self, one: self.phases.pop(one, None) is not None)


def _believe_old_views(patch: Patch) -> None:
    take = Assignments.take

    def take_any(self: Any, view: Any) -> Turn:
        newest, self.seen = self.seen, (0, 0)
        turn = take(self, view)
        self.seen = max(newest, view.seen) if view.seen < newest else view.seen
        return turn

    patch(Assignments, "take", take_any)
    patch(GroupSimulation, "_is_behind", lambda self, process, copy, seen: False)


def _poll_unchecked(patch: Patch) -> None:
    patch(polling, "check_fence", lambda group, accepted, asked: None)


def _poll_without_fence(patch: Patch) -> None:
    patch(polling, "leaves_trace", lambda accepted, asked: False)


def _share_with_owners(patch: Patch) -> None:
    """A group that becomes shared, or ceases to be, keeps its owners."""
    alter = grouping._alter

    def alter_and_restore(state: Any, change: Any) -> Any:
        group = state.groups.by_name(change.group)
        owned = (
            []
            if group is None
            else [
                (partition_id, *group.owner_of(partition_id))
                for partition_ids in group.owned.values()
                for partition_id in partition_ids
            ]
        )
        result = alter(state, change)
        for partition_id, owner, grant, heir in owned:
            ownership.give(state.groups, group, partition_id, owner, grant, heir)
        return result

    patch(grouping, "_alter", alter_and_restore)


QUEUE_GROUP_PLANTS: Final[dict[str, Plant]] = {
    "poll-unchecked": Plant("a poll below the fence is served", ("order",), _poll_unchecked),
    "poll-without-fence": Plant("what a poll hands out raises no fence", ("order",), _poll_without_fence),
    "shared-with-owners": Plant("a shared group keeps its owners", ("state",), _share_with_owners),
    "queue-move-needless": Plant("assignments do not look at who has what", ("moves",), _start_afresh),
    "queue-dead-kept": Plant("silence is not noticed", ("rest",), _keep_the_dead),
}
GROUP_PLANTS: Final[dict[str, Plant]] = {
    "unstable-assignment": Plant(
        "the same question is answered differently",
        (
            "moves",
            "rest",
        ),
        _assign_unstably,
    ),
    "needless-move": Plant("assignments do not look at who has what", ("moves",), _start_afresh),
    "dead-member-kept": Plant("silence is not noticed", ("rest",), _keep_the_dead),
    "new-leader-impatient": Plant("a new leader takes all for silent", ("eviction",), _believe_all_silent),
    "unowned-forgotten": Plant("what was given up for nobody stays so", ("rest",), _ask_nobody),
    "grant-before-release": Plant(
        "the heir is granted at once",
        (
            "hand-over",
            "moves",
        ),
        _grant_before_release,
    ),
    "grant-renewed": Plant("a called-off move renews the grant", ("grants",), _renew_when_called_off),
    "release-without-grant": Plant("a late release counts for a later grant", ("hand-over",), _release_without_grant),
    "takeover-keeps-grants": Plant(
        "an instance that comes back keeps its grants",
        (
            "order",
            "zombie",
        ),
        _keep_grants_at_takeover,
    ),
    "number-given-twice": Plant(
        "a group made anew has an old number",
        (
            "order",
            "zombie",
            "rest",
        ),
        _number_again,
    ),
    "old-generation-accepted": Plant(
        "requests count whatever they have seen",
        (
            "zombie",
            "progress",
            "order",
            "hand-over",
        ),
        _believe_any_generation,
    ),
    "no-fence": Plant(
        "a partition refuses nothing",
        (
            "order",
            "zombie",
        ),
        _keep_no_fence,
    ),
    "claim-without-fence": Plant(
        "a claim raises no fence",
        (
            "order",
            "zombie",
        ),
        _claim_without_fence,
    ),
    "commit-without-order": Plant("a late commit counts again", ("progress",), _commit_without_order),
    "reset-undone": Plant(
        "a reset goes under the present generation",
        (
            "zombie",
            "order",
            "progress",
        ),
        _reset_under_the_present,
    ),
    "released-grant-used": Plant(
        "a member goes on with what it gave up",
        (
            "hand-over",
            "order",
            "zombie",
        ),
        _use_released_grants,
    ),
    "released-before-answer": Plant(
        "a release does not wait for the commit's answer", ("hand-over",), _release_before_the_answer
    ),
    "old-assignment-applied": Plant("an answer to an older question counts", ("moves", "rest"), _apply_old_assignments),
    "dead-heir-kept": Plant("a member that went is still to follow", ("state",), _keep_dead_heirs),
    "seek-without-fence": Plant("an operator raises no fence", ("zombie",), _seek_without_fence),
    "fenced-not-released": Plant("a refused member says nothing", ("rest",), _keep_what_was_fenced),
    "old-view-believed": Plant(
        "an older view brings partitions back",
        (
            "hand-over",
            "eviction",
            "rest",
        ),
        _believe_old_views,
    ),
}
