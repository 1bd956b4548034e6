"""What a Redis URL may say."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from redis.asyncio.connection import SSLConnection
from service.adapters.redis_urls import (
    ClusterUrl,
    SentinelUrl,
    cluster_url,
    connection_options,
    is_cluster,
    is_sentinel,
    open_client,
    sentinel_url,
    tls_of,
)
from service.settings import Settings


def test_sentinels_with_everything() -> None:
    url = "rediss+sentinel://us%40er:p%3Ass@one:26380,[::1],three/my-turns/3?sentinel_password=s"
    assert is_sentinel(url)
    assert sentinel_url(url) == SentinelUrl(
        hosts=(("one", 26380), ("::1", 26379), ("three", 26379)),
        master="my-turns",
        database=3,
        username="us@er",
        password="p:ss",
        sentinel_password="s",
        is_tls=True,
    )
    options = connection_options(url)
    assert (options["username"], options["password"], options["db"]) == ("us@er", "p:ss", 3)
    assert tls_of(options) is not None


def test_sentinels_with_little() -> None:
    found = sentinel_url("redis+sentinel://:secret@one/turns")
    assert found.hosts == (("one", 26379),)
    assert (found.database, found.username, found.password) == (0, None, "secret")
    assert tls_of(connection_options("redis+sentinel://one/turns")) is None


@pytest.mark.parametrize(
    "url", ["redis+sentinel://one", "redis+sentinel://one/", "redis+sentinel://one,,two/t"]
)
def test_sentinels_that_cannot_be(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        sentinel_url(url)


def test_passwords_are_not_shown() -> None:
    for text in (
        repr(sentinel_url("redis+sentinel://u:secret@one/t?sentinel_password=secret")),
        repr(cluster_url("redis+cluster://u:secret@one")),
    ):
        assert "secret" not in text


def test_cluster_nodes_are_reached_as_the_cluster_is() -> None:
    url = "rediss+cluster://u:p%3A@one,two:7000?ssl_cert_reqs=none"
    assert is_cluster(url)
    cluster = cluster_url(url)
    assert isinstance(cluster, ClusterUrl)
    assert cluster.hosts == (("one", 6379), ("two", 7000))
    assert cluster.node("three", 1) == "rediss://u:p%3A@three:1?ssl_cert_reqs=none"
    assert cluster.node("::1", 1) == "rediss://u:p%3A@[::1]:1?ssl_cert_reqs=none"
    assert cluster_url("redis+cluster://one").node("one", 6379) == "redis://one:6379"


def test_what_settings_take() -> None:
    sentinel, cluster = "redis+sentinel://a,b/turns", "redis+cluster://a,b"
    assert Settings(redis_url=sentinel, cache_redis_url=cluster).effective_cache_redis_url == cluster
    assert Settings(redis_url=sentinel).effective_cache_redis_url == sentinel
    with pytest.raises(ValidationError):
        Settings(redis_url="redis+sentinel://a,b")
    with pytest.raises(ValidationError):  # the scripts of accepted work touch keys of many slots
        Settings(redis_url=cluster)


def test_sentinels_and_their_master_are_trusted_by_the_same_certificate(folder: Path) -> None:
    url = "rediss+sentinel://one,two/turns?ssl_ca_certs=/etc/my%20ca.pem&ssl_check_hostname=true&sentinel_password=s"
    expected = {"ssl_ca_certs": "/etc/my ca.pem", "ssl_check_hostname": True}
    address = sentinel_url(url)
    assert address.tls == expected
    assert expected.items() <= connection_options(url).items()
    sentinel = address.sentinel()
    for client in (*sentinel.sentinels, open_client(url)):
        pool = client.connection_pool
        assert issubclass(pool.connection_class, SSLConnection)
        assert expected.items() <= pool.connection_kwargs.items()
    assert sentinel.sentinels[0].connection_pool.connection_kwargs["password"] == "s"
    with pytest.raises(FileNotFoundError):  # it is read, and not passed over
        tls_of(connection_options(f"rediss+sentinel://one/turns?ssl_ca_certs={folder / 'none.pem'}"))


@pytest.mark.parametrize(
    "url",
    [
        "rediss+sentinel://one/turns?ssl_ca_cert=/etc/ca.pem",
        "redis+sentinel://one/turns?ssl_ca_certs=/etc/ca.pem",
        "redis+sentinel://one/turns?sentinel_pasword=s",
        "redis+sentinel://one/turns?sentinel_password=s&db=3",
        "redis+sentinel://one/turns?socket_timeout=",
    ],
)
def test_fields_that_nobody_would_heed_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"field|rediss"):
        sentinel_url(url)
    with pytest.raises(ValidationError):
        Settings(redis_url=url)


@pytest.mark.parametrize(
    "url", ["redis+cluster://a?ssl_ca_certs=/ca", "rediss+cluster://a?sentinel_password=s"]
)
def test_fields_that_a_cluster_would_not_heed_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"field|rediss"):
        cluster_url(url)
    with pytest.raises(ValidationError):
        Settings(cache_redis_url=url)


def test_settings_take_certificates() -> None:
    sentinel = "rediss+sentinel://:p%40@a,b:1/turns/2?sentinel_password=s%2525&ssl_ca_certs=/ca.pem&ssl_cert_reqs=none"
    cluster = "rediss+cluster://:p@a,b:7000?ssl_ca_certs=/ca.pem&ssl_check_hostname=true"
    settings = Settings(redis_url=sentinel, cache_redis_url=cluster)
    assert (settings.redis_url, settings.cache_redis_url) == (sentinel, cluster)
    assert sentinel_url(sentinel).sentinel_password == "s%25"
