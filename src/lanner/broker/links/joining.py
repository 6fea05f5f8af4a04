"""Coming to belong to a cluster: once in the life of a data directory, and recorded before anything is built on it."""

from __future__ import annotations

import logging

import msgspec

from lanner.broker.links.founding import Founding, Search, encode_record
from lanner.broker.links.identity import BrokerIdentity
from lanner.broker.links.membership import ClusterMembership
from lanner.broker.links.peers import Peers
from lanner.broker.ports import RunInThread
from lanner.broker.replicas.engine import CLUSTER_SET, SOLE_VOTER
from lanner.broker.settings import BrokerSettings
from lanner.errors import DataDirectoryRefused, StorageFailed
from lanner.ledger import Ledger
from lanner.net.addresses import parse_address
from lanner.storage import DataDirectory
from lanner.storage.aside import Rejoin, forget_rejoin
from lanner.wire.messages import Command
from lanner.wire.peers import PeerInfo, PeerInfoReply

log = logging.getLogger("lanner.broker")


class Joining:
    """One broker's way into its cluster."""

    def __init__(
        self,
        identity: BrokerIdentity,
        membership: ClusterMembership,
        directory: DataDirectory,
        ledger: Ledger,
        settings: BrokerSettings,
        rejoin: Rejoin | None,
        peers: Peers,
        in_saver: RunInThread,
    ) -> None:
        self._identity = identity
        self._membership = membership
        self._directory = directory
        self._ledger = ledger
        self._settings = settings
        self._rejoin = rejoin  # see `storage.aside`
        self._peers = peers
        self._in_saver = in_saver

    @property
    def needs_nobody(self) -> bool:
        """Whether no other broker need be asked: the cluster is recorded, or this broker stands alone."""
        asked = self._settings.seeds or self._settings.join or self._rejoin
        return self._membership.founding is not None or self._holds_data or not asked

    @property
    def _holds_data(self) -> bool:
        return CLUSTER_SET in self._ledger.sets()

    async def establish(self) -> Founding:
        """Return the record; find a cluster first when there is none, and record it."""
        if self._membership.founding is not None:
            return self._membership.founding
        found = msgspec.structs.replace(await self._search(), name=self._identity.name)
        try:
            await self._in_saver(lambda: self._directory.write_founding(encode_record(found)))
        except OSError as error:
            raise StorageFailed(f"the cluster could not be recorded in the data directory: {error}") from error
        self._membership.belong(found)
        forget_rejoin(self._directory.path)
        log.info("broker %s belongs to cluster %s", self._identity.name, found.cluster_id)
        return found

    async def _search(self) -> Founding:
        settings = self._settings
        search = Search(self._identity.registration, self._ask, self._directory.cluster_id)
        if self._holds_data:
            if self._ledger.state(CLUSTER_SET).replica_id != SOLE_VOTER:
                raise DataDirectoryRefused(
                    f"{self._directory.path} holds the data of one broker of several, but not the founding.json that "
                    "says of which: restore it from a backup, or start with an empty directory to join anew"
                )
            if settings.seeds or settings.join:
                log.warning(
                    "this directory holds the data of one broker that stood alone: it goes on as a cluster of one"
                )
            return search.alone()
        if self._rejoin is not None:
            log.warning("what was stored here was set aside: joining cluster %s anew", self._rejoin.cluster_id)
            given = [settings.join] if settings.join else []
            return await search.rejoin(self._rejoin.cluster_id, [*given, *self._rejoin.addresses])
        if settings.join:
            return await search.join(settings.entrances)
        return await search.among(settings.seeds) if settings.seeds else search.alone()

    async def _ask(self, address: str, control: PeerInfo) -> PeerInfoReply:
        where = parse_address(address, "address")
        assert where is not None, "settings refuse empty addresses"
        return await self._peers.ask_at(where, Command.PEER_INFO, control)


__all__ = ["Joining"]
