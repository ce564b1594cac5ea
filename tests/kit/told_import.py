"""What a script imports, and what takes long: the fork server of its node is in the middle of it."""

from tests.kit.told_at import hold

hold("imports")
