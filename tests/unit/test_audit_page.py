"""The HTML page of an audit: self-contained, escaped, with a picture of every topic-partition."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from relay_pipelines.audit.audit import PartitionAudit
from relay_pipelines.audit.comparison import Difference
from relay_pipelines.audit.coverage import Stretch, coverage
from relay_pipelines.audit.page import HEIGHT, WIDTH, bars, mark, page
from relay_pipelines.audit.request import Level
from relay_pipelines.ledger.chain import Chain
from tests.support.audited import AT, CHUNKS, DIFFERENCE, TO, audit, audited, entry, wanted


class _Sources(HTMLParser):
    """Collects what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [str(value) for name, value in attrs if name in {"src", "href"}]


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    """What records contain is text."""
    made = page([audit(audited(DIFFERENCE))], 1_700_000_000_000)
    parser = _Sources()
    parser.feed(made)
    assert parser.loaded == []
    assert "script" not in parser.tags
    assert "&lt;script&gt;" in made
    assert "url(" not in made


def test_a_page_says_what_was_found() -> None:
    made = page([audit(audited(DIFFERENCE))], 1_700_000_000_000)
    for text in (
        "Made 2023-11-14T22:13:20Z",
        "orders-0 → copy.orders-0",
        "differs",
        "1 record differs",
        "no record",
        "not yet",
        "missing",
    ):
        assert text in made
    agreeing = PartitionAudit(coverage(wanted(0, 40), CHUNKS, 40), Chain(AT), Level.FULL, TO)
    assert "differs</span>" not in page([audit(agreeing)], 0)


def test_the_picture_is_well_formed() -> None:
    made = page([audit(audited(DIFFERENCE))], 0)
    picture = made[made.index("<svg") : made.index("</svg>") + len("</svg>")]
    kinds = [child.tag for child in ET.fromstring(picture)]
    assert kinds.count("rect") == 7
    assert kinds.count("line") == 1


def test_the_bars_fill_the_picture() -> None:
    """Their areas are the shares of the offsets."""
    made = list(bars(coverage(wanted(0, 40), CHUNKS, 40).stretches))
    assert sum(bar.width * bar.height for bar in made) == pytest.approx(WIDTH * HEIGHT)
    copied = sum(bar.width * bar.height for bar in made if "copied" in bar.title)
    assert copied / (WIDTH * HEIGHT) == pytest.approx(25 / 40)
    assert [bar.title for bar in made][:3] == [
        "[0, 10): 10 copied",
        "[10, 30): 15 copied",
        "[10, 30): 5 filtered",
    ]


def test_a_picture_of_nothing() -> None:
    assert list(bars([])) == []


def test_very_many_chunks_make_a_small_page() -> None:
    chunks = [entry(start, start + 1) for start in range(50_000)]
    found = PartitionAudit(coverage(wanted(0, 50_000), chunks, 50_000), Chain(AT), Level.FULL, TO)
    assert len(page([audit(found)], 0)) < 200_000


def test_where_the_first_difference_is() -> None:
    assert mark(audited(DIFFERENCE)) == pytest.approx(WIDTH * 15 / 60)
    assert mark(audited()) is None
    without_record = Difference("the source has fewer", None, None)
    assert mark(audited(without_record)) == pytest.approx(WIDTH * 10 / 60)


def test_a_stretch_of_one_offset() -> None:
    (bar,) = bars([Stretch(5, 6, {"copied": 1})])
    assert (bar.x, bar.width, bar.height) == (0, WIDTH, HEIGHT)
