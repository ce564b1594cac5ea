"""The pages, installed as `elastic.docs`: `elastic docs` shows them where there is no clone."""
