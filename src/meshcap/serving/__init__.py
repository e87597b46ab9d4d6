"""Captions over HTTP, and the page that shows them. Needs the extra `serve`; `meshcap serve` starts it.

`limits` says how much is taken in, `wishes` how to caption, `batcher` captions pictures of many clients together,
`service` joins the three and knows no HTTP; `reading` and `answers` are the two sides of a request, `app` is the door.
"""
