"""Performs the scenario: signals to brokers, and their return."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from relay_pipelines.embedded import Broker
from tests.chaos.storm.faults import DESTINATION, NODES, Disruption, Fault, Kind, Target
from tests.chaos.storm.mirroring import Watch

_COPY_PATIENCE_SECONDS = 10.0


class FaultInjector:
    """Strikes brokers until told to end, and leaves all of them running.

    Args:
        watch: knows which node is read, and whether a run copies now.
        say: where every strike is told.
    """

    def __init__(
        self,
        brokers: Mapping[str, Broker],
        disruptions: Iterable[Disruption],
        watch: Watch,
        say: Callable[[str], None],
    ) -> None:
        self._brokers = brokers
        self._acts = disruptions
        self._watch = watch
        self._say = say
        self.struck: Counter[Fault] = Counter()

    def kinds(self) -> Counter[Kind]:
        """How often what was done."""
        return Counter(fault.kind for fault in self.struck.elements())

    def strike_until(self, over: threading.Event) -> None:
        """Perform one disruption after the other; one that has begun is mended before the end."""
        for disruption in self._acts:
            if over.wait(disruption.quiet_seconds):
                return
            if disruption.during_copy:
                self._watch.copying.wait(_COPY_PATIENCE_SECONDS)
                over.wait(disruption.delay_seconds)
            if over.is_set():
                return
            self._perform(disruption, over)

    def _perform(self, disruption: Disruption, over: threading.Event) -> None:
        named = self._named()
        when = ", in the middle of a copy" if self._watch.copying.is_set() else ""
        struck = [named[one.target] for one in disruption.faults]
        try:
            for fault, name in zip(disruption.faults, struck, strict=True):
                self._strike(fault, self._brokers[name])
            told = (
                f"{name} ({one.target}) {one.kind}"
                for one, name in zip(disruption.faults, struck, strict=True)
            )
            self._say(f"{' and '.join(told)}{when}, for {disruption.hold_seconds:.1f} s")
            over.wait(disruption.hold_seconds)
        finally:
            self._mend([self._brokers[name] for name in struck])
        self._say(f"{' and '.join(struck)} back")

    def _named(self) -> dict[Target, str]:
        read = self._watch.node
        (spare,) = (name for name in NODES if name != read)
        return {Target.READ: read, Target.SPARE: spare, Target.DESTINATION: DESTINATION}

    def _strike(self, fault: Fault, broker: Broker) -> None:
        {Kind.KILL: broker.kill, Kind.STOP: broker.pause, Kind.RESTART: broker.stop}[fault.kind]()
        self.struck[fault] += 1

    def _mend(self, brokers: Sequence[Broker]) -> None:
        for broker in brokers:
            if broker.running:
                broker.resume()
            else:
                broker.launch()
        for broker in brokers:
            broker.wait_until_serving()
