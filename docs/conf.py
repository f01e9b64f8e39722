"""The site: `make site` builds it with Sphinx from these pages and from the docstrings of the public modules."""

from nexus_tasks import __version__

project = "nexus-tasks"
author = "The nexus-tasks maintainers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "nexus-tasks"
html_extra_path = ["llms.txt"]
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 3  # as GitHub makes them
suppress_warnings = ["misc.highlighting_failure"]  # a console block shows output, which is no shell
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
