"""Settings of Sphinx for `make docs`.

The source is the whole tree, not docs/ alone, so that a link between two Markdown files is the same on the site and
where the repository is read. The pages keep the paths of their files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

project = "graft"
release = re.search(r"project\(graft VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]  # type: ignore[index]
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "breathe",
    "docstrings",
    "commands",
    "source_pages",
    "inline_pictures",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "src/README.md",
    "bench/README.md",
    "bench/results.md",
    "bench/kernels.md",
]
exclude_patterns = [".*", "build", "dist", "**/.venv", "shared"]  # folders that would only be walked through

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_display_short_literal_types = True
add_module_names = False
smartquotes = False  # "" is a value

breathe_projects = {"graft": str(ROOT / "build" / "docs" / "doxygen" / "xml")}
breathe_default_project = "graft"
breathe_show_include = False

html_theme = "furo"
html_title = f"graft {release}"
html_static_path = ["static"]
html_css_files = ["graft.css"]
html_extra_path = ["root"]  # index.html at the top, which leads to docs/index.html
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "tango"
pygments_dark_style = "monokai"
