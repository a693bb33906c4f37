"""Fixtures that several files of tests share."""

from tests.browser import chromium, page_file, visit

__all__ = ["chromium", "page_file", "visit"]
