"""Injects the faults of a scenario into brokers and ends them again."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext

from relay_pipelines.local_kafka import Broker
from tests.chaos.storm.faults import DESTINATION, UPSTREAMS, Disruption, Fault, Kind, Target
from tests.chaos.storm.mirroring import Watch

_COPY_TIMEOUT_SECONDS = 10.0


class FaultInjector:
    """Injects faults until it is stopped, and leaves all brokers running.

    Args:
        spared: while one of these locks is held, nothing happens to the broker of that name.
    """

    def __init__(
        self,
        brokers: Mapping[str, Broker],
        disruptions: Iterable[Disruption],
        watch: Watch,
        say: Callable[[str], None],
        spared: Mapping[str, threading.Lock],
    ) -> None:
        self._spared = spared
        self._brokers = brokers
        self._disruptions = disruptions
        self._watch = watch
        self._say = say
        self.struck: Counter[Fault] = Counter()

    def kinds(self) -> Counter[Kind]:
        return Counter(fault.kind for fault in self.struck.elements())

    def inject_until(self, over: threading.Event) -> None:
        """Inject one disruption after the other; an active one ends before this returns."""
        for disruption in self._disruptions:
            if over.wait(disruption.quiet_seconds):
                return
            if disruption.during_copy:
                self._watch.copying.wait(_COPY_TIMEOUT_SECONDS)
                over.wait(disruption.delay_seconds)
            if over.is_set():
                return
            self._inject(disruption, over)

    def _inject(self, disruption: Disruption, over: threading.Event) -> None:
        named = self._named()
        when = ", during a copy" if self._watch.copying.is_set() else ""
        struck = [named[fault.target] for fault in disruption.faults]
        try:
            for fault, name in zip(disruption.faults, struck, strict=True):
                with self._spared.get(name, nullcontext()):
                    strike(self._brokers[name], fault.kind)
                    self.struck[fault] += 1
            told = (
                f"{name} ({fault.target}) {fault.kind}"
                for fault, name in zip(disruption.faults, struck, strict=True)
            )
            self._say(f"{' and '.join(told)}{when}, for {disruption.hold_seconds:.1f} s")
            over.wait(disruption.hold_seconds)
        finally:
            recover([self._brokers[name] for name in struck])
        self._say(f"{' and '.join(struck)} back")

    def _named(self) -> dict[Target, str]:
        read = self._watch.upstream
        (spare,) = (name for name in UPSTREAMS if name != read)
        return {Target.READ: read, Target.SPARE: spare, Target.DESTINATION: DESTINATION}


def strike(broker: Broker, kind: Kind) -> None:
    {Kind.KILL: broker.kill, Kind.STOP: broker.pause, Kind.RESTART: broker.stop}[kind]()


def recover(brokers: Sequence[Broker]) -> None:
    """Let all of them serve again."""
    for broker in brokers:
        if broker.running:
            broker.resume()
        else:
            broker.launch()
    for broker in brokers:
        broker.wait_until_serving()
