"""``dst serve``: translation over HTTP, with a page to type into. It imports fastapi, uvicorn and prometheus_client.

It goes if a server of another project translates with these bundles as well.
"""
