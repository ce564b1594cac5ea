"""Which elastic-exact is this? The version of the code that runs, and not of what an installer has noted.

Processes of one run have the same: what they say to each other is no promise between versions, nor is how they add.
What a run has saved is read by later ones (elastic_checkpoint/format/manifest.py). pyproject.toml reads it here.
"""

__version__ = "0.1.0"
