"""Data Docs: the expectations of windows and what they found, as a folder of HTML pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.expectations.validation import (
    COUNT,
    INDEX,
    SideRun,
    batch_definition,
    details,
    great_expectations,
    new_context,
    quiet,
)
from relay_pipelines.model import Side
from relay_pipelines.settings.expectations import Expectation
from relay_pipelines.sides import Sides


class DataDocs:
    """Pages that grow with every topic, until `write`.

    Args:
        session: returns the Spark session.
        config: path of relay.yaml.
        folder: where the pages go; nothing else is written.
    """

    def __init__(self, session: Callable[[], Any], config: Path, folder: Path) -> None:
        self._session = session
        self._config = config
        self._context = new_context()
        self._batches = batch_definition(self._context)
        backend = {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": str(folder.absolute()),
        }
        site = {
            "class_name": "SiteBuilder",
            "store_backend": backend,
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        }
        self._context.add_data_docs_site("relay", site)

    def add(self, sides: Sides, window: TopicWindow) -> None:
        """Validate the expectations of a topic."""
        for side in Side:
            expectations = sides.mirror.expectations_of(window.topic)
            of_side = [expectation for expectation in expectations if expectation.side is side]
            run = SideRun(self._session, self._config, sides, window, side)
            title = f"{sides.name}.{window.topic}.{side}"
            # what they look for must not be on the page
            hidden = [each for each in of_side if each.kind == "no_pii"]
            self._run(run, title, [each for each in of_side if each not in hidden])
            self._run(run, f"{title}.no_pii", hidden, values=False)

    def _run(
        self, run: SideRun, title: str, expectations: Sequence[Expectation], *, values: bool = True
    ) -> None:
        if not expectations:
            return
        gx, window = great_expectations(), run.window
        sample = run.sides.mirror.expectation_sample_of(window.topic)
        shows = values and sample.values
        with quiet():
            suite = run.suite_of(expectations)
            # a page shows, too, whether the records are as many as the ledger has
            chosen = suite.chosen([*range(len(expectations)), COUNT])
            chosen.name = title
            definition = gx.ValidationDefinition(
                name=title, data=self._batches, suite=self._context.suites.add_or_update(chosen)
            )
            self._context.validation_definitions.add_or_update(definition).run(
                batch_parameters={"dataframe": run.data(expectations, suite)},
                run_id=gx.RunIdentifier(run_name=window.name),
                # a page also shows what was observed
                result_format=details(sample, INDEX) if shows else "BOOLEAN_ONLY",
            )

    def write(self) -> None:
        """Write the pages."""
        with quiet():
            self._context.build_data_docs()
