"""When Ctrl-C and SIGTERM interrupt a run, and when they are deferred."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from relay_pipelines.errors import RelayError
from relay_pipelines.run.session import StopSignal

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_at_once(number: signal.Signals) -> None:
    """The signal is remembered, so that no other mirror starts."""
    stop = StopSignal()
    with stop.heard():
        assert not stop()
        with pytest.raises(KeyboardInterrupt):
            send(number)
        assert stop()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_deferred_signal_only_interrupts_when_it_is_repeated(number: signal.Signals) -> None:
    """While a run copies, the first signal is only noted, and the run stops by itself."""
    stop = StopSignal()
    with stop.heard(), stop.deferred():
        send(number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            send(number)


def test_a_shielded_signal_is_raised_after_the_block() -> None:
    """Even a second signal does not interrupt the start of Spark, which would leave a JVM."""
    stop = StopSignal()
    finished = False
    with stop.heard(), stop.deferred():
        with pytest.raises(KeyboardInterrupt), stop.shielded():  # noqa: PT012 - raised at its end
            send(signal.SIGINT)
            send(signal.SIGTERM)
            finished = True
        assert finished
        with pytest.raises(KeyboardInterrupt), stop.shielded():
            raise AssertionError("the block must not run after a signal")


def test_a_signal_is_raised_in_place_of_the_error_that_it_causes() -> None:
    """It may have ended what the block starts, such as a JVM."""
    stop = StopSignal()
    with stop.heard(), pytest.raises(KeyboardInterrupt), stop.shielded():  # noqa: PT012
        send(signal.SIGTERM)
        raise RelayError("Spark does not start")


def test_a_signal_is_raised_on_the_thread_that_was_shielded() -> None:
    """Spark starts on a thread of its own; the main thread, which hears the signal, goes on."""
    stop = StopSignal()
    begun, heard = threading.Event(), threading.Event()

    def start() -> None:
        with stop.shielded():
            begun.set()
            heard.wait(10)

    with stop.heard(), stop.deferred(), ThreadPoolExecutor(1) as executor:
        starting = executor.submit(start)
        begun.wait(10)
        send(signal.SIGINT)
        send(signal.SIGINT)
        heard.set()
        assert isinstance(starting.exception(10), KeyboardInterrupt)
        assert signal.getsignal(signal.SIGINT) == stop._receive


def test_handlers_that_are_set_in_the_block_are_replaced() -> None:
    """A new SparkContext sets its own handler, which would cancel all jobs."""
    stop = StopSignal()
    with stop.heard(), stop.deferred():
        with stop.shielded():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        send(signal.SIGINT)
        assert stop()


def test_previous_handlers_are_restored() -> None:
    """A process that calls the command line keeps its own handlers."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopSignal().heard():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
