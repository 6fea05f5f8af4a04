"""What a leader decides about stages: whether one may come, be prepared, be published, be withdrawn, or go.

The caller has looked at its broker's copy of the metadata and says how new that is. A partition never acts on older
metadata than it has acted on before: a leader that moved to a broker whose copy lags would otherwise prepare, from late
repeats, what is published already, and publish it again.

Settings bound what may come and what may be prepared. What is prepared is published whatever they say by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lanner import features, limits
from lanner.errors import (
    NotSupported,
    Overloaded,
    ServiceUnavailable,
    StageExpired,
    TopicFull,
    ValidationError,
)
from lanner.model import FullPolicy, TopicSettings, check_name
from lanner.partition import records
from lanner.partition.decision_builder import DecisionBuilder
from lanner.partition.records import ATTEMPT_BYTES, Counted, StageNote
from lanner.partition.requests import AboutStages, Answer, DropStages, Prepare, PublishStages, WithdrawStages
from lanner.partition.state import State

DEALT_MAX: Final = 256  # stages that one decision publishes or withdraws of a try
DROPPED_MAX: Final = 256  # attempts that one decision drops
DROPPED_STAGES: Final = 4_096  # with so many stages it has dropped enough
PREPARED_MAX: Final = 65_536  # attempts that one decision prepares: its record stays small
_NAMED_MAX: Final = 64  # attempts that an error names
_FULL_RETRY_MS: Final = 1_000
_BUSY_RETRY_MS: Final = 100


# ------------------------------------------------------------------ before a stage is proposed


def check_level(feature_level: int) -> None:
    if feature_level < features.STAGES:
        raise NotSupported(
            f"staged publish needs feature level {features.STAGES}, and the cluster has {feature_level}: when every "
            "broker runs a release that supports it, run lanner cluster upgrade"
        )


def check_stage(state: State, note: StageNote, size: int, settings: TopicSettings, feature_level: int) -> None:
    check_level(feature_level)
    _check_note(note)
    stages = state.stages
    attempt = stages.attempts.get(note.attempt)
    if attempt is not None and note.number < attempt.stages:
        return
    if note.number >= limits.STAGES_PER_ATTEMPT_MAX:
        raise ValidationError(
            f"an attempt may have {limits.STAGES_PER_ATTEMPT_MAX} stages on a partition; use larger batches",
            field="number",
        )
    if attempt is None and len(stages.attempts) >= limits.ATTEMPTS_PER_PARTITION_MAX:
        raise Overloaded(
            f"the partition holds {len(stages.attempts)} attempts; commit or discard some",
            retry_after_ms=_FULL_RETRY_MS,
        )
    if stages.stages >= limits.STAGES_PER_PARTITION_MAX:
        raise Overloaded(
            f"the partition holds {stages.stages} stages; commit or discard some", retry_after_ms=_FULL_RETRY_MS
        )
    waiting = stages.staged_bytes + stages.prepared_bytes
    if waiting + size > settings.staged_bytes_max:
        raise TopicFull(
            f"the partition holds {waiting} staged bytes, and staged_bytes_max is {settings.staged_bytes_max}: commit "
            "or discard some, or raise staged_bytes_max",
            retry_after_ms=_FULL_RETRY_MS,
        )
    _check_room(state, size, settings)


def _check_note(note: StageNote) -> None:
    check_name(note.transaction, "transaction")
    check_name(note.owner, "owner")
    if len(note.attempt) != ATTEMPT_BYTES:
        raise ValidationError(f"an attempt is {ATTEMPT_BYTES} bytes", field="attempt")
    for name, value in (("sequence", note.sequence), ("task", note.task), ("number", note.number)):
        if not 0 <= value <= limits.OFFSET_MAX:
            raise ValidationError(f"{name} is {value}: it must be from 0 to {limits.OFFSET_MAX}", field=name)
    if not 0 < note.hold_ms <= limits.STAGE_HOLD_MS_MAX:
        raise ValidationError(
            f"hold_ms is {note.hold_ms}: it must be from 1 to {limits.STAGE_HOLD_MS_MAX}", field="hold_ms"
        )


def _check_room(state: State, size: int, settings: TopicSettings) -> None:
    """Whether everything that is staged, and so much more, fits into the topic once it is published."""
    if not settings.max_bytes or settings.full_policy is not FullPolicy.REJECT:
        return
    held = state.stored_bytes + state.stages.staged_bytes + state.stages.prepared_bytes
    if held + size > settings.max_bytes:
        raise TopicFull(
            f"the partition holds {held} of {settings.max_bytes} bytes, what is staged included",
            retry_after_ms=_FULL_RETRY_MS,
        )


# ------------------------------------------------------------------ tries


def answer(decision: DecisionBuilder, request: AboutStages) -> Answer:
    if isinstance(request, Prepare):
        _prepare(decision, request)
        return None
    if isinstance(request, PublishStages):
        return _deal(decision, request, records.StagesPublished)
    if isinstance(request, WithdrawStages):
        return _deal(decision, request, records.StagesWithdrawn)
    return _drop_asked(decision, request)


def _prepare(decision: DecisionBuilder, request: Prepare) -> None:
    check_level(decision.feature_level)
    state, view = decision.state, decision.stages
    manifest = _manifest_of(request)
    known = state.stages.prepared.get(request.token)
    before = view.prepared.get(request.token) if known is None else list(known.manifest)
    if before is not None:
        if before != manifest:
            raise ValidationError("this try was prepared with another manifest; commit anew", field="manifest")
        return
    _see(decision, request.token, request.metadata_index)
    if sum(map(len, view.prepared.values())) + len(manifest) > PREPARED_MAX:
        raise Overloaded("many tries are prepared at once; ask again", retry_after_ms=_BUSY_RETRY_MS)
    missing = state.stages.missing(request.transaction, request.owner, request.sequence, manifest)
    missing += [counted.attempt for counted in manifest if counted.attempt in view.taken]
    if missing:
        raise StageExpired(
            f"{len(missing)} of {len(manifest)} attempts are not here as the commit names them: they expired, were "
            "discarded, or belong to another try; do the work again under new attempts",
            attempts=missing[:_NAMED_MAX],
        )
    _check_room(state, 0, decision.settings)
    decision.facts.append(
        records.StagesPrepared(
            request.token, request.transaction, request.owner, request.sequence, manifest, request.metadata_index
        )
    )
    view.metadata_index = max(view.metadata_index, request.metadata_index)
    view.prepared[request.token] = manifest
    view.taken.update(counted.attempt for counted in manifest)


def _manifest_of(request: Prepare) -> list[Counted]:
    manifest = [Counted(*each) for each in request.manifest]
    if not 0 < len(manifest) <= limits.MANIFEST_ATTEMPTS_MAX:
        raise ValidationError(
            f"the manifest names {len(manifest)} attempts: from 1 to {limits.MANIFEST_ATTEMPTS_MAX} are allowed",
            field="manifest",
        )
    if sum(counted.stages for counted in manifest) > limits.MANIFEST_STAGES_MAX:
        raise ValidationError(f"a try may have {limits.MANIFEST_STAGES_MAX} stages on a partition", field="manifest")
    if any(len(counted.attempt) != ATTEMPT_BYTES or counted.stages < 1 or counted.task < 0 for counted in manifest):
        raise ValidationError(f"an attempt is {ATTEMPT_BYTES} bytes, and has a task and a stage", field="manifest")
    tasks = [counted.task for counted in manifest]
    if sorted(set(tasks)) != tasks or len({counted.attempt for counted in manifest}) < len(manifest):
        raise ValidationError("a manifest names each task and attempt once, in the order of tasks", field="manifest")
    return manifest


def _see(decision: DecisionBuilder, token: int, metadata_index: int) -> None:
    """Refuse what was read off older metadata than this partition has acted on, or older than the try itself."""
    if metadata_index < max(decision.stages.metadata_index, token):
        raise ServiceUnavailable(
            "this broker's copy of the metadata is older than what the partition has acted on; ask again",
            retry_after_ms=_BUSY_RETRY_MS,
        )


def _deal(
    decision: DecisionBuilder,
    request: PublishStages | WithdrawStages,
    make: type[records.StagesPublished] | type[records.StagesWithdrawn],
) -> int:
    """Publish or withdraw the next stages of a try; gives back how many are left."""
    stages, view, token = decision.state.stages, decision.stages, request.token
    prepared = stages.prepared.get(token)
    if prepared is None:
        return 0
    if token in view.left:
        return view.left[token]
    _see(decision, token, request.metadata_index)
    count = min(prepared.stages - prepared.dealt, DEALT_MAX)
    decision.facts.append(make(token, prepared.dealt, count, request.metadata_index))
    view.metadata_index = max(view.metadata_index, request.metadata_index)
    left = view.left[token] = prepared.stages - prepared.dealt - count
    if make is records.StagesPublished:
        # They get their places when this is applied: polls of this pass must take nothing less urgent before them.
        for batch in stages.next_of(token, count):
            if batch.deliver_at_ms <= decision.now_ms:
                decision.lowest_lane = max(decision.lowest_lane, batch.priority)
        if not left:
            _drop_losers(decision, prepared.transaction, prepared.owner, prepared.sequence)
    return left


# ------------------------------------------------------------------ attempts that go


def _drop_losers(decision: DecisionBuilder, transaction: str, owner: str, sequence: int) -> None:
    """Nobody can commit what else was staged for this sequence or earlier ones: speculation and zombies."""
    attempts = decision.state.stages.attempts
    losers = decision.state.stages.by_writer.get((transaction, owner), ())
    _drop(decision, [name for name in losers if attempts[name].sequence <= sequence])


def _drop_asked(decision: DecisionBuilder, request: DropStages) -> int:
    check_level(decision.feature_level)
    return _drop(decision, request.attempts)


def expire(decision: DecisionBuilder) -> None:
    expiry = decision.state.stages.expiry
    due_ms = expiry.first_ms()
    if due_ms is not None and due_ms <= decision.now_ms:
        _drop(decision, expiry.until(decision.now_ms, DROPPED_MAX))


def _drop(decision: DecisionBuilder, names: Sequence[bytes]) -> int:
    """Those of them that are here and that no try holds, as far as one decision may; gives back how many."""
    known, taken = decision.state.stages.attempts, decision.stages.taken
    dropped: list[tuple[bytes, int]] = []
    stages = 0
    for name in names:
        attempt = known.get(name)
        if attempt is None or attempt.token or name in taken:
            continue
        dropped.append((name, attempt.active_ms))
        taken.add(name)
        stages += attempt.stages
        if len(dropped) == DROPPED_MAX or stages >= DROPPED_STAGES:
            break
    if dropped:
        decision.facts.append(records.StagesDropped(dropped))
    return len(dropped)
