"""When Ctrl-C and SIGTERM interrupt a run, and when they wait."""

from __future__ import annotations

import os
import signal

import pytest

from relay_pipelines.run.signals import StopSignal

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def send(one: signal.Signals) -> None:
    os.kill(os.getpid(), one)


@pytest.mark.parametrize("one", SIGNALS)
def test_a_signal_interrupts(one: signal.Signals) -> None:
    """Where nothing is under way, at once; and it is remembered, so that no other mirror begins."""
    stop = StopSignal()
    with stop.heard():
        assert not stop()
        with pytest.raises(KeyboardInterrupt):
            send(one)
        assert stop()


@pytest.mark.parametrize("one", SIGNALS)
def test_a_deferred_signal_waits_for_whoever_asks(one: signal.Signals) -> None:
    """While records are counted the first is only noted; a second one shows that somebody is in a hurry."""
    stop = StopSignal()
    with stop.heard(), stop.deferred():
        send(one)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            send(one)


def test_a_shielded_signal_is_raised_behind() -> None:
    """Not even a second one cuts the start of Spark short, which would leave its JVM behind; then it is raised."""
    stop = StopSignal()
    behind = False
    with stop.heard(), stop.deferred():
        with pytest.raises(KeyboardInterrupt), stop.shielded():  # noqa: PT012 - what is raised is raised behind the block
            send(signal.SIGINT)
            send(signal.SIGTERM)
            behind = True
        assert behind
        with pytest.raises(KeyboardInterrupt), stop.shielded():
            raise AssertionError("nothing is begun once a signal has come")


def test_handlers_put_in_place_meanwhile_are_replaced() -> None:
    """A new SparkContext has a handler of its own, which would cancel all jobs in the middle of a count."""
    stop = StopSignal()
    with stop.heard(), stop.deferred():
        with stop.shielded():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        send(signal.SIGINT)
        assert stop()


def test_the_handlers_of_before_come_back() -> None:
    """A process that calls the command line keeps its own."""
    before = [signal.getsignal(one) for one in SIGNALS]
    with StopSignal().heard():
        assert [signal.getsignal(one) for one in SIGNALS] != before
    assert [signal.getsignal(one) for one in SIGNALS] == before
