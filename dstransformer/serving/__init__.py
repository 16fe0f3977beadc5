"""``dst serve``: translation over HTTP, with a page to type into. It imports fastapi, uvicorn and prometheus_client."""
