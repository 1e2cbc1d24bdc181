"""The console: pages of the service for a browser, rendered here. htmx replaces the parts of them that change.

`signing_in` knows who asks, `calls` has the REST interface's own functions answer as that person may, `layout` is the
frame of all pages, and `pages` has one file for each.
"""
