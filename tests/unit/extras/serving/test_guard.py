from __future__ import annotations

import pytest

from dstransformer.extras.serving.guard import is_allowed_host, is_own_origin


@pytest.mark.parametrize("host", [
    "localhost", "localhost:8000", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000", "10.0.0.7:80", "translate",
    "translate:80", "translate.",
])  # fmt: skip
def test_addresses_and_known_names_are_allowed(host: str) -> None:
    assert is_allowed_host(host, ["localhost", "translate"])


@pytest.mark.parametrize("host", [
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "translate.evil", "0x7f.1",
    "127.0.0.1:8000:80", "",
])  # fmt: skip
def test_other_names_are_not(host: str) -> None:
    assert not is_allowed_host(host, ["localhost", "translate"])
    assert is_allowed_host(host, ["*"])


def test_an_origin_is_the_server_itself_or_foreign() -> None:
    assert is_own_origin("http://127.0.0.1:8000", "127.0.0.1:8000")
    assert is_own_origin("https://translate.example", "translate.example"), "behind a proxy that speaks TLS"
    for foreign in ("null", "", "http://127.0.0.1:3000", "http://localhost:8000", "file://127.0.0.1:8000", "//x"):
        assert not is_own_origin(foreign, "127.0.0.1:8000"), foreign
