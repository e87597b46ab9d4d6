"""Captions over HTTP, and the page that shows them. Needs the extra `serve`; `meshcap serve` starts it.

`schemas` reads requests and forms answers, `limits` says how much is taken in, `service` captions pictures of many
clients together and knows no HTTP, `app` joins them.
"""
