"""What programs say to people, word for word, in one text file that is easy to read through.

A test asserts what a program must know, such as the place of a mistake. The words are kept here:
`--update-wordings` writes those of the tests that run, without xdist, and `git diff` shows them.
"""

from pathlib import Path

_INDENT = "    "


class Wordings:
    """A file with a title for each test case, and what is said; `updates` writes what differs."""

    def __init__(self, path: Path, *, updates: bool) -> None:
        self._path = path
        self._updates = updates
        self._kept = read(path)
        self._said: dict[str, str] = {}

    def check(self, title: str, said: str) -> None:
        """Assert that what is said is what is kept."""
        self._said[title] = said
        if not self._updates:
            assert said == self._kept.get(title), (
                f"{title}: other words than in {self._path.name}; if they are better, write them"
                " down with --update-wordings"
            )

    def close(self) -> None:
        """Write down what was said, if it is to be kept, in place of the modules that ran."""
        if self._updates:
            ran = {title.partition(": ")[0] for title in self._said}
            kept = {t: said for t, said in self._kept.items() if t.partition(": ")[0] not in ran}
            write(self._path, kept | self._said)


def read(path: Path) -> dict[str, str]:
    """Return what is kept, by title."""
    kept: dict[str, list[str]] = {}
    title = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(_INDENT):
            kept[title].append(line.removeprefix(_INDENT))
        else:
            title = line
            assert title not in kept, f"two cases are called {title!r}"
            kept[title] = []
    return {title: "\n".join(lines) for title, lines in kept.items()}


def write(path: Path, kept: dict[str, str]) -> None:
    """Write down what is said, module by module; the cases keep their order."""
    titles = sorted(kept, key=lambda title: title.partition(": ")[0])
    path.write_text(
        "".join(
            f"{title}\n" + "".join(f"{_INDENT}{line}\n" for line in kept[title].splitlines())
            for title in titles
        )
    )
