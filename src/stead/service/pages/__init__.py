"""The web pages: the desk's questions and changes for people, rendered by the service, without a build step.

Rule: a page parses its request, asks the desk and fills a template; it shows nothing that the REST API does not offer
too. Every page has a plain URL and works without scripts; htmx only updates parts of it.
"""
