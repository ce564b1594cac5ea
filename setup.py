"""Which folder is which package; pyproject.toml says everything else.

Top-level names are elastic and elastic_checkpoint alone: people's own repositories have a `checkpoint`, `recipes` and
`tests` of theirs, and whatever is installed under such a name stands in for it.
"""

from setuptools import find_packages, setup

OF_ELASTIC = [
    *find_packages(include=["elastic", "elastic.*"]),
    "elastic.plan.traces",
    "elastic.recipes",  # `elastic demo` runs one
    "elastic.docs",  # `elastic docs` shows them
    "elastic.deploy",  # and these within them
]

setup(
    packages=[*OF_ELASTIC, *find_packages("checkpoint")],
    package_dir={
        "elastic_checkpoint": "checkpoint/elastic_checkpoint",
        "elastic.recipes": "recipes",
        "elastic.docs": "docs",
        "elastic.deploy": "deploy",
    },
)
