"""Print the development requirements of pyproject.toml, one a word, for a pip that knows no dependency groups."""

import pathlib
import tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text(encoding="utf-8"))
print(" ".join(project["dependency-groups"]["dev"]))
