"""Which configurations a session's snapshot has."""

from relay_pipelines.snapshot.recent_configs import RecentConfigs, TopicConfigs


def test_when_configurations_are_asked_for() -> None:
    """For a copy, of other topics, and after a minute; else the last answer is shown again."""
    recent, asked = RecentConfigs(), []

    def ask() -> TopicConfigs:
        asked.append(TopicConfigs())
        return asked[-1]

    def finds_new(of: str, now: float, *, copies: bool) -> bool:
        before = len(asked)
        assert recent.find(of, now, ask, copies=copies) is asked[-1]
        return len(asked) > before

    assert finds_new("a", 1_000.0, copies=False)
    assert not finds_new("a", 1_060.0, copies=False)
    assert finds_new("a", 1_060.0, copies=True)
    assert not finds_new("a", 1_120.0, copies=False)
    assert finds_new("a", 1_120.5, copies=False)
    assert finds_new("b", 1_121.0, copies=False)
